"""L4: what everybody must do, and claims that are proved or found false."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from fla_conformance.claims import ALWAYS, CLAIMS, checks
from fla_conformance.laws import run_law
from fla_conformance.laws.cases import cases_for
from fla_conformance.laws.runner import Runner
from fla_conformance.result import Outcome, Result
from fla_conformance.suite import Settings
from fla_core.contracts import CONTRACTS
from fla_core.plugins.api import Implementation
from plugins_in_process import implementation, installed


def claiming(change: Callable[[Any, Tensor], Tensor], *claims: str) -> Implementation:
    right: Any = implementation("linear_attn").forward

    def forward(call: Any, save: bool) -> Any:
        outputs, residuals = right(call, save)
        return (change(call, outputs[0]), *outputs[1:]), residuals

    return implementation("linear_attn", forward=forward, claims=frozenset(claims))


def results(one: Implementation, names: set[str], budget: int = 1) -> list[Result]:
    with installed(one) as (target,):
        settings = Settings(level="L4", budget=budget)
        found = checks(CONTRACTS[one.contract], target.declaration, settings)
        return [check.run(target) for check in found if check.law in names]


def unchanged(call: Any, o: Tensor) -> Tensor:
    return o


def test_honest_claims_are_proved() -> None:
    found = results(claiming(unchanged, "deterministic", "batch_invariant"), set(CLAIMS))
    assert [(r.law, r.outcome) for r in found] == [
        ("batch_invariant", Outcome.PASS),
        ("deterministic", Outcome.PASS),
    ]
    assert {result.level for result in found} == {"L4"}


def test_rare_difference_is_found() -> None:
    runs = iter(range(10**6))

    def odd(call: Any, o: Tensor) -> Tensor:
        return o * (1 + 1e-2) if next(runs) == 40 else o

    (found,) = results(claiming(odd, "deterministic"), set(CLAIMS))
    assert found.outcome is Outcome.FAIL_LAW
    assert "when run again" in found.detail


def test_dependence_on_the_batch_is_found() -> None:
    def odd(call: Any, o: Tensor) -> Tensor:
        return o * (1 + 1e-2) if call.q.shape[0] == 5 else o

    (found,) = results(claiming(odd, "batch_invariant"), set(CLAIMS))
    assert found.outcome is Outcome.FAIL_LAW
    assert "of a batch of 5" in found.detail


def test_only_claims_that_were_made_are_examined() -> None:
    assert results(claiming(unchanged), set(CLAIMS)) == []


def test_capture_without_a_cuda_device_proves_nothing() -> None:
    (found,) = results(claiming(unchanged, "graph_capture"), set(CLAIMS))
    assert found.outcome is Outcome.NOT_EXECUTED
    assert "cuda" in found.detail


class PretendedRunner:
    """Runs on the CPU as if on a device that captures; while it does, nobody may wait for it."""

    device = SimpleNamespace(device=SimpleNamespace(type="cuda"), sync=lambda: None)
    claims = frozenset({"deterministic"})

    def __init__(self, real: Runner, replays: bool) -> None:
        self._real, self._replays, self._captures = real, replays, False
        self._current = False
        self._seen: tuple[Any, Any] = (None, None)
        self.inputs = real.inputs

    def run(self, inputs: Any) -> Any:
        assert not self._captures
        return self._real.run(inputs)

    def issue(self, inputs: Any) -> Any:
        assert self._captures
        ran = self._real.issue(inputs)
        self._seen = inputs, ran.outputs
        return ran

    @contextmanager
    def guard(self, device: Any) -> Iterator[None]:
        assert device is self.device.device
        self._current = True
        yield
        self._current = False

    @contextmanager
    def capture(self, graph: Any) -> Iterator[None]:
        assert self._current, "what is captured is what is launched on the current device"
        self._captures = True
        yield
        self._captures = False

    def replay(self) -> None:
        inputs, outputs = self._seen
        if self._replays:
            for name, output in self._real.run(inputs).outputs.items():
                outputs[name].copy_(output)


@pytest.mark.parametrize("replays", [True, False])
def test_capture_is_proved_by_a_replay_on_new_values(
    replays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = CLAIMS["graph_capture"]
    with installed(implementation("linear_attn")) as (target,), Runner(target) as real:
        runner = PretendedRunner(real, replays)
        monkeypatch.setattr("torch.cuda.CUDAGraph", lambda: SimpleNamespace(replay=runner.replay))
        monkeypatch.setattr("torch.cuda.graph", runner.capture)
        monkeypatch.setattr("fla_conformance.claims.device_guard", runner.guard)
        case = cases_for(law, CONTRACTS["linear_attn"], target.declaration, 1)[0]
        found = law.check(case, runner)
    assert found is None if replays else str(found).startswith("replayed on new values, ")


def test_unknown_claim_fails() -> None:
    (found,) = results(claiming(unchanged, "infallible"), {"infallible"})
    assert found.outcome is Outcome.FAIL_LAW
    assert "provable are deterministic, batch_invariant, graph_capture" in found.detail


@pytest.mark.parametrize("name", ALWAYS)
@pytest.mark.parametrize("contract", ["gla", "kda"])
def test_reference_compiles(name: str, contract: str) -> None:
    (found,) = results(implementation(contract), {name})
    assert (found.outcome, found.detail) == (Outcome.PASS, "")


def test_wrong_announcement_of_residuals_is_found() -> None:
    right = implementation("linear_attn")
    forward: Any = right.forward

    def keeping(call: Any, save: bool) -> Any:
        outputs, _ = forward(call, save)
        return outputs, ((call.q.clone(),) if save else ())

    def announced(call: Any) -> Any:
        honest = not hasattr(call.q, "fake_mode")
        return ((tuple(call.q.shape if honest else call.v.shape), call.q.dtype),)

    wrong = replace(right, forward=keeping, residuals=announced)
    found = results(wrong, set(ALWAYS))
    assert Outcome.FAIL_LAW in {result.outcome for result in found}


def test_compiled_result_that_differs_is_found() -> None:
    """An implementation that notices it is not called for the first time."""
    runs = iter(range(10**6))

    def odd(call: Any, o: Tensor) -> Tensor:
        return o * 1.5 if next(runs) else o

    with installed(claiming(odd)) as (target,):
        case = cases_for(ALWAYS["fullgraph"], CONTRACTS["linear_attn"], target.declaration, 1)[0]
        found = run_law(ALWAYS["fullgraph"], case, target)
    assert found.outcome is Outcome.FAIL_LAW
    assert found.detail.startswith("compiled, o ")
