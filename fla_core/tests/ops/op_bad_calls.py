"""Calls that no operator takes, each with what its error has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from op_cases import Case
from torch import Tensor

from fla_core.errors import ContractError, DtypeError, RemovedKeywordError

STATE = ("initial_state",)
DENSE = {"B": 2, "T": 6, "H": 2, "HV": 2, "K": 5, "V": 3, "dtype": torch.float32}
PACKED = {**DENSE, "lens": (2, 0, 4)}


@dataclass(frozen=True, slots=True)
class Row:
    """A call with some keywords replaced, and what its error must say."""

    case: Case
    bad: dict[str, Any]
    error: type[Exception]
    argument: str
    expected: str = ""
    got: str = ""


def ints(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


GLA = Case("chunk_simple_gla", ("g", *STATE), **DENSE)
GLA_PACKED = Case("chunk_simple_gla", ("g", *STATE), **PACKED)
DELTA = Case("chunk_delta_rule", ("beta", *STATE), **DENSE)
GDN = Case("chunk_gdn", ("g", "beta", *STATE), **DENSE)
GDN_RECURRENT = Case("fused_recurrent_gdn", ("g", "beta", *STATE), **DENSE)
KDA = Case("chunk_kda", ("beta", *STATE), **DENSE)
KDA_PACKED = Case("chunk_kda", ("beta", *STATE), **PACKED)
KDA_RECURRENT = Case("fused_recurrent_kda", ("beta", *STATE), **DENSE)
KDA_GATE = Case("chunk_kda", ("beta", "A_log"), ("gate",), **DENSE)
GDN2 = Case("chunk_gdn2", STATE, **DENSE)
LINEAR = Case("chunk_linear_attn", STATE, ("final_state",), **DENSE)
NORMAL = Case("chunk_linear_attn", ("initial_state",), ("normalize",), **DENSE)
LIGHT = Case("chunk_lightning_attn", STATE, **DENSE)
PARALLEL = Case("parallel_simple_gla", ("g",), (), **PACKED)
RETENTION = Case("parallel_retention", (), (), **PACKED)


ROWS = {
    # boundaries
    "packed rows": Row(GLA, {"cu_seqlens": ints(0, 6)}, ContractError, "q", "batch size 1", "2"),
    "falling": Row(
        GLA_PACKED,
        {"cu_seqlens": ints(0, 4, 2, 6)},
        ContractError,
        "cu_seqlens",
        "never fall",
        "cu_seqlens[1] = 4 > cu_seqlens[2] = 2",
    ),
    "first not 0": Row(
        GLA_PACKED, {"cu_seqlens": ints(1, 2, 3, 6)}, ContractError, "cu_seqlens", "start at 0", "1"
    ),
    "negative": Row(
        GLA_PACKED, {"cu_seqlens": ints(0, -1, 2, 6)}, ContractError, "cu_seqlens", "fall", "-1"
    ),
    "short": Row(
        GLA_PACKED, {"cu_seqlens": ints(0, 2, 2, 5)}, ContractError, "cu_seqlens", "T = 6", "5"
    ),
    "long": Row(
        GLA_PACKED, {"cu_seqlens": ints(0, 2, 2, 7)}, ContractError, "cu_seqlens", "T = 6", "7"
    ),
    "sparse boundaries": Row(
        GLA_PACKED,
        {"cu_seqlens": ints(0, 2, 2, 6).to_sparse()},
        DtypeError,
        "cu_seqlens",
        "dense",
        "sparse_coo",
    ),
    "float boundaries": Row(
        GLA_PACKED,
        {"cu_seqlens": ints(0, 2, 2, 6).float()},
        DtypeError,
        "cu_seqlens",
        "int32 or int64",
        "float32",
    ),
    "bool boundaries": Row(
        GLA_PACKED, {"cu_seqlens": ints(0, 1).bool()}, DtypeError, "cu_seqlens", "int32", "bool"
    ),
    "two dimensions": Row(
        GLA_PACKED,
        {"cu_seqlens": ints(0, 2, 2, 6)[None]},
        ContractError,
        "cu_seqlens",
        "[N+1]",
        "[1, 4]",
    ),
    "no entries": Row(
        GLA_PACKED, {"cu_seqlens": ints()}, ContractError, "cu_seqlens", "[N+1]", "[0]"
    ),
    "boundaries in a list": Row(
        GLA_PACKED, {"cu_seqlens": [0, 2, 2, 6]}, DtypeError, "cu_seqlens", "tensor", "list"
    ),
    "boundaries elsewhere": Row(
        GLA_PACKED,
        {"cu_seqlens": ints(0, 2, 2, 6).to("meta")},
        ContractError,
        "cu_seqlens",
        "cpu",
        "meta",
    ),
    "host copy of another shape": Row(
        GLA_PACKED, {"cu_seqlens_cpu": ints(0, 2, 6)}, ContractError, "cu_seqlens_cpu", "[4]", "[3]"
    ),
    "host copy of other values": Row(
        GLA_PACKED,
        {"cu_seqlens_cpu": ints(0, 2, 3, 6)},
        ContractError,
        "cu_seqlens_cpu",
        "values of cu_seqlens",
        "3",
    ),
    "host copy in a list": Row(
        GLA_PACKED, {"cu_seqlens_cpu": [0, 2, 2, 6]}, DtypeError, "cu_seqlens_cpu", "int32", "list"
    ),
    "host copy of floats": Row(
        GLA_PACKED,
        {"cu_seqlens_cpu": ints(0, 2, 2, 6).double()},
        DtypeError,
        "cu_seqlens_cpu",
        "int32 or int64",
        "float64",
    ),
    "host copy alone": Row(
        GLA, {"cu_seqlens_cpu": ints(0, 6)}, ContractError, "cu_seqlens", "cu_seqlens_cpu", "None"
    ),
    "one sequence more than states": Row(
        GLA_PACKED,
        {"cu_seqlens": ints(0, 2, 2, 4, 6)},
        ContractError,
        "initial_state",
        "[4, 2, 5, 3]",
        "[3, 2, 5, 3]",
    ),
    # states and heads
    "state turned": Row(
        GLA,
        {"initial_state": torch.zeros(2, 2, 3, 5)},
        ContractError,
        "initial_state",
        "[2, 2, 5, 3]",
    ),
    "state not turned": Row(
        GLA, {"state_v_first": True}, ContractError, "initial_state", "[N, H, V, K]", "[2, 2, 5, 3]"
    ),
    "three value heads on two": Row(
        GDN,
        {
            "v": torch.zeros(2, 6, 3, 3),
            "g": torch.zeros(2, 6, 3),
            "beta": torch.zeros(2, 6, 3),
            "initial_state": None,
        },
        ContractError,
        "v",
        "H divides HV",
        "H = 2, HV = 3",
    ),
    "fewer value heads": Row(
        KDA,
        {
            "v": torch.zeros(2, 6, 1, 3),
            "g": torch.zeros(2, 6, 1, 5),
            "beta": torch.zeros(2, 6, 1),
            "initial_state": None,
        },
        ContractError,
        "v",
        "H divides HV",
        "HV = 1",
    ),
    "no channels": Row(
        GLA,
        {"q": torch.zeros(2, 6, 2, 0), "k": torch.zeros(2, 6, 2, 0), "initial_state": None},
        ContractError,
        "q",
        "K >= 1",
        "K = 0",
    ),
    "half precision of two kinds": Row(
        GLA, {"k": torch.zeros(2, 6, 2, 5).half()}, DtypeError, "k", "float32", "float16"
    ),
    "bytes": Row(
        GLA, {"q": torch.zeros(2, 6, 2, 5, dtype=torch.float8_e4m3fn)}, DtypeError, "q", "float16"
    ),
    "gate of bytes": Row(
        GLA, {"g": torch.zeros(2, 6, 2).to(torch.float8_e4m3fn)}, DtypeError, "g", "16 bits", "e4m3"
    ),
    "rate of bytes": Row(
        KDA_GATE, {"A_log": torch.zeros(2).to(torch.float8_e5m2)}, DtypeError, "A_log", "16 bits"
    ),
    "complex": Row(GLA, {"q": torch.zeros(2, 6, 2, 5).cfloat()}, DtypeError, "q", "float16"),
    # numbers
    "scale not finite": Row(GLA, {"scale": float("nan")}, ContractError, "scale", "finite", "nan"),
    "scale infinite": Row(GLA, {"scale": float("inf")}, ContractError, "scale", "finite", "inf"),
    "scale beyond floats": Row(GLA, {"scale": 10**400}, ContractError, "scale", "finite", "int"),
    "scale in words": Row(GLA, {"scale": "auto"}, DtypeError, "scale", "number", "auto"),
    "scale a flag": Row(GLA, {"scale": True}, DtypeError, "scale", "number", "True"),
    "scale a tensor": Row(GLA, {"scale": torch.ones(())}, DtypeError, "scale", "number", "tensor"),
    "layer in words": Row(LIGHT, {"layer_idx": "1"}, DtypeError, "layer_idx", "int", "'1'"),
    "layer absent": Row(LIGHT, {"layer_idx": None}, DtypeError, "layer_idx", "int", "None"),
    "half a layer": Row(LIGHT, {"layer_idx": 1.5}, DtypeError, "layer_idx", "int", "1.5"),
    "layer beyond": Row(LIGHT, {"layer_idx": 5}, ContractError, "layer_idx", "0..", "5"),
    "layer negative": Row(LIGHT, {"layer_idx": -1}, ContractError, "layer_idx", "0..", "-1"),
    "no layers": Row(LIGHT, {"num_layers": 0}, ContractError, "num_layers", "at least 1", "0"),
    "chunk of 48": Row(GLA, {"chunk_size": 48}, ContractError, "chunk_size", "power of two", "48"),
    "chunk of 0": Row(GLA, {"chunk_size": 0}, ContractError, "chunk_size", "power of two", "0"),
    "chunk of 128": Row(DELTA, {"chunk_size": 128}, ContractError, "chunk_size", "16 | 32", "128"),
    "chunk of 16": Row(KDA, {"chunk_size": 16}, ContractError, "chunk_size", "32 | 64", "16"),
    "chunk in words": Row(KDA, {"chunk_size": "32"}, DtypeError, "chunk_size", "int", "'32'"),
    "chunk fractional": Row(GDN, {"chunk_size": 32.0}, DtypeError, "chunk_size", "int", "32.0"),
    # gates and beta
    "rate without gate": Row(
        KDA, {"A_log": torch.zeros(2)}, ContractError, "A_log", "use_gate_in_kernel=True", "False"
    ),
    "bias without gate": Row(
        GDN_RECURRENT,
        {"dt_bias": torch.zeros(2)},
        ContractError,
        "dt_bias",
        "use_gate_in_kernel=True",
        "False",
    ),
    "gate without rate": Row(
        GDN,
        {"use_gate_in_kernel": True},
        ContractError,
        "A_log",
        "[HV], under use_gate_in_kernel=True",
        "None",
    ),
    "gate without rate or bound": Row(
        KDA_RECURRENT,
        {"use_gate_in_kernel": True},
        ContractError,
        "A_log",
        "[HV], or lower_bound, under use_gate_in_kernel=True",
        "None",
    ),
    "gate without logits": Row(
        GDN_RECURRENT,
        {"use_gate_in_kernel": True, "A_log": torch.zeros(2), "g": None},
        DtypeError,
        "g",
        "[B, T, HV]",
        "None",
    ),
    "sigmoid of nothing": Row(
        GDN_RECURRENT,
        {"use_beta_sigmoid_in_kernel": True, "beta": None},
        DtypeError,
        "beta",
        "logits",
        "None",
    ),
    "negative eigenvalues": Row(
        GDN,
        {"allow_neg_eigval": True},
        ContractError,
        "allow_neg_eigval",
        "use_beta_sigmoid_in_kernel=True",
        "False",
    ),
    "bound positive": Row(
        KDA_GATE, {"lower_bound": 0.5}, ContractError, "lower_bound", "below 0", "0.5"
    ),
    "bound zero": Row(
        KDA_GATE, {"lower_bound": -0.0}, ContractError, "lower_bound", "below 0", "0.0"
    ),
    "bound infinite": Row(
        KDA_GATE, {"lower_bound": -float("inf")}, ContractError, "lower_bound", "finite", "-inf"
    ),
    "bound beyond floats": Row(
        KDA_GATE, {"lower_bound": -(10**400)}, ContractError, "lower_bound", "finite", "int"
    ),
    "bound not a number": Row(
        KDA_GATE, {"lower_bound": float("nan")}, ContractError, "lower_bound", "finite", "nan"
    ),
    "bound in words": Row(
        KDA_GATE, {"lower_bound": "-5"}, DtypeError, "lower_bound", "number", "-5"
    ),
    "safe without bound": Row(
        KDA_GATE, {"safe_gate": True}, ContractError, "lower_bound", "[-5, 0)", "None"
    ),
    "safe beyond -5": Row(
        KDA_GATE,
        {"safe_gate": True, "lower_bound": -5.5},
        ContractError,
        "lower_bound",
        "[-5, 0)",
        "-5.5",
    ),
    # modes of KDA
    "states with gradients": Row(
        KDA,
        {"return_intermediate_states": True, "q": torch.zeros(2, 6, 2, 5, requires_grad=True)},
        ContractError,
        "return_intermediate_states",
        "no_grad",
        "q",
    ),
    "states and kept intermediates": Row(
        KDA,
        {"return_intermediate_states": True, "disable_recompute": True},
        ContractError,
        "disable_recompute",
        "return_intermediate_states",
        "True",
    ),
    "graph without boundaries": Row(
        KDA, {"use_graph": True}, ContractError, "cu_seqlens", "use_graph", "None"
    ),
    "graph with a list": Row(
        KDA_PACKED,
        {"use_graph": True, "cu_seqlens": [0, 2, 2, 6]},
        DtypeError,
        "cu_seqlens",
        "int32",
        "list",
    ),
    "graph of another size": Row(
        KDA_PACKED,
        {"use_graph": True, "max_num_seqs": 7},
        ContractError,
        "cu_seqlens",
        "8",
        "4 entries",
    ),
    "graph of words": Row(
        KDA_PACKED,
        {"use_graph": True, "max_num_seqs": "3"},
        DtypeError,
        "max_num_seqs",
        "int",
        "'3'",
    ),
    "graph and kept intermediates": Row(
        KDA_PACKED,
        {"use_graph": True, "disable_recompute": True},
        ContractError,
        "disable_recompute",
        "use_graph",
        "True",
    ),
    # GDN-2
    "gdn2 chunk of 32": Row(GDN2, {"chunk_size": 32}, ContractError, "chunk_size", "64", "32"),
    "gdn2 writing for each head": Row(
        GDN2, {"w": torch.zeros(2, 6, 2)}, ContractError, "w", "[B, T, HV, V]", "[2, 6, 2]"
    ),
    "gdn2 erasing for value channels": Row(
        GDN2, {"b": torch.zeros(2, 6, 2, 3)}, ContractError, "b", "[B, T, HV, K]", "[2, 6, 2, 3]"
    ),
    "gdn2 states and kept intermediates": Row(
        GDN2,
        {"return_intermediate_states": True, "disable_recompute": True},
        ContractError,
        "disable_recompute",
        "return_intermediate_states",
        "True",
    ),
    # tuples, both layouts, removed and unread arguments
    "a pair without normaliser": Row(
        LINEAR, {"initial_state": (None, None)}, ContractError, "initial_state", "one tensor", "a t"
    ),
    "three members": Row(
        NORMAL, {"initial_state": (None,) * 3}, ContractError, "initial_state", "pair", "3 members"
    ),
    "both decays": Row(
        Case("fused_chunk_simple_gla", ("g",), **DENSE),
        {"g_gamma": torch.zeros(2)},
        ContractError,
        "g_gamma",
        "not both",
        "both",
    ),
    "both layout names": Row(
        GDN,
        {"state_v_first": True, "transpose_state_layout": True, "initial_state": None},
        ContractError,
        "transpose_state_layout",
        "not both",
        "both",
    ),
    "head first": Row(
        GLA, {"head_first": False}, RemovedKeywordError, "head_first", "[B, T, H, D]", "False"
    ),
    "table of chunks": Row(
        GDN, {"chunk_indices": ints(0, 1)}, ContractError, "chunk_indices", "[NT, 2]", "[2]"
    ),
    "table of chunks in a list": Row(
        GDN, {"chunk_indices": [[0, 0]]}, DtypeError, "chunk_indices", "[NT, 2]", "list"
    ),
    "attentions of packed sequences": Row(
        PARALLEL, {"output_attentions": True}, ContractError, "output_attentions", "False", "True"
    ),
    "attentions of packed retention": Row(
        RETENTION, {"output_attentions": True}, ContractError, "output_attentions", "False", "True"
    ),
    "policy of another kind": Row(GLA, {"backend": 5}, DtypeError, "backend", "policy", "5"),
}
