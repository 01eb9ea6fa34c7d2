"""Calls that break a contract: a clear error before any work, and no trace of it afterwards."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from op_cases import Case, keywords, make_inputs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fla_core import ops
from fla_core.errors import ContractError, DtypeError, RemovedKeywordError, UnsupportedError

STATE = ("initial_state",)
DENSE = {"B": 2, "T": 6, "H": 2, "HV": 2, "K": 5, "V": 3, "dtype": torch.float32}
PACKED = {**DENSE, "lens": (2, 0, 4)}

#: For every contract a call with every argument, which is then spoilt.
FULL = {
    "linear_attn": Case(
        "chunk_linear_attn",
        ("initial_state", "initial_z"),
        ("final_state", "normalize"),
        **DENSE,
    ),
    "simple_gla": Case("chunk_simple_gla", ("g", "g_gamma", *STATE), **DENSE),
    "gla": Case("fused_recurrent_gla", ("gk", "gv", *STATE), **DENSE),
    "gla chunk": Case("chunk_gla", ("gk", *STATE), **DENSE),
    "delta_rule": Case("chunk_delta_rule", ("beta", *STATE), **DENSE),
    "gated_delta_rule": Case(
        "fused_recurrent_gated_delta_rule",
        ("g", "gk", "gv", "beta", "A_log", "dt_bias", *STATE),
        ("final_state", "gate"),
        **DENSE,
    ),
    "kda": Case(
        "chunk_kda", ("beta", "A_log", "dt_bias", *STATE), ("final_state", "gate"), **DENSE
    ),
}
Spoil = Callable[[Tensor], Any]
FAULTS: dict[str, tuple[Spoil, type[ContractError], str]] = {
    "rank": (lambda x: x[..., None, None], ContractError, "shape ["),
    "size": (
        lambda x: torch.cat([x, x[:, :1]], 1) if x.dim() > 2 else torch.cat([x, x[:1]]),
        ContractError,
        "shape [",
    ),
    "integers": (lambda x: x.long(), DtypeError, "int64"),
    "device": (lambda x: x.to("meta"), ContractError, "meta"),
    "list": (lambda x: x.tolist(), DtypeError, "list"),
    "array": (lambda x: x.numpy(), DtypeError, "array"),
    "sparse": (lambda x: x.to_sparse(), DtypeError, "sparse"),
    "double": (lambda x: x.double(), DtypeError, "float64"),
}
#: Not faults: sizes of q bind the letters; gates may be wide; A_log of KDA may have any shape.
LEGAL = {
    *(("size", name) for name in ("q",)),
    *(("double", name) for name in ("q", "g", "gk", "gv", "beta", "A_log", "dt_bias", "g_gamma")),
    *(("double", name) for name in ("initial_z",)),
    ("rank", "kda:A_log"),
    ("device", "q"),
}


class NoArithmetic(TorchDispatchMode):
    """Fails on any operation that makes a floating point tensor."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = isinstance(result, Tensor) and result.is_floating_point()
        assert not made, f"{func} ran before the call was refused"
        return result


