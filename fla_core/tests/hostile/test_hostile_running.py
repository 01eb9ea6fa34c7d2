"""Plugins that run and break their promises: an error that names them, never a wrong result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hostile_cases import RAISING, UNSEEN, UNSEEN_LATER, WARNED, WRONG_FORWARD, WRONG_TRAINING
from hostile_report import Report
from test_hostile_loading import everything_else_works

Meet = Callable[..., Report]


def says(report: Report, name: str, message: str) -> bool:
    return (
        report.error["type"] == "ImplementationError"
        and report.text.startswith(f"{name}:simple_gla#chunk breaks the rules of implementations\n")
        and message in report.text
        and f"FLA_BACKEND=auto,-{name} goes on without it" in report.text
    )


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", WRONG_FORWARD)
def test_forward_that_breaks_its_promise(meet: Meet, name: str, gradients: bool) -> None:
    report = meet(name, gradients=gradients)
    assert says(report, name, WRONG_FORWARD[name])
    assert everything_else_works(report)


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", WARNED)
def test_forward_during_which_torch_changes(meet: Meet, name: str, gradients: bool) -> None:
    report = meet(name, gradients=gradients, calls=2, others=())
    assert not report.error
    assert not report.silently_wrong
    (warning,) = report.warnings
    assert warning.startswith(WARNED[name])


@pytest.mark.parametrize("name", WRONG_TRAINING)
def test_training_that_breaks_its_promise(meet: Meet, name: str) -> None:
    report = meet(name, gradients=True, calls=2)
    assert says(report, name, WRONG_TRAINING[name])
    assert everything_else_works(report)


@pytest.mark.parametrize("name", ["wrong_shape", "mutates_gradient"])
def test_compiled_calls_are_watched_too(meet: Meet, name: str) -> None:
    report = meet(name, gradients=True, compiled=True, others=())
    assert says(report, name, (WRONG_FORWARD | WRONG_TRAINING)[name])


def test_compiled_call_of_an_honest_plugin_is_right(meet: Meet) -> None:
    report = meet("honest", gradients=True, compiled=True, others=())
    assert not report.error
    assert not report.silently_wrong
    assert report.state("honest") == "probed"


@pytest.mark.parametrize("name", sorted(WRONG_TRAINING.keys() - {"mutates_second_time"}))
def test_inference_does_not_care_for_backward(meet: Meet, name: str) -> None:
    report = meet(name, backend=name, others=())
    assert not report.error
    assert not report.silently_wrong


@pytest.mark.parametrize("name", RAISING)
def test_exceptions_are_not_retried_elsewhere(meet: Meet, name: str) -> None:
    kind, message = RAISING[name]
    report = meet(name, gradients=True)
    assert report.error["type"] == kind
    assert message in report.text
    # What follows the message tells whose it is and why it was chosen.
    assert f"while running chunk_simple_gla: {name}:simple_gla#chunk" in report.text
    assert f"{name}:simple_gla#chunk  accepted" in report.text
    assert everything_else_works(report)


def test_the_way_out_that_an_error_names(meet: Meet) -> None:
    report = meet("wrong_shape", backend="auto,-wrong_shape", gradients=True)
    assert not report.error
    assert not report.silently_wrong


@pytest.mark.parametrize("name", UNSEEN)
def test_what_only_the_conformance_suite_can_see(meet: Meet, name: str) -> None:
    """Documents a limit: if core learns to see one of these, the table is to be changed."""
    report = meet(name, gradients=True)
    assert not report.error
    assert (report.wrong, report.changed) == UNSEEN[name]
    assert everything_else_works(report)


@pytest.mark.parametrize("name", UNSEEN_LATER)
def test_what_core_does_not_look_for_twice(meet: Meet, name: str) -> None:
    """Documents the price of short calls of inference: only the first is watched closely."""
    report = meet(name, calls=2)
    assert not report.error
    assert (report.wrong, report.changed) == UNSEEN_LATER[name]
