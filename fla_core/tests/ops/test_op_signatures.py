"""Names, order and defaults of parameters: replacing an import is the whole migration."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from op_cases import (
    ALL_OPERATORS,
    CONTRACT_BY_NAME,
    KEYWORDS,
    Case,
    make_inputs,
    public_call,
)

import fla_core.ops
from fla_core import explain, ops
from fla_core.dispatch.runtime import sandbox
from fla_core.errors import ContractError
from fla_core.ops import gdn

R = "required"
QKV = {"q": R, "k": R, "v": R}
SCALE = {"scale": None}
STATE = {"scale": None, "initial_state": None, "output_final_state": False}
L2 = {"use_qk_l2norm_in_kernel": False}
V_FIRST = {"state_v_first": False}
CU = {"cu_seqlens": None}
CPU = {"cu_seqlens_cpu": None}
REVERSE = {"reverse": False}
LAYER = {"layer_idx": R, "num_layers": R}
GATE = {"use_gate_in_kernel": False}
BETA = {"use_beta_sigmoid_in_kernel": False, "allow_neg_eigval": False}
ATTENTIONS = {"scale": None, "output_attentions": False}

#: Positional parameters in order with their defaults; ``**`` where unknown keywords were swallowed.
SIGNATURES: dict[str, dict[str, Any]] = {
    "chunk_simple_gla": QKV
    | {"g": None, "g_gamma": None}
    | STATE
    | V_FIRST
    | CU
    | CPU
    | {"**": True},
    "fused_chunk_simple_gla": QKV | {"g": None, "g_gamma": None} | STATE | CU,
    "fused_recurrent_simple_gla": QKV
    | {"g": None, "g_gamma": None}
    | STATE
    | REVERSE
    | V_FIRST
    | CU
    | {"**": True},
    "parallel_simple_gla": QKV | {"g": None} | ATTENTIONS | CU | CPU,
    "chunk_linear_attn": QKV | STATE | {"normalize": True} | CU,
    "fused_chunk_linear_attn": QKV | STATE | {"normalize": True} | CU,
    "fused_recurrent_linear_attn": QKV | STATE | REVERSE | {"normalize": False} | CU,
    "chunk_retention": QKV | STATE | CU | {"**": True},
    "fused_chunk_retention": QKV | STATE | CU,
    "fused_recurrent_retention": QKV | STATE | REVERSE | V_FIRST | CU | {"**": True},
    "parallel_retention": QKV | ATTENTIONS | CU,
    "chunk_lightning_attn": QKV | LAYER | STATE | CU | {"**": True},
    "fused_recurrent_lightning_attn": QKV | LAYER | STATE | REVERSE | CU,
    "chunk_gla": QKV | {"g": R} | STATE | V_FIRST | CU | CPU,
    "fused_chunk_gla": QKV | {"g": R} | STATE | V_FIRST | CU | CPU,
    "fused_recurrent_gla": QKV
    | {"gk": None, "gv": None}
    | STATE
    | REVERSE
    | V_FIRST
    | CU
    | {"**": True},
    "chunk_delta_rule": QKV | {"beta": R} | STATE | L2 | CU | CPU | {"**": True},
    "fused_chunk_delta_rule": QKV | {"beta": R} | STATE | L2 | CU | CPU | {"**": True},
    "fused_recurrent_delta_rule": QKV | {"beta": None} | STATE | L2 | CU,
    "chunk_gated_delta_rule": QKV
    | {"g": R, "beta": R}
    | STATE
    | L2
    | BETA
    | V_FIRST
    | CU
    | CPU
    | {"chunk_indices": None, "cp_context": None, "**": True},
    "fused_recurrent_gated_delta_rule": QKV
    | {"g": None, "gk": None, "gv": None, "beta": None}
    | STATE
    | L2
    | GATE
    | {"A_log": None, "dt_bias": None}
    | BETA
    | V_FIRST
    | CU
    | {"**": True},
    "chunk_kda": QKV
    | {"g": R, "beta": R}
    | STATE
    | L2
    | GATE
    | BETA
    | {
        "safe_gate": False,
        "lower_bound": None,
        "disable_recompute": False,
        "return_intermediate_states": False,
    }
    | V_FIRST
    | CU
    | CPU
    | {"cp_context": None, "use_graph": False, "max_num_seqs": None, "**": True},
    "fused_recurrent_kda": QKV
    | {"g": R, "beta": R, "A_log": None, "dt_bias": None}
    | STATE
    | L2
    | GATE
    | BETA
    | {"lower_bound": None}
    | V_FIRST
    | CU
    | {"**": True},
    "chunk_gdn2": QKV
    | {"g": R, "b": R, "w": R}
    | STATE
    | L2
    | GATE
    | CU
    | CPU
    | {
        "safe_gate": False,
        "lower_bound": None,
        "disable_recompute": False,
        "return_intermediate_states": False,
    }
    | V_FIRST
    | {"cp_context": None, "**": True},
    "fused_recurrent_gdn2": QKV
    | {"g": R, "b": R, "w": R, "A_log": None, "dt_bias": None}
    | STATE
    | L2
    | GATE
    | {"lower_bound": None}
    | V_FIRST
    | CU
    | {"**": True},
}
#: What used to come through ``**kwargs`` is named, so that callers who filter by signature keep it.
NAMED = {
    "chunk_simple_gla": ("chunk_size",),
    "chunk_retention": ("chunk_size",),
    "chunk_lightning_attn": ("chunk_size",),
    "chunk_delta_rule": ("chunk_size",),
    "fused_chunk_delta_rule": ("chunk_size",),
    "chunk_gated_delta_rule": ("use_gate_in_kernel", "A_log", "dt_bias", "chunk_size"),
    "chunk_kda": ("A_log", "dt_bias", "chunk_size"),
    "chunk_gdn2": ("A_log", "dt_bias", "chunk_size"),
}
#: States in the slots of a pool, under the names that serving engines use.
POOL = {
    "ssm_state_indices": None,
    "num_accepted_tokens": None,
    "inplace_final_state": False,
    "check_state_indices": True,
}
POOLED = tuple(
    f"fused_recurrent_{name}" for name in ("delta_rule", "gated_delta_rule", "kda", "gdn2")
)
ALIASES = {
    "chunk_gdn": "chunk_gated_delta_rule",
    "fused_recurrent_gdn": "fused_recurrent_gated_delta_rule",
}
FLOAT32 = {"output_dtype": torch.float32}
#: Helpers that belong to a family's module.
HELPERS: dict[tuple[str, str], dict[str, Any]] = {
    ("gated_delta_rule", "naive_recurrent_gated_delta_rule"): QKV | {"beta": R, "g": R} | STATE,
    ("gated_delta_rule", "naive_chunk_gated_delta_rule"): QKV
    | {"g": R, "beta": R, "chunk_size": 64}
    | STATE,
    ("gated_delta_rule", "fused_gdn_gate"): {"g": R, "A_log": R, "dt_bias": None} | FLOAT32,
    ("kda", "fused_kda_gate"): {"g": R, "A_log": None, "dt_bias": None, "lower_bound": None}
    | FLOAT32,
    ("gdn2", "naive_recurrent_gdn2"): QKV | {"g": R, "b": R, "w": R} | STATE,
    ("gdn2", "naive_chunk_gdn2"): QKV | {"g": R, "b": R, "w": R} | STATE | {"chunk_size": 64},
}


def positional(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {
        p.name: R if p.default is p.empty else p.default
        for p in parameters
        if p.kind is p.POSITIONAL_OR_KEYWORD
    }


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_and_defaults(name: str) -> None:
    function = getattr(ops, name)
    wanted = dict(SIGNATURES[name])
    open_ended = wanted.pop("**", False)
    found = positional(function)
    assert list(found.items()) == list(wanted.items())
    kinds = {p.kind for p in inspect.signature(function).parameters.values()}
    assert (inspect.Parameter.VAR_KEYWORD in kinds) == open_ended
    assert inspect.Parameter.VAR_POSITIONAL not in kinds


@pytest.mark.parametrize("name", SIGNATURES)
def test_additions_are_keywords_after_the_rest(name: str) -> None:
    parameters = inspect.signature(getattr(ops, name)).parameters.values()
    extra = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    pool = tuple(POOL) if name in POOLED else ()
    assert [p.name for p in extra] == [*NAMED.get(name, ()), *pool, "backend"]
    for p in extra:
        assert p.default is {**POOL, "use_gate_in_kernel": False}.get(p.name)


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_parameter_is_annotated_and_every_operator_explained(name: str) -> None:
    function = getattr(ops, name)
    signature = inspect.signature(function)
    assert all(p.annotation is not p.empty for p in signature.parameters.values())
    assert signature.return_annotation is not signature.empty
    assert function.__doc__


def test_the_table_is_complete() -> None:
    assert sorted({*SIGNATURES, *ALIASES}) == sorted(ops.__all__)
    assert ops.__all__ == sorted(set(ops.__all__))
    for alias, name in ALIASES.items():
        assert getattr(ops, alias) is getattr(ops, name)
        assert getattr(gdn, alias) is getattr(ops, name)


@pytest.mark.parametrize(("module", "name"), HELPERS)
def test_helpers(module: str, name: str) -> None:
    function = getattr(getattr(fla_core.ops, module), name)
    assert list(positional(function).items()) == list(HELPERS[module, name].items())


@pytest.mark.parametrize("name", ALL_OPERATORS)
def test_explain_takes_what_a_signature_asks_for(name: str, tmp_path: Path) -> None:
    asked = [p for p, value in positional(getattr(ops, name)).items() if value is R]
    args = tuple("gk" if p == "g" and CONTRACT_BY_NAME[name] == "gla" else p for p in asked)
    case = Case(name, args=args, flags=(), T=3)
    inputs = make_inputs(case)
    for tensor in inputs.values():
        tensor.requires_grad_()
    trace = tmp_path / "trace.jsonl"
    with sandbox(environ={"FLA_TRACE": f"decisions:{trace}"}):
        public_call(case, inputs)
        made = json.loads(trace.read_text().splitlines()[0])
        said = explain(name, device="cpu", dtype="fp64", gradients=True).to_json()
    for key in ("features", "form", "plan", "dtypes", "gradients"):
        assert said[key] == made[key], key


TOGETHER = {
    "chunk_kda": ("gate", "lower_bound", "A_log", "dt_bias", "beta_sigmoid", "neg_eigval"),
    "fused_recurrent_gdn": ("g", "gate", "A_log", "beta", "beta_sigmoid", "neg_eigval"),
    "chunk_gdn2": ("gate", "lower_bound", "A_log", "dt_bias", "states"),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_explain_takes_the_features_that_the_operator_takes(name: str) -> None:
    """Every subset; but a bound without its gate the operator takes and does not look at."""
    for chosen in product((False, True), repeat=len(TOGETHER[name])):
        features = {f for f, on in zip(TOGETHER[name], chosen, strict=True) if on}
        if "lower_bound" in features and "gate" not in features:
            with pytest.raises(ContractError, match="gate beside lower_bound"):
                explain(name, device="cpu", features=features)
            continue
        # Of a chunk form g and beta are asked for, as of GDN-2 b and w.
        args = tuple(n for n in ("g", "gk", "beta", "A_log", "dt_bias") if n in features)
        args += ("beta",) if name == "chunk_kda" else ()
        flags = tuple(f for f in features if f in KEYWORDS)
        bound = -5.0 if "lower_bound" in features else None
        case = Case(name, args, flags, T=3, lower_bound=bound)
        called = takes(public_call, case, make_inputs(case))
        assert takes(explain, name, device="cpu", features=features) == called, features


def takes(function: Callable[..., object], *args: Any, **facts: Any) -> bool:
    try:
        function(*args, **facts)
    except ContractError:
        return False
    return True


def test_explain_refuses_gradients_of_intermediate_states_as_the_operator_does() -> None:
    assert explain("chunk_kda", device="cpu", features=["states"]).chosen
    with pytest.raises(ContractError, match="none beside states"):
        explain("chunk_kda", device="cpu", features=["states"], gradients=True)
    case = Case("chunk_kda", ("beta",), ("states",), T=3)
    inputs = make_inputs(case)
    inputs["v"].requires_grad_()
    with pytest.raises(ContractError, match="without gradients"):
        public_call(case, inputs)