@contextmanager
def refused(
    case: Case, expected: type[Exception], early: bool = True
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block raises, without arithmetic if ``early``; then the sound call works as before."""
    inputs = make_inputs(case)
    call = getattr(ops, case.op)
    before = flat(call(**keywords(case, inputs)))
    with pytest.raises(expected) as caught, NoArithmetic() if early else nullcontext():
        yield caught
    after = flat(call(**keywords(case, inputs)))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def flat(result: Any) -> list[Tensor]:
    if isinstance(result, tuple):
        return [t for part in result for t in flat(part)]
    return [] if result is None else [result]


def spoilt(case: Case, name: str, spoil: Spoil) -> tuple[str, dict[str, Any]]:
    """Keywords with one tensor spoilt, and what the operator calls that tensor."""
    given = keywords(case, inputs := make_inputs(case))
    if case.contract == "linear_attn" and name.startswith("initial"):
        members = {n: spoil(inputs[n]) if n == name else inputs[n] for n in inputs}
        given["initial_state"] = (members["initial_state"], members["initial_z"])
        return "initial_state[1]" if name == "initial_z" else "initial_state", given
    shown = "g" if case.op == "chunk_gla" and name == "gk" else name
    return shown, given | {shown: spoil(inputs[name])}


@pytest.mark.parametrize(
    ("contract", "name", "fault"),
    [
        (contract, name, fault)
        for contract, case in FULL.items()
        for name in case.given
        for fault in FAULTS
        if not {(fault, name), (fault, f"{contract}:{name}")} & LEGAL
    ],
)
def test_a_spoilt_tensor_is_named(contract: str, name: str, fault: str) -> None:
    case = FULL[contract]
    spoil, kind, got = FAULTS[fault]
    shown, bad = spoilt(case, name, spoil)
    operator = getattr(ops, case.op)
    with refused(case, kind, early=fault != "sparse") as caught:
        operator(**bad)
    error = caught.value
    assert error.argument == shown
    assert got in error.got
    assert error.expected
    for part in (case.op, repr(shown), error.expected, error.got):
        assert part in str(error)
    assert len(str(error)) < 500
    assert isinstance(error, ValueError)
    assert isinstance(error, TypeError) == (kind is DtypeError)


@pytest.mark.parametrize(
    ("contract", "name"),
    [
        (c, spec)
        for c, case in FULL.items()
        for spec in case.given
        if spec in ("q", "k", "v")
        or (c, spec) in (("gla chunk", "gk"), ("delta_rule", "beta"), ("kda", "g"), ("kda", "beta"))
        or (c, spec) in (("gated_delta_rule", "g"), ("gated_delta_rule", "A_log"), ("kda", "A_log"))
    ],
)
def test_a_required_tensor_that_is_none(contract: str, name: str) -> None:
    case = FULL[contract]
    shown, bad = spoilt(case, name, lambda _: None)
    with refused(case, ContractError) as caught:
        getattr(ops, case.op)(**bad)
    assert caught.value.argument == shown
    assert caught.value.got == "None"


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
    "complex": Row(GLA, {"q": torch.zeros(2, 6, 2, 5).cfloat()}, DtypeError, "q", "float16"),
    # numbers
    "scale not finite": Row(GLA, {"scale": float("nan")}, ContractError, "scale", "finite", "nan"),
    "scale infinite": Row(GLA, {"scale": float("inf")}, ContractError, "scale", "finite", "inf"),
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
        GDN, {"use_gate_in_kernel": True}, ContractError, "A_log", "[HV]", "None"
    ),
    "gate without rate or bound": Row(
        KDA_RECURRENT, {"use_gate_in_kernel": True}, ContractError, "A_log", "[HV]", "None"
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


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_bad_call_says_what_and_why(row: Row) -> None:
    good = keywords(row.case, make_inputs(row.case))
    with refused(row.case, row.error) as caught:
        getattr(ops, row.case.op)(**good | row.bad)
    error = caught.value
    assert type(error) is row.error
    assert error.argument == row.argument
    assert row.expected in error.expected
    assert row.got in error.got
    assert row.case.op.removesuffix("gdn") in str(error)


UNKNOWN = {
    "misspelt": (GDN, "use_qk_l2norm", "did you mean 'use_qk_l2norm_in_kernel'"),
    "of another operator": (GLA, "beta", "unexpected keyword argument 'beta'"),
    "head_first where it never was": (
        Case("chunk_gla", ("gk",), **DENSE),
        "head_first",
        "unexpected keyword argument 'head_first'",
    ),
    "normalize of retention": (
        Case("chunk_retention", (), **DENSE),
        "normalize",
        "unexpected keyword argument 'normalize'",
    ),
}


@pytest.mark.parametrize(("case", "name", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_keyword_is_an_error(case: Case, name: str, message: str) -> None:
    good = keywords(case, make_inputs(case))
    with refused(case, TypeError) as caught:
        getattr(ops, case.op)(**good, **{name: True})
    assert message in str(caught.value)


@pytest.mark.parametrize("case", [GDN, KDA], ids=["gdn", "kda"])
def test_context_parallelism_is_not_offered(case: Case) -> None:
    good = keywords(case, make_inputs(case))
    with refused(case, UnsupportedError) as caught:
        getattr(ops, case.op)(**good, cp_context=object())
    assert isinstance(caught.value, NotImplementedError)
    assert "cp_context" in str(caught.value)


def test_the_old_layout_name_warns_and_works() -> None:
    inputs = make_inputs(GDN)
    good = keywords(GDN, inputs) | {"initial_state": inputs["initial_state"].transpose(-1, -2)}
    want = ops.chunk_gdn(**good, state_v_first=True)
    with pytest.warns(DeprecationWarning, match="state_v_first"):
        got = ops.chunk_gdn(**good, transpose_state_layout=True)
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_delta_rule_has_one_layout() -> None:
    good = keywords(DELTA, make_inputs(DELTA))
    with (
        refused(DELTA, UnsupportedError),
        pytest.warns(DeprecationWarning, match="now state_v_first"),
    ):
        ops.chunk_delta_rule(**good, transpose_state_layout=True)


def test_a_removed_keyword_is_also_a_deprecation() -> None:
    good = keywords(GLA, make_inputs(GLA))
    with pytest.raises(DeprecationWarning, match="head_first"):
        ops.chunk_simple_gla(**good, head_first=True)


def test_a_backend_that_is_not_there() -> None:
    good = keywords(GLA, make_inputs(GLA))
    with refused(GLA, ValueError) as caught:
        ops.chunk_simple_gla(**good, backend="nonesuch")
    assert "nonesuch" in str(caught.value)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_errors_survive_copying(copied: Callable[[Exception], Exception]) -> None:
    for row in (ROWS["falling"], ROWS["scale in words"], ROWS["head first"]):
        good = keywords(row.case, make_inputs(row.case))
        with pytest.raises(row.error) as caught:
            getattr(ops, row.case.op)(**good | row.bad)
        twin = copied(caught.value)
        assert type(twin) is row.error
        assert str(twin) == str(caught.value)
        assert twin.argument == row.argument
    with pytest.raises(UnsupportedError) as caught:
        ops.chunk_kda(**keywords(KDA, make_inputs(KDA)), cp_context=1)
    assert str(copied(caught.value)) == str(caught.value)


def test_boundaries_changed_in_place_are_checked_again() -> None:
    inputs = make_inputs(GLA_PACKED)
    call = keywords(GLA_PACKED, inputs)
    cu = call["cu_seqlens"]
    first = ops.chunk_simple_gla(**call)
    cu[1] = 4
    with pytest.raises(ContractError) as caught:
        ops.chunk_simple_gla(**call)
    assert caught.value.argument == "cu_seqlens"
    cu.copy_(torch.tensor([0, 1, 3, 6]))
    moved = ops.chunk_simple_gla(**call)
    fresh = ops.chunk_simple_gla(**call | {"cu_seqlens": cu.clone()})
    assert torch.equal(moved[0], fresh[0])
    assert not torch.equal(moved[0], first[0])


def test_boundaries_made_in_inference_mode_are_read_anew() -> None:
    call = keywords(GLA_PACKED, make_inputs(GLA_PACKED))
    with torch.inference_mode():
        cu = torch.tensor([0, 2, 2, 6])
        first = ops.chunk_simple_gla(**call | {"cu_seqlens": cu})
        cu.copy_(torch.tensor([0, 1, 3, 6]))
        second = ops.chunk_simple_gla(**call | {"cu_seqlens": cu})
    assert not torch.equal(first[0], second[0])


def test_boundaries_of_one_length_do_not_pass_for_another() -> None:
    long = make_inputs(GLA_PACKED)
    cu = torch.tensor([0, 2, 2, 6])
    ops.chunk_simple_gla(**long, cu_seqlens=cu)
    short = {n: x[:, :4] if n != "initial_state" else x for n, x in long.items()}
    with pytest.raises(ContractError, match="T = 4"):
        ops.chunk_simple_gla(**short, cu_seqlens=cu)
