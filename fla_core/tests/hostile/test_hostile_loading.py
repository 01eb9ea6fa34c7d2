"""Plugins that fail before they compute anything stay with themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hostile_cases import BROKEN, EVERY, FAULTY_VERIFIER, HONEST, REFUSING
from hostile_report import Report
from hostile_wheels import names

Meet = Callable[..., Report]


def everything_else_works(report: Report) -> bool:
    return all(not (r["error"] or r["wrong"] or r["changed"]) for r in report.others.values())


def test_every_plugin_is_in_a_table() -> None:
    assert set(names()) == EVERY


@pytest.mark.parametrize("name", HONEST)
def test_honest_plugins_are_right(meet: Meet, name: str) -> None:
    # Otherwise everything below would prove nothing.
    report = meet(name, backend=name, gradients=True, calls=2)
    assert not report.error
    assert not report.silently_wrong
    assert report.state(name) == "probed"


@pytest.mark.parametrize("name", BROKEN)
def test_broken_plugin_is_left_out(meet: Meet, name: str) -> None:
    report = meet(name, gradients=True)
    assert not report.error
    assert not report.silently_wrong
    assert report.state(name).startswith("broken: ")
    assert BROKEN[name] in report.state(name)
    assert everything_else_works(report)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_plugin_that_is_named_is_an_error(meet: Meet, name: str) -> None:
    report = meet(name, backend=name, others=())
    assert report.error["type"] == "PluginLoadError"
    assert report.text.startswith(f"backend {name!r} cannot be used\n")
    assert BROKEN[name] in report.text
    assert f"hostile-{name.replace('_', '-')} 1.0" in report.text


def test_the_cause_of_a_failure_is_chained(meet: Meet) -> None:
    report = meet("raises_on_import", backend="raises_on_import")
    assert report.error["cause"].startswith("ImportError: libmissing.so.12")


@pytest.mark.parametrize("name", ["raises_in_probe", "hangs_in_probe", "wide_domain"])
def test_user_hears_of_a_plugin_that_should_serve(meet: Meet, name: str) -> None:
    report = meet(name)
    (warning,) = [text for text in report.warnings if name in text]
    assert f"backend {name!r} should serve cpu devices and cannot: broken: " in warning
    assert BROKEN[name] in warning


@pytest.mark.parametrize("name", FAULTY_VERIFIER)
def test_faulty_verifier_is_passed_over(meet: Meet, name: str) -> None:
    report = meet(name, gradients=True)
    assert not report.error
    assert not report.silently_wrong
    assert report.notes[name] == [f"{name}:simple_gla#chunk: {FAULTY_VERIFIER[name]}"]
    assert everything_else_works(report)


@pytest.mark.parametrize("name", FAULTY_VERIFIER)
def test_faulty_verifier_that_is_named_is_an_error(meet: Meet, name: str) -> None:
    report = meet(name, backend=name, others=())
    assert report.error["type"] == "ImplementationError"
    assert report.text.startswith(f"{name}:simple_gla#chunk breaks the rules of implementations\n")
    assert FAULTY_VERIFIER[name] in report.text


@pytest.mark.parametrize("name", REFUSING)
def test_refusal_goes_on_to_the_next(meet: Meet, name: str) -> None:
    automatic = meet(name, gradients=True)
    assert not automatic.error
    assert not automatic.silently_wrong
    assert everything_else_works(automatic)
    named = meet(name, backend=name, others=())
    assert named.error["type"] == "NoImplementationError"
    assert REFUSING[name] in named.text


def test_unknown_contract_is_noted(meet: Meet) -> None:
    (note,) = meet("unknown_contract").notes["unknown_contract"]
    assert note.startswith("this core has no contract 'quantum_attn'")


def test_of_two_with_one_name_the_first_is_kept(meet: Meet) -> None:
    report = meet("twin", backend="twin", gradients=True)
    assert not report.error
    assert not report.silently_wrong
    first, second = [state for name, state in report.states if name == "twin"]
    assert first == "probed"
    assert second == (
        "broken: discover: the name is taken by hostile-twin-one 1.0 (hostile_twin_one)"
    )
    assert report.notes["twin"] == ["hostile-twin-two 1.0 (hostile_twin_two) wants the same name"]


def test_nobody_can_be_the_reference(meet: Meet) -> None:
    report = meet("reference", backend="reference", gradients=True)
    assert not report.error
    assert not report.silently_wrong
    first, second = [state for name, state in report.states if name == "reference"]
    assert first == "probed"
    assert second.startswith("broken: discover: the name 'reference' is reserved")
