"""``explain`` answers for calls nobody makes, also for hardware that is not here."""

from __future__ import annotations

from typing import Any

import pytest

from fakes import domain, implementation, plugin
from fla_core.dispatch.explain import explain, find_operator
from fla_core.domain import AxisRange, Domain, Relation
from fla_core.errors import ContractError, PolicyError, UnknownOperatorError
from fla_core.plugins import Probe
from fla_core.plugins.api import Device

GONE = "quantum"
"""A device type that no machine has."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("chunk_kda", ("kda", "chunk_kda", "chunk")),
        ("kda.chunk_kda", ("kda", "chunk_kda", "chunk")),
        ("fused_recurrent_kda", ("kda", "fused_recurrent_kda", "recurrent")),
        ("retention.chunk_retention", ("simple_gla", "chunk_retention", "chunk")),
        ("kda", ("kda", "kda", "chunk")),
    ],
)
def test_operators_by_any_name(text: str, expected: tuple[str, str, str]) -> None:
    contract, name, form = find_operator(text)
    assert (contract.name, name, form) == expected


def test_unknown_operators_get_suggestions() -> None:
    with pytest.raises(UnknownOperatorError) as caught:
        explain("chunk_kdaa")
    assert str(caught.value).startswith("there is no operator 'chunk_kdaa'\n  close      chunk_kda")
    assert "contracts  linear_attn, simple_gla" in str(caught.value)


def test_on_this_machine(install: Any) -> None:
    install(plugin("acme", implementation("kda"), targets=("cpu",)))
    decision = explain("kda.chunk_kda", device="cpu", K=128, dtype="bf16", features=["l2norm"])
    assert decision.chosen == "acme:kda#chunk"
    assert decision.plan == "acme:kda#chunk (lowered: l2norm)"
    assert decision.view.dtype == "bfloat16"
    assert decision.view.arch == "sm90"


def test_the_default_device_is_the_accelerator(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    install()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: Device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert explain("chunk_kda").view.device == "cuda"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert explain("chunk_kda").view.device == "cpu"


def test_for_a_device_that_is_not_here(install: Any) -> None:
    asked: list[str] = []
    narrow = implementation("kda", domain=domain(K=AxisRange(choices=(64, 128))), arch=("q9",))
    install(
        plugin(
            "acme",
            narrow,
            targets=(GONE,),
            probe=lambda device: asked.append(device) or Probe(False),
        )
    )
    decision = explain("chunk_kda", device=GONE)
    assert asked == []
    assert decision.render().splitlines() == [
        "chunk_kda: acme:kda#chunk",
        "  call            chunk K=? bf16 quantum",
        "  acme            would be asked; not probed here (no quantum device)",
        "  acme:kda#chunk  only if arch is q9",
        "  acme:kda#chunk  only if K is 64 | 128",
        "  acme:kda#chunk  accepted",
        "  reference       not asked  an earlier one accepts",
        "  policy          'auto', from automatic selection",
    ]


def test_a_given_arch_is_taken_for_granted(install: Any) -> None:
    older = implementation("gla", arch=("sm80",))
    install(plugin("acme", implementation("kda", arch=("sm90",)), older, targets=("cpu",)))
    decision = explain("chunk_kda", device="cpu", arch="sm80")
    assert "chunk bf16 cpu sm80" in decision.render().replace("K=? V=? ", "")
    assert decision.to_json()["arch"] == "sm80"
    assert "not probed here (arch sm80 is given)" in decision.render()
    assert "arch=sm80, wants sm90" in decision.render()
    assert decision.chosen == "reference:kda#chunk"
    assert explain("chunk_kda", device="cpu", arch="sm90").chosen == "acme:kda#chunk"


def test_an_arch_tells_the_device(install: Any) -> None:
    install(
        plugin("acme", implementation("kda", arch=("q9*",)), targets=(GONE,)),
        plugin("bolt", implementation("kda"), targets=("npu",)),
    )
    decision = explain("chunk_kda", arch="q91")
    assert (decision.view.device, decision.view.arch) == (GONE, "q91")
    assert decision.chosen == "acme:kda#chunk"
    assert explain("chunk_kda", arch="gfx942").view.device == "cuda"
    assert explain("chunk_kda", device="npu", arch="any").chosen == "bolt:kda#chunk"


@pytest.mark.parametrize(
    ("device", "arch", "text"),
    [
        (
            "",
            "nonsense",
            "knows: q9* (quantum); sm80, sm90, gfx[0-9]* (cuda)\n  got       'nonsense'",
        ),
        ("", "Q90", "'Q90' (did you mean q90?)"),
        (GONE, "sm90", "knows: q9* (quantum)\n  got       'sm90'"),
        (
            "cuda",
            "sm_90",
            "knows: sm80, sm90, gfx[0-9]* (cuda)\n  got       'sm_90' (did you mean sm90?)",
        ),
        ("cuda", "sm70", "got       'sm70'"),
        ("cuda:1", "SM90", "'SM90' (did you mean sm90?)"),
        ("cpu", "sm90", "none: nobody installed tells architectures of cpu apart"),
    ],
)
def test_an_arch_that_nobody_knows(install: Any, device: str, arch: str, text: str) -> None:
    install(
        plugin("acme", implementation("kda", arch=("q9*",)), targets=(GONE,)),
        plugin("cuda", implementation("kda", arch=("sm80", "sm90"))),
    )
    with pytest.raises(ContractError) as caught:
        explain("chunk_kda", device=device, arch=arch)
    assert caught.value.argument == "arch"
    assert text in str(caught.value)


def test_conditions_of_relations_and_verifiers(install: Any) -> None:
    checked = implementation("kda", verifier=lambda view: (view.axes["T"] > 8, None), reads=("T",))
    equal = Domain(relations=(Relation("equal", ("K", "V")),), features=domain().features)
    install(
        plugin("acme", checked, targets=("cpu",)),
        plugin("beta", implementation("kda", domain=equal), targets=("cpu",)),
    )
    assert "only if K = V" in explain("chunk_kda", device="cpu", backend="beta", K=64).render()
    text = explain("chunk_kda", device="cpu").render()
    assert "only if its verifier agrees, which reads T" in text
    assert "faulty" not in text


def test_nobody_is_an_answer_not_an_error(install: Any) -> None:
    install(plugin("acme", implementation("gla"), targets=("cpu",)))
    decision = explain("chunk_kda", device="cpu", backend="acme")
    assert decision.chosen is None
    assert decision.render().startswith("chunk_kda: no implementation\n")
    assert "no implementation of kda" in decision.render()


def test_a_faulty_verifier_is_shown_not_raised(install: Any) -> None:
    faulty = implementation("kda", verifier=lambda view: True)
    install(plugin("acme", faulty, targets=("cpu",)))
    decision = explain("chunk_kda", device="cpu", backend="acme")
    assert "faulty  INTERNAL verifier returned True" in decision.render()


def test_explaining_does_not_import_kernels(install: Any) -> None:
    lazy = implementation("kda", forward="no_such_module:forward")
    install(plugin("acme", lazy, targets=("cpu",)))
    assert explain("chunk_kda", device="cpu").chosen == "acme:kda#chunk"


def test_gradients_and_grouped_heads(install: Any) -> None:
    install(plugin("acme", implementation("kda", backward=None), targets=("cpu",)))
    assert explain("chunk_kda", device="cpu").chosen == "acme:kda#chunk"
    decision = explain("chunk_kda", device="cpu", gradients=True, H=2, HV=4)
    assert decision.chosen == "reference:kda#chunk"
    assert decision.view.gradients == {"q", "k", "v", "g", "beta"}
    assert "gva" in decision.view.features
    assert explain("chunk_kda", device="cpu", gradients=["q"]).view.gradients == {"q"}


def test_required_arguments_count(install: Any) -> None:
    ungated = implementation("gated_delta_rule", domain=domain("beta"))
    sketchy = implementation(
        "delta_rule", domain=domain("beta"), gradients=frozenset({"q", "k", "v"})
    )
    install(plugin("acme", ungated, sketchy, targets=("cpu",)))
    decision = explain("chunk_gated_delta_rule", device="cpu")
    assert decision.view.features == {"g", "beta"}
    assert "acme:gated_delta_rule#chunk       refused  FEATURE" in decision.render()
    decision = explain("chunk_delta_rule", device="cpu", gradients=True)
    assert decision.view.gradients == {"q", "k", "v", "beta"}
    assert "no gradient of beta" in decision.render()
    assert explain("delta_rule", device="cpu").view.features == frozenset()


def test_a_strength_of_value_channels_is_a_strength(install: Any) -> None:
    install(
        plugin(
            "acme", implementation("delta_rule", domain=domain("beta", "beta_v")), targets=("cpu",)
        )
    )
    decision = explain("fused_recurrent_delta_rule", device="cpu", features=["beta_v"])
    assert decision.view.features == {"beta", "beta_v"}
    assert decision.plan == "acme:delta_rule#chunk"


def test_a_decay_of_the_operators_own_has_no_gradient(install: Any) -> None:
    install()
    decision = explain("chunk_retention", device="cpu", gradients=True)
    assert decision.view.features == {"g_gamma"}
    assert decision.view.gradients == {"q", "k", "v"}


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"Q": 3}, "argument 'Q' is not valid"),
        ({"K": 0}, "expected  >= 1"),
        ({"dtype": "int8"}, "got       int8"),
        ({"features": ["l2nrom"]}, "'l2nrom' (did you mean l2norm?)"),
        ({"gradients": ["w"]}, "got       w"),
        ({"device": "cuda:x"}, "a device such as cuda or cuda:1"),
        ({"H": 3, "HV": 4}, "argument 'HV' is not valid\n  expected  H divides HV"),
        ({"B": 2, "features": ["varlen"]}, "1: packed sequences lie in one row"),
        ({"B": 2, "N": 3}, "2, the rows of a dense batch, or the feature varlen"),
    ],
)
def test_facts_are_checked(facts: dict[str, Any], text: str) -> None:
    with pytest.raises(ContractError) as caught:
        explain("chunk_kda", **{"device": "cpu", **facts})
    assert text in str(caught.value)


def test_policies_are_checked() -> None:
    with pytest.raises(PolicyError):
        explain("chunk_kda", device="cpu", backend="cuda,-acme")
