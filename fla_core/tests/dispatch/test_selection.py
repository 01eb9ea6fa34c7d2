"""Which implementation a call gets, and the stage at which the others were refused."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from typing import Any

import pytest

from fakes import CPU, CUDA, domain, implementation, module, plan, plugin
from fla_core.dispatch import policy_text, use
from fla_core.domain import AxisRange, Domain, Relation
from fla_core.errors import (
    ImplementationError,
    NoImplementationError,
    PluginLoadError,
    PolicyError,
    SelectionWarning,
    UnknownBackendError,
)
from fla_core.plugins import Probe, Validity
from fla_core.plugins.api import Device
from fla_core.verify import CallView, Reason

pytestmark = pytest.mark.filterwarnings("ignore::fla_core.errors.SelectionWarning")


def _refusals(made: Any) -> list[tuple[str, str, Reason]]:
    return [(who, stage, v.code) for who, stage, v in made.decision.considered if not v.ok]


def test_order_is_priority_then_name_whatever_the_order_of_installation(install: Any) -> None:
    install(plugin("zeta"), plugin("beta", priority=50), plugin("alpha"))
    assert plan().id == "beta:gla#chunk"
    assert plan(policy="auto,-beta").id == "alpha:gla#chunk"
    assert plan(policy="zeta,auto").id == "zeta:gla#chunk"
    assert plan(policy="auto,alpha").id == "beta:gla#chunk"
    assert plan(policy="reference").id == "reference:gla#chunk"


def test_authority(install: Any) -> None:
    runtime = install(plugin("acme"), plugin("beta"), environ={"FLA_BACKEND": "beta"})
    made = plan()
    assert (made.plugin, made.decision.origin) == ("beta", "FLA_BACKEND")
    with use("acme"):
        made = plan(policy=policy_text(None))
    assert (made.plugin, made.decision.origin) == ("acme", "fla_core.use()")
    assert plan(policy="reference").decision.origin == "backend="
    assert runtime.settings.backend == "beta"


def test_an_operator_without_a_rule_is_left_to_the_environment(install: Any) -> None:
    install(plugin("acme"), plugin("beta"), environ={"FLA_BACKEND": "beta"})
    made = plan(policy="kda=acme")
    assert (made.plugin, made.decision.origin) == ("beta", "FLA_BACKEND")


@pytest.mark.parametrize(
    ("call", "blocks", "governs"),
    [
        ("kda=acme", ["beta"], ("beta", "fla_core.use()")),
        ("gla=acme", ["beta"], ("acme", "backend=")),
        ("kda=acme", ["beta", "kda=acme"], ("beta", "fla_core.use()")),
        (None, ["acme", "gla=beta"], ("beta", "fla_core.use()")),
        (None, ["gla=acme", "kda=beta", "simple_gla=beta"], ("acme", "fla_core.use()")),
        ("kda=acme", ["kda=beta", "simple_gla=beta"], ("zeta", "FLA_BACKEND")),
    ],
)
def test_an_operator_without_a_rule_is_left_to_the_next_level(
    install: Any, call: str | None, blocks: list[str], governs: tuple[str, str]
) -> None:
    environ = {"FLA_BACKEND": "gla=zeta"}
    install(plugin("acme"), plugin("beta"), plugin("zeta"), environ=environ)
    with ExitStack() as stack:
        for policy in blocks:
            stack.enter_context(use(policy))
        made = plan(policy=policy_text(call))
    assert (made.plugin, made.decision.origin) == governs


def test_without_any_rule_selection_is_automatic(install: Any) -> None:
    install(plugin("acme"), environ={"FLA_BACKEND": "kda=reference"})
    made = plan()
    assert (made.plugin, made.decision.origin) == ("acme", "automatic selection")


def test_forms_order_the_implementations_of_a_plugin_and_refuse_nobody(install: Any) -> None:
    step = implementation(variant="step", forms=("recurrent",))
    install(plugin("acme", implementation(), step))
    assert plan().id == "acme:gla#chunk"
    assert plan(form="recurrent").id == "acme:gla#step"
    assert plan(form="parallel").id == "acme:gla#chunk"


def test_refused_by_device(install: Any) -> None:
    install(plugin("acme"))
    made = plan(device=CPU)
    assert _refusals(made) == [("acme", "device", Reason.DEVICE)]
    assert made.plugin == "reference"


def test_refused_by_toolchain(install: Any) -> None:
    install(plugin("acme"))
    assert plan(policy="acme/triton").plugin == "acme"
    with pytest.raises(NoImplementationError, match="toolchain=triton, wants tilelang"):
        plan(policy="acme/tilelang")
    assert plan(policy="acme/tilelang,acme/triton").plugin == "acme"


def test_refused_by_contract(install: Any) -> None:
    install(plugin("acme", implementation("kda")))
    assert _refusals(plan()) == [("acme", "availability", Reason.CONTRACT)]


def test_refused_by_arch(install: Any) -> None:
    old = implementation(variant="new_chips", arch=("sm10*", "sm12*"))
    install(plugin("acme", old, implementation(variant="any", arch=("sm90",))))
    made = plan()
    assert made.id == "acme:gla#any"
    assert _refusals(made) == [("acme:gla#new_chips", "arch", Reason.ARCH)]
    assert "arch=sm90, wants sm10* | sm12*" in made.decision.render()


@pytest.mark.parametrize(("revision", "fits"), [(-1, False), (0, True), (1, True), (2, False)])
def test_revisions_n_and_the_one_before(install: Any, revision: int, fits: bool) -> None:
    install(plugin("acme", implementation(revision=revision)))
    made = plan()
    assert (made.plugin == "acme") is fits
    if not fits:
        assert _refusals(made) == [("acme:gla#chunk", "revision", Reason.CONTRACT)]
        assert f"revision={revision}, wants 1 or 0" in made.decision.render()


def test_refused_by_gradients(install: Any) -> None:
    few = implementation(variant="few", gradients=frozenset({"q", "k"}))
    none = implementation(variant="none", backward=None)
    install(plugin("acme", none, few, implementation()))
    assert plan().id == "acme:gla#none"
    assert plan(gradients=("q",)).id == "acme:gla#few"
    made = plan(gradients=("q", "v"))
    assert made.id == "acme:gla#chunk"
    text = made.decision.render()
    assert "forward only; gradients are wanted" in text
    assert "no gradient of v" in text


def test_a_gradient_through_a_lowering_needs_those_of_what_it_feeds(install: Any) -> None:
    base = implementation("kda", gradients=frozenset({"q", "k", "v", "beta"}))
    install(plugin("acme", base))
    raw = ("gate", "A_log")
    assert plan("kda", features=raw, gradients=("q",)).plugin == "acme"
    assert plan("kda", features=raw, gradients=("A_log",)).plugin == "reference"
    complete = implementation("kda", gradients=frozenset({"q", "k", "v", "beta", "g"}))
    install(plugin("acme", complete))
    assert plan("kda", features=raw, gradients=("A_log",)).plugin == "acme"


DENIED = Validity("acme:gla#chunk", "backward", "sm90", "triton>=3.4,<3.7.1", "denied", "is wrong")


def _validity(version: str, *rows: Validity) -> Any:
    return plugin(
        "acme", validity=rows, probe=lambda _: Probe(True, "", "sm90", {"triton": version})
    )


def test_a_denied_pair_is_refused_in_its_direction_only(install: Any) -> None:
    install(_validity("3.5", DENIED))
    assert plan().plugin == "acme"
    made = plan(gradients=("q",))
    assert made.plugin == "reference"
    assert _refusals(made) == [("acme:gla#chunk", "validity", Reason.VALIDITY)]
    assert "backward on sm90 triton>=3.4,<3.7.1: is wrong" in made.decision.render()


def test_a_version_outside_the_denied_range_is_fine(install: Any) -> None:
    install(_validity("3.7.1", DENIED))
    assert plan(gradients=("q",)).plugin == "acme"


def test_the_first_matching_row_decides(install: Any) -> None:
    proven = Validity("acme:gla#*", "*", "sm*", "triton==3.5", "ok", "")
    install(_validity("3.5", proven, DENIED))
    assert plan(gradients=("q",)).plugin == "acme"


def test_what_is_unverified_is_let_through_and_said(install: Any) -> None:
    install(_validity("3.5", Validity("acme:*", "*", "*", "*", "unverified", "never tried")))
    made = plan()
    assert made.plugin == "acme"
    assert "unverified, forward on sm90: never tried" in made.decision.render()


def test_refused_by_domain(install: Any) -> None:
    narrow = implementation(domain=domain(K=AxisRange(choices=(64, 128))))
    install(plugin("acme", narrow))
    assert plan(K=64).plugin == "acme"
    made = plan(K=192)
    assert _refusals(made) == [("acme:gla#chunk", "domain", Reason.AXIS)]
    assert "refused  AXIS     K=192, wants 64 | 128 [domain]" in made.decision.render()


def test_refused_by_dtype_and_relation(install: Any) -> None:
    equal = Domain(("bfloat16",), {}, (Relation("equal", ("K", "V")),), domain("gk").features)
    install(plugin("acme", implementation(domain=equal)))
    assert plan().plugin == "acme"
    assert "q=float16, wants bfloat16" in plan(dtype="float16").decision.render()
    assert "K=K=64, V=128, wants K = V" in plan(V=128).decision.render()


def test_a_verifier_sees_the_lowered_call(install: Any) -> None:
    seen: list[CallView] = []

    def verifier(view: CallView) -> tuple[bool, str | None]:
        seen.append(view)
        return (True, None) if view.axes["K"] == 64 else (False, "only the usual head")

    install(plugin("acme", implementation("kda", verifier=verifier, reads=("K", "H"))))
    raw = ("gate", "A_log", "gva", "l2norm")
    assert plan("kda", H=2, features=raw, gradients=("q", "A_log")).plugin == "acme"
    (view,) = seen
    assert view.axes == {"K": 64, "H": 4, "HV": 4}
    assert view.features == frozenset()
    assert view.gradients == {"q"}
    assert view.arch == "sm90"
    assert "A_log" not in view.dtypes
    assert "only the usual head [verifier]" in plan("kda", K=32).decision.render()


def test_lowerings_are_recorded(install: Any) -> None:
    install(plugin("acme", implementation("kda")))
    made = plan("kda", features=("l2norm", "state_v_first", "final_state"))
    assert made.decision.plan == "acme:kda#chunk (lowered: l2norm, state_v_first)"
    assert [lowering.name for lowering in made.lowerings] == ["l2norm", "state_v_first"]
    assert made.features == {"final_state"}


def test_an_argument_that_core_fills_in(install: Any) -> None:
    seen: list[CallView] = []
    needs = Domain(("bfloat16",), {}, (), {**domain().features, "beta": "required"})

    def verifier(view: CallView) -> tuple[bool, str | None]:
        seen.append(view)
        return True, None

    install(plugin("acme", implementation("delta_rule", domain=needs, verifier=verifier)))
    made = plan("delta_rule")
    assert made.decision.plan == "acme:delta_rule#chunk (lowered: default_beta)"
    assert seen[0].dtypes["beta"] == "float32"
    assert made.features == {"beta"}


def test_a_feature_without_lowering_is_refused(install: Any) -> None:
    install(plugin("acme", implementation("gla")))
    made = plan("gla", features=("gv",))
    assert _refusals(made) == [("acme:gla#chunk", "domain", Reason.FEATURE)]
    assert "gv=present, wants absent" in made.decision.render()


@pytest.mark.parametrize(
    ("verifier", "text"),
    [
        (lambda view: True, "verifier returned True, not (True, None) or (False, reason)"),
        (lambda view: 1 // 0, "verifier raised ZeroDivisionError"),
        (lambda view: (False, None), "verifier returned (False, None)"),
    ],
)
def test_a_faulty_verifier(install: Any, verifier: Any, text: str) -> None:
    install(plugin("acme", implementation(verifier=verifier)))
    made = plan()
    assert made.plugin == "reference"
    assert text in made.decision.render()
    assert "faulty" in made.decision.render()
    with pytest.raises(ImplementationError) as caught:
        plan(policy="acme")
    assert text in str(caught.value)
    assert "FLA_BACKEND=auto,-acme" in str(caught.value)


def test_a_broken_plugin_affects_nobody_else(install: Any) -> None:
    install(plugin("acme", api=7), plugin("beta"))
    made = plan()
    assert made.plugin == "beta"
    assert _refusals(made) == []
    assert dict(made.decision.not_asked)["acme"] == "an earlier one accepts"


def test_functions_are_imported_when_the_plan_is_made(install: Any) -> None:
    install(plugin("acme", implementation(forward="fakes:forward", backward="fakes:backward")))
    made = plan()
    assert (made.forward.__name__, made.backward.__name__) == ("forward", "backward")
    assert made.residuals is None


def test_a_kernel_module_that_cannot_be_imported_breaks_its_plugin(install: Any) -> None:
    bad = implementation(forward="no_such_module:forward")
    install(plugin("acme", bad), plugin("beta"))
    made = plan()
    assert made.plugin == "beta"
    assert _refusals(made) == [("acme:gla#chunk", "load", Reason.STATE)]
    assert "broken: load: ModuleNotFoundError: No module named 'no_such_module'" in (
        made.decision.render()
    )
    with pytest.raises(PluginLoadError) as caught:
        plan(policy="acme")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_verifier_that_cannot_be_imported_likewise(install: Any) -> None:
    install(plugin("acme", implementation(verifier="fakes:no_such")), plugin("beta"))
    made = plan()
    assert made.plugin == "beta"
    assert "has no attribute 'no_such'" in made.decision.render()


def test_a_probe_that_fails_costs_only_its_plugin(install: Any) -> None:
    def refuses(device: str) -> Probe:
        raise RuntimeError("ptxas is missing")

    unfit = plugin("beta", probe=lambda device: Probe(False, "the driver is too old"))
    install(plugin("acme", probe=refuses), unfit, plugin("gamma"))
    made = plan()
    assert made.plugin == "gamma"
    assert [v.subject for _, _, v in made.decision.considered if not v.ok] == [
        "broken: probe: cuda:0: RuntimeError: ptxas is missing",
        "unavailable: the driver is too old",
    ]


def test_a_probe_that_hangs_costs_its_limit(install: Any) -> None:
    import threading

    gate = threading.Event()
    install(plugin("acme", probe=lambda device: gate.wait(20)), plugin("beta"), probe_timeout=0.05)
    made = plan()
    gate.set()
    assert made.plugin == "beta"
    assert "no answer for cuda:0 within 0.05 s" in made.decision.render()


def test_nothing_is_probed_without_need(install: Any) -> None:
    asked: list[str] = []

    def asks(name: str, **options: Any) -> Any:
        return plugin(name, probe=lambda device: asked.append(name) or Probe(True), **options)

    install(asks("acme"), asks("cpu_only", targets=("cpu",), priority=1), asks("later"))
    plan(policy="reference")
    assert asked == []
    plan()
    assert asked == ["acme"]


def test_devices_are_told_apart(install: Any) -> None:
    install(plugin("acme", probe=lambda device: Probe(device == "cuda:0", "too small")))
    assert plan(device=Device("cuda", 0)).plugin == "acme"
    assert plan(device=Device("cuda", 1)).plugin == "reference"
    assert plan(device=Device("cuda", 0)).plugin == "acme"


def test_nobody_accepts_under_a_closed_policy(install: Any) -> None:
    narrow = implementation("kda", domain=domain(K=AxisRange(choices=(64, 128))))
    requires = ("no-such-toolchain>=1",)
    install(
        plugin("acme", narrow),
        plugin("beta", requires=requires),
        environ={"FLA_BACKEND": "acme,beta"},
    )
    with pytest.raises(NoImplementationError) as caught:
        plan("kda", K=192, features=("varlen",), gradients=("q",))
    again = "fla-kernels explain chunk_kda --K 192 --dtype bf16 --device cuda"
    again += " --feature varlen --grad --backend acme,beta"
    assert str(caught.value).splitlines() == [
        "chunk_kda has no implementation for this call",
        "  call            chunk K=192 bf16 cuda | varlen, grad",
        "  acme:kda#chunk  refused  AXIS     K=192, wants 64 | 128 [domain]",
        "  beta            unavailable: needs no-such-toolchain>=1, which is not installed",
        "  reference       not asked  add ',reference' to the policy to allow it (slow)",
        "  policy          'acme,beta', from FLA_BACKEND",
        f"  next            {again}",
    ]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.decision == caught.value.decision


def test_the_reference_can_be_shut_out(install: Any) -> None:
    install(plugin("acme", implementation("kda")))
    with pytest.raises(NoImplementationError, match="the policy says -reference"):
        plan(policy="auto,-reference")


def test_a_plugin_excluded_by_name(install: Any) -> None:
    install(plugin("acme"), plugin("beta"), environ={"FLA_PLUGINS": "-acme"})
    made = plan()
    assert made.plugin == "beta"
    assert '"acme", "enablement"' not in made.decision.render()
    with pytest.raises(NoImplementationError, match='excluded  FLA_PLUGINS="-acme"'):
        plan(policy="acme")


def test_none_leaves_the_reference(install: Any) -> None:
    install(plugin("acme"), environ={"FLA_PLUGINS": "none"})
    made = plan()
    assert made.plugin == "reference"
    assert 'excluded  FLA_PLUGINS="none"' in made.decision.render()


def test_unknown_names_list_what_is_there(install: Any) -> None:
    install(plugin("acme"), plugin("beta", api=7))
    with pytest.raises(UnknownBackendError) as caught:
        plan(policy="amce")
    assert "no backend 'amce' is installed" in str(caught.value)
    assert (
        "did you mean 'acme'? installed: reference (loaded), acme (loaded), beta (broken)"
        in str(caught.value)
    )
    with pytest.raises(UnknownBackendError, match="no backend 'amce' is installed"):
        plan(policy="kda=amce;auto")
    with pytest.raises(UnknownBackendError, match="did you mean 'acme'"):
        plan(policy="auto,-amce")
    assert plan(policy="auto,-ascend").plugin == "acme"


def test_a_bad_policy_of_the_environment_is_an_error_at_the_first_call(install: Any) -> None:
    install(plugin("acme"), environ={"FLA_BACKEND": "acme,-beta"})
    with pytest.raises(PolicyError, match="'-' is only meaningful beside 'auto'"):
        plan()


def test_a_bad_card_named_by_the_user_is_a_load_error(install: Any) -> None:
    install(plugin("acme", api=7))
    with pytest.raises(PluginLoadError, match="upgrade fla-kernels-core"):
        plan(policy="acme")


def test_a_duplicate_is_refused_and_reported(install: Any) -> None:
    second = plugin("acme")
    second.breaks("discover", "the name is taken by alpha-kernels 1.0 (alpha.plugin)")
    install(plugin("acme", implementation(variant="first")), second)
    assert plan().id == "acme:gla#first"


class TestNotices:
    """What a user is told once."""

    def test_the_slow_reference_on_an_accelerator(self, install: Any) -> None:
        install(plugin("acme", implementation(domain=domain(K=AxisRange(choices=(128,))))))
        with pytest.warns(SelectionWarning) as caught:
            _ = plan(), plan(T=999, K=96)
        (warning,) = caught
        text = str(warning.message)
        assert text.startswith("chunk_gla runs on the slow reference on cuda\n")
        assert "K=64, wants 128" in text
        assert warning.filename.endswith("fakes.py"), "it must point at the caller's line"

    def test_asked_for_it_is_no_surprise(
        self, install: Any, recwarn: pytest.WarningsRecorder
    ) -> None:
        install(plugin("acme", implementation("kda")))
        plan(policy="reference")
        plan(policy="acme,reference")
        plan(device=CPU)
        assert list(recwarn) == []

    def test_a_broken_plugin_for_this_device(self, install: Any) -> None:
        def refuses(device: str) -> Probe:
            raise RuntimeError("ptxas is missing")

        install(plugin("acme", probe=refuses), plugin("beta"))
        with pytest.warns(SelectionWarning) as caught:
            _ = plan(), plan(policy="auto,reference")
        (warning,) = caught
        assert "backend 'acme' should serve cuda devices and cannot: broken: probe:" in str(
            warning.message
        )

    def test_a_broken_plugin_for_other_devices_is_quiet(
        self, install: Any, recwarn: pytest.WarningsRecorder
    ) -> None:
        bad = implementation(forward="no_such_module:forward")
        install(plugin("acme", bad))
        plan(device=CPU)
        assert list(recwarn) == []

    def test_a_bad_declaration_in_front_of_the_one_that_serves(self, install: Any) -> None:
        install(plugin("acme", implementation(domain=None), priority=1), plugin("beta"))
        with pytest.warns(SelectionWarning, match="backend 'acme' should serve cuda devices"):
            assert plan().plugin == "beta"

    def test_they_are_logged_too(self, install: Any, caplog: pytest.LogCaptureFixture) -> None:
        install()
        plan(device=CUDA)
        (message,) = caplog.messages
        assert message.startswith("chunk_gla runs on the slow reference on cuda")


def test_decision_as_json(install: Any) -> None:
    import json

    install(
        plugin("acme", implementation("kda", arch=("sm100",))),
        plugin("beta", implementation("kda")),
    )
    data = json.loads(json.dumps(plan("kda", features=("l2norm",)).decision.to_json()))
    assert data["chosen"] == "beta:kda#chunk"
    assert data["plan"] == "beta:kda#chunk (lowered: l2norm)"
    assert data["contract"] == "kda@1"
    assert data["arch"] == "sm90"
    assert data["considered"][0] == {
        "candidate": "acme:kda#chunk",
        "stage": "arch",
        "code": "ARCH",
        "subject": "arch",
        "want": "sm100",
        "got": "sm90",
    }
    assert data["not_asked"] == [{"plugin": "reference", "reason": "an earlier one accepts"}]


def test_module_fixture_is_a_plugin() -> None:
    assert module("acme").fla_backend().name == "acme"
