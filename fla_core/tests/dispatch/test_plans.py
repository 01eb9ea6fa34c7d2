"""Plans are kept by exactly the facts they rest on, and dropped when those change."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from fakes import CUDA, domain, implementation, plan, plugin
from fla_core.contracts import CONTRACTS, KDA
from fla_core.dispatch import on_reset
from fla_core.dispatch import plan as plans
from fla_core.dispatch.plan import bound_plan
from fla_core.dispatch.runtime import RUNTIME, backends, reload_env, sandbox
from fla_core.domain import AxisRange, Domain
from fla_core.errors import PluginLoadError, PolicyError
from fla_core.plugins import Probe

pytestmark = pytest.mark.filterwarnings("ignore::fla_core.errors.SelectionWarning")


def test_axes_nobody_constrains_do_not_make_plans(install: Any) -> None:
    runtime = install(plugin("acme", implementation(domain=domain(K=AxisRange(16, 256)))))
    first = plan()
    assert plan(T=1) is plan(T=4096, B=7, N=7) is plan(V=32) is first
    assert plan(K=32) is not first
    assert len(runtime.plans) == 2


def test_a_domain_copied_from_the_contract_constrains_nothing(install: Any) -> None:
    contract = CONTRACTS["gla"].domain
    copied = Domain(contract.dtypes, contract.axes, contract.relations, contract.features)
    install(plugin("acme", implementation(domain=copied)))
    assert plan(T=1) is plan(T=2)
    assert plan(traced=True, gradients=("q",)).plugin == "acme"


def test_axes_a_verifier_reads_make_plans(install: Any) -> None:
    reads = implementation(verifier=lambda view: (True, None), reads=("T",))
    install(plugin("acme", reads))
    assert plan(T=1) is not plan(T=2)
    assert plan(T=1) is plan(T=1, K=32)


@pytest.mark.parametrize(
    "facts",
    [
        {"operator": "fused_chunk_gla"},
        {"form": "recurrent"},
        {"dtype": "float16"},
        {"features": ("varlen",)},
        {"gradients": ("q",)},
        {"traced": True},
        {"policy": "acme"},
    ],
)
def test_every_other_fact_makes_a_plan_of_its_own(install: Any, facts: dict[str, Any]) -> None:
    install(plugin("acme"))
    assert plan(**facts) is not plan()
    assert plan(**facts) is plan(**facts)


def test_a_limit_on_t_is_unknown_in_traced_gradient_calls(install: Any) -> None:
    install(plugin("acme", implementation(domain=domain(T=AxisRange(1, 512)))))
    assert plan(T=128).plugin == "acme"
    assert plan(T=128, traced=True).plugin == "acme"
    assert plan(T=128, gradients=("q",)).plugin == "acme"
    made = plan(T=128, traced=True, gradients=("q",))
    assert made.plugin == "reference"
    assert "T=unknown while tracing, wants 1..512" in made.decision.render()
    assert plan(T=64, traced=True, gradients=("q",)) is made


def test_the_number_of_plans_is_bounded(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 4)
    runtime = install(plugin("acme", implementation(domain=domain(T=AxisRange(1, 512)))))
    for length in range(1, 20):
        plan(T=length)
        assert len(runtime.plans) <= 4


def test_a_hit_reads_no_environment_and_asks_nobody(install: Any) -> None:
    class Closed(dict[str, str]):
        """An environment that can be shut."""

        shut = False

        def _read(self) -> None:
            assert not self.shut, "the environment was read on a hit"

        def get(self, *args: Any) -> Any:
            self._read()
            return super().get(*args)

        def __getitem__(self, key: str) -> str:
            self._read()
            return super().__getitem__(key)

        def __iter__(self) -> Any:
            self._read()
            return super().__iter__()

    environ = Closed(FLA_BACKEND="acme")
    asked: list[str] = []
    runtime = install(
        plugin("acme", probe=lambda device: asked.append(device) or Probe(True)), environ=environ
    )
    first = plan()
    environ.shut = True
    runtime._lock = None  # type: ignore[assignment]  # a lock taken on a hit would fail here
    assert plan() is first
    assert asked == ["cuda:0"]


def test_reload_env(install: Any) -> None:
    environ = {"FLA_BACKEND": "acme"}
    install(plugin("acme"), plugin("beta"), environ=environ)
    first = plan()
    assert first.plugin == "acme"
    environ["FLA_BACKEND"] = "beta"
    assert plan() is first
    reload_env()
    assert plan().plugin == "beta"
    environ["FLA_PLUGINS"] = "acme"
    reload_env()
    assert [record.state.value for record in backends()] == ["loaded", "probed", "excluded"]
    del environ["FLA_PLUGINS"], environ["FLA_BACKEND"]
    reload_env()
    assert plan().plugin == "acme"


def test_a_bad_environment_leaves_the_old_one_in_force(install: Any) -> None:
    environ = {"FLA_BACKEND": "acme"}
    install(plugin("acme"), plugin("beta"), environ=environ)
    first = plan()
    environ["FLA_TRACE"] = "loud"
    with pytest.raises(PolicyError, match="must be one of"):
        reload_env()
    assert plan() is first


def test_listeners_hear_of_it(install: Any) -> None:
    install(plugin("acme"))
    heard: list[int] = []
    on_reset(lambda: heard.append(1))
    try:
        reload_env()
        RUNTIME.reload_plugins()
        assert len(heard) == 2
    finally:
        RUNTIME.listeners.pop()


def test_a_sandbox_leaves_everything_as_it_was() -> None:
    before = dict(vars(RUNTIME))
    with sandbox(plugin("acme")):
        assert plan().plugin == "acme"
    after = dict(vars(RUNTIME))
    assert after.pop("plans") == {} == after.pop("known")
    assert {name: before[name] for name in after} == after


def test_many_threads_get_one_answer(install: Any) -> None:
    install(plugin("acme"), plugin("beta"))
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(plan().id)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["acme:gla#chunk"] * 16


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_asks_again(install: Any) -> None:
    pids: list[int] = []
    install(plugin("acme", probe=lambda device: pids.append(os.getpid()) or Probe(True)))
    plan()
    assert pids == [os.getpid()]
    child = os.fork()
    if child == 0:
        plan()
        os._exit(0 if pids == [os.getppid(), os.getpid()] else 1)
    assert os.waitpid(child, 0)[1] == 0


class TestBound:
    """Backward takes the implementation that forward ran with."""

    def _bound(self, identity: str, *features: str) -> Any:
        return bound_plan(
            KDA, "chunk_kda", "chunk", CUDA, "bfloat16", frozenset(features), identity
        )

    def test_binds_without_selection(self, install: Any) -> None:
        install(plugin("acme", implementation("kda")), plugin("beta", implementation("kda")))
        made = self._bound("beta:kda#chunk", "l2norm")
        assert made.id == "beta:kda#chunk"
        assert made.features == frozenset()
        assert made.decision.plan == "beta:kda#chunk (lowered: l2norm)"
        assert made.decision.origin == "the choice of forward"
        assert self._bound("beta:kda#chunk", "l2norm") is made

    def test_unknown(self, install: Any) -> None:
        install(plugin("acme", implementation("kda")))
        with pytest.raises(LookupError, match="no loaded plugin has the implementation 'x:kda#y'"):
            self._bound("x:kda#y")

    def test_cannot_be_imported(self, install: Any) -> None:
        install(plugin("acme", implementation("kda", backward="no_such_module:backward")))
        with pytest.raises(PluginLoadError, match="No module named 'no_such_module'"):
            self._bound("acme:kda#chunk")


def test_errors_in_a_kernel_carry_the_decision(install: Any) -> None:
    install(plugin("acme"))
    made, error = plan(), RuntimeError("out of memory")
    made.annotate(error)
    made.annotate(error)
    notes = getattr(error, "__notes__", None)
    if notes is not None:
        (note,) = notes
        assert note.startswith("while running chunk_gla: acme:gla#chunk\n")
