"""One implementation alone, and a line for each time it runs."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

import fakes
import fla_core.ops  # noqa: F401
from fla_core.dispatch.context import policy_text
from fla_core.dispatch.runtime import RUNTIME, reload_env
from fla_core.dispatch.witness import NotWitnessedError, Run, only
from fla_core.errors import NoImplementationError
from fla_core.ops.gla import chunk_gla, fused_recurrent_gla
from fla_core.ops.linear_attn import chunk_linear_attn


def inputs(grad: bool = False) -> tuple[Any, ...]:
    made = [torch.randn(1, 4, 2, 8) for _ in range(3)]
    made.append(-torch.rand(1, 4, 2, 8))
    return tuple(x.requires_grad_(grad) for x in made)


def test_every_run_is_written_down_with_its_plan() -> None:
    with only("reference:gla#chunk") as witness:
        o, _ = chunk_gla(*inputs(grad=True), backend=None)
        assert witness.runs == [Run("forward", "reference:gla#chunk", "chunk_gla")]
        o.sum().backward()
    assert [run.direction for run in witness.take()] == ["forward", "backward"]
    assert witness.take() == ()


def test_lowerings_show_in_the_plan() -> None:
    q, k, v, g = inputs()
    with only("reference:gla#chunk") as witness:
        fused_recurrent_gla(q, k, v, gk=g, reverse=True)
    assert [run.plan for run in witness.runs] == ["reference:gla#chunk (lowered: reverse)"]


def test_a_sibling_never_stands_in() -> None:
    with only("reference:gla#chunk") as witness:
        fused_recurrent_gla(*inputs()[:3])
    assert [run.plan.split(" ")[0] for run in witness.runs] == ["reference:gla#chunk"]


def test_nobody_takes_a_call_that_the_implementation_refuses(install: Any) -> None:
    narrow = fakes.implementation(domain=fakes.domain("gk"))
    install(fakes.plugin("acme", narrow, targets=("cpu",)))
    with only("acme:gla#chunk"), pytest.raises(NoImplementationError, match="refused  FEATURE"):
        fused_recurrent_gla(*inputs()[:3], gv=inputs()[3])


def test_the_reference_is_no_way_out(install: Any) -> None:
    install(fakes.plugin("acme", targets=("cpu",)))
    with only("acme:gla#chunk"), pytest.raises(NoImplementationError):
        chunk_gla(*inputs(), backend="reference")


def test_another_contract_raises_instead_of_running() -> None:
    with only("reference:gla#chunk") as witness:
        with pytest.raises(NotWitnessedError) as caught:
            chunk_linear_attn(*inputs()[:3], normalize=False)
        assert witness.runs == []
    assert caught.value.other == "reference:linear_attn#chunk"
    assert "reference:linear_attn#chunk was asked to compute" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_plans_made_before_and_inside_do_not_leak() -> None:
    arguments = inputs()
    chunk_linear_attn(*arguments[:3], normalize=False)
    with only("reference:gla#chunk"):
        with pytest.raises(NotWitnessedError):
            chunk_linear_attn(*arguments[:3], normalize=False)
        chunk_gla(*arguments)
        inside = dict(RUNTIME.plans)
    chunk_linear_attn(*arguments[:3], normalize=False)
    with only("reference:linear_attn#chunk") as witness:
        chunk_linear_attn(*arguments[:3], normalize=False)
    assert len(witness.runs) == 1
    assert not set(inside.values()) & set(RUNTIME.plans.values())


def test_it_stays_in_force_when_settings_are_read_again() -> None:
    with only("reference:gla#chunk") as witness:
        reload_env()
        chunk_gla(*inputs())
        with pytest.raises(NotWitnessedError):
            chunk_linear_attn(*inputs()[:3], normalize=False)
        assert len(witness.runs) == 1


def test_everything_is_as_before_afterwards() -> None:
    listeners, trace = len(RUNTIME.listeners), RUNTIME.trace
    inside = []
    with pytest.raises(KeyError), only("reference:gla#chunk"):
        raise KeyError(inside.append(policy_text(None)))
    assert inside == ["|reference"]
    assert (len(RUNTIME.listeners), RUNTIME.trace) == (listeners, trace)
    assert policy_text(None) == ""


def test_blocks_nest() -> None:
    with only("reference:gla#chunk") as outer:
        with only("reference:linear_attn#chunk") as inner:
            chunk_linear_attn(*inputs()[:3], normalize=False)
        chunk_gla(*inputs())
    assert [run.plan for run in outer.runs] == ["reference:gla#chunk"]
    assert [run.plan for run in inner.runs] == ["reference:linear_attn#chunk"]


@pytest.mark.parametrize("identity", ["reference:gla#other", "acme:gla#chunk", "nonsense"])
def test_an_unknown_implementation_is_named(identity: str) -> None:
    with pytest.raises(LookupError, match=identity), only(identity):
        pass


def test_the_trace_of_the_user_goes_on(install: Any, capsys: Any) -> None:
    install(environ={"FLA_TRACE": "calls"})
    with only("reference:gla#chunk"):
        chunk_gla(*inputs())
    text = capsys.readouterr().err
    assert "forward of reference:gla#chunk" in text
