"""Metadata of a lowered call is that of the tensors which the lowerings make."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import implementation as declared
from fakes import plan, plugin
from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS
from fla_core.dispatch.lowered import fit
from fla_core.domain import AxisRange, Domain
from fla_core.verify import CallView

torch = pytest.importorskip("torch")

FILLED_IN = ("g", "gk", "beta")


@st.composite
def views(draw: st.DrawFn) -> tuple[Contract, CallView]:
    """A call by its metadata: any features that go together, any dtypes."""
    contract = CONTRACTS[draw(st.sampled_from(sorted(CONTRACTS)))]
    features = set(draw(st.sets(st.sampled_from(contract.features))))
    features -= {"varlen", "beta_v", "states", "lower_bound"}
    if features & {"A_log", "dt_bias", "gate"}:
        features |= {"gate", "A_log"} | ({"g"} & set(contract.features))
    if features & {"beta_sigmoid", "neg_eigval"} and "beta" in contract.features:
        features.add("beta")
    if "narrow_state" in features:
        features.add("initial_state")
    if "initial_z" in features:
        features.add("normalize")
    q = draw(st.sampled_from(("float16", "bfloat16", "float32", "float64")))
    state = "float64" if q == "float64" else "float32"
    dtypes = {}
    for spec in contract.inputs:
        if spec.optional and spec.name not in features:
            continue
        dtypes[spec.name] = {
            "activation": q,
            "state": "bfloat16" if "narrow_state" in features else state,
            "float": draw(st.sampled_from(("bfloat16", "float32", "float64"))),
        }[spec.dtype]
    heads = 4 if "gva" in features else 2
    sizes = {"B": 1, "T": 2, "H": 2, "HV": heads, "K": 3, "V": 5, "N": 1}
    return contract, CallView(
        contract.name, "chunk", "cpu", "", q, dtypes, sizes, frozenset(features)
    )


def _lowered_call(contract: Contract, view: CallView, fitted: Any) -> Any:
    from fla_core.call import Call
    from fla_core.lower import lower

    sizes = {**view.axes, "1": 1}
    tensors = dict.fromkeys(contract.input_names)
    for spec in contract.inputs:
        if spec.name in view.dtypes:
            letters = list(spec.axes)
            if "state_v_first" in view.features and letters[-2:] == ["K", "V"]:
                letters[-2:] = ["V", "K"]
            shape = [prod(sizes[x] or 0 for x in letter.split("*")) for letter in letters]
            tensors[spec.name] = torch.ones(shape, dtype=getattr(torch, view.dtypes[spec.name]))
    return lower(Call(contract, "chunk", tensors, 1.0, view.features), fitted.lowerings)[-1]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(views())
def test_dtypes_and_sizes_are_those_of_the_tensors(case: tuple[Contract, CallView]) -> None:
    contract, view = case
    removable = {n for low in contract.lowerings if not low.when_absent for n in low.features}
    features = dict.fromkeys(set(contract.features) - removable, "optional")
    features.update(dict.fromkeys(set(FILLED_IN) & features.keys(), "required"))
    fitted = fit(contract, Domain(features=features), view)  # type: ignore[arg-type]
    call = _lowered_call(contract, view, fitted)
    present = {name: tensor for name, tensor in call.tensors.items() if tensor is not None}
    assert {n: str(t.dtype).removeprefix("torch.") for n, t in present.items()} == (
        fitted.view.dtypes
    )
    assert (call.q.shape[2], call.q.shape[3]) == (fitted.view.axes["H"], fitted.view.axes["K"])
    assert call.v.shape[3] == fitted.view.axes["V"]
    assert call.features == fitted.view.features


@pytest.mark.filterwarnings("ignore::fla_core.errors.SelectionWarning")
def test_a_limit_on_v_counts_the_channels_of_the_normaliser(install: Any) -> None:
    base = dict.fromkeys(("varlen", "initial_state", "final_state"), "optional")
    narrow = Domain(("bfloat16", "float32"), {"V": AxisRange(1, 64)}, (), base)  # type: ignore[arg-type]
    install(plugin("acme", declared("linear_attn", domain=narrow)))
    assert plan("linear_attn", V=64).plugin == "acme"
    made = plan("linear_attn", V=64, features=("normalize",))
    assert made.plugin == "reference"
    assert "V=80, wants 1..64" in made.decision.render()
    assert plan("linear_attn", V=48, features=("normalize",)).plugin == "acme"


@pytest.mark.parametrize(
    ("dtype", "kernels"), [("float16", "float32"), ("bfloat16", "bfloat16"), ("float32", "float32")]
)
def test_only_bfloat16_has_the_range_of_a_normaliser(dtype: str, kernels: str) -> None:
    contract = CONTRACTS["linear_attn"]
    sizes = {"B": 1, "T": 2, "H": 2, "HV": 2, "K": 3, "V": 5, "N": 1}
    features = frozenset({"normalize"})
    view = CallView(
        "linear_attn", "chunk", "cpu", "", dtype, dict.fromkeys("qkv", dtype), sizes, features
    )
    base = Domain(features=dict.fromkeys(("initial_state", "final_state"), "optional"))  # type: ignore[arg-type]
    assert fit(contract, base, view).view.dtype == kernels
