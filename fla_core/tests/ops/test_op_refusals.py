"""Calls that break a contract: a clear error before any work, and no trace of it afterwards."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from op_bad_calls import DELTA, DENSE, GDN, GLA, GLA_PACKED, KDA, KDA_RECURRENT, ROWS, STATE, Row
from op_cases import Case, keywords, make_inputs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fla_core import ops
from fla_core.contracts import public_names
from fla_core.dispatch.runtime import RUNTIME
from fla_core.errors import ContractError, DtypeError, UnsupportedError

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
    "gdn2": Case("chunk_gdn2", ("A_log", "dt_bias", *STATE), ("final_state", "gate"), **DENSE),
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
    "nested": (lambda x: torch.nested.nested_tensor(list(x)), DtypeError, "a nested tensor"),
    "double": (lambda x: x.double(), DtypeError, "float64"),
}
DOUBLE = ("q", "g", "gk", "gv", "beta", "b", "w", "A_log", "dt_bias", "g_gamma")
#: Not faults: sizes of q bind the letters; gates may be wide; A_log of KDA may have any shape.
LEGAL = {
    *(("size", name) for name in ("q",)),
    *(("double", name) for name in DOUBLE),
    *(("double", name) for name in ("initial_z",)),
    ("rank", "kda:A_log"),
    ("rank", "gdn2:A_log"),
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
    with refused(case, kind, early=fault not in ("sparse", "nested")) as caught:
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
    ("contract", "name"), [(c, name) for c, case in FULL.items() for name in case.given]
)
def test_a_lazy_minus_is_refused_in_the_first_call_of_a_signature(contract: str, name: str) -> None:
    case = FULL[contract]
    shown, bad = spoilt(case, name, lambda x: torch.complex(x, -x).conj().imag)
    with refused(case, DtypeError) as caught:
        RUNTIME.forget_plans()
        getattr(ops, case.op)(**bad)
    assert caught.value.argument == shown
    assert "resolve_neg()" in caught.value.expected
    assert "is_neg()" in caught.value.got


@pytest.mark.parametrize(
    ("contract", "name"),
    [
        (c, spec)
        for c, case in FULL.items()
        for spec in case.given
        if spec in ("q", "k", "v")
        or (c, spec) in (("gla chunk", "gk"), ("delta_rule", "beta"), ("kda", "g"), ("kda", "beta"))
        or (c, spec) in (("gated_delta_rule", "g"), ("gated_delta_rule", "A_log"), ("kda", "A_log"))
        or (c == "gdn2" and spec in ("g", "b", "w"))
    ],
)
def test_a_required_tensor_that_is_none(contract: str, name: str) -> None:
    case = FULL[contract]
    shown, bad = spoilt(case, name, lambda _: None)
    with refused(case, ContractError) as caught:
        getattr(ops, case.op)(**bad)
    assert caught.value.argument == shown
    assert caught.value.got == "None"


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


def _write_through_numpy(cu: Tensor, values: list[int]) -> None:
    cu.numpy()[:] = values


def _exchange_data(cu: Tensor, values: list[int]) -> None:
    cu.data = torch.tensor(values)


@pytest.mark.parametrize("change", [_write_through_numpy, _exchange_data])
def test_boundaries_changed_behind_the_back_of_torch_are_read_anew(
    change: Callable[[Tensor, list[int]], None],
) -> None:
    call = keywords(GLA_PACKED, make_inputs(GLA_PACKED))
    cu = torch.tensor([0, 2, 2, 6])
    first = ops.chunk_simple_gla(**call | {"cu_seqlens": cu})
    change(cu, [0, 1, 3, 6])
    assert cu._version == 0
    moved = ops.chunk_simple_gla(**call | {"cu_seqlens": cu})
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


@pytest.mark.parametrize("flag", ["no", "", None, 2, [], torch.tensor(True)], ids=repr)
def test_switches_that_are_no_bools(flag: Any) -> None:
    q = torch.ones(1, 3, 1, 4)
    beta = torch.ones(1, 3, 1)
    calls: dict[str, Callable[[], Any]] = {
        "output_final_state": lambda: ops.chunk_gla(q, q, q, q, output_final_state=flag),
        "state_v_first": lambda: ops.chunk_simple_gla(q, q, q, state_v_first=flag),
        "use_gate_in_kernel": lambda: ops.chunk_kda(q, q, q, q, beta, use_gate_in_kernel=flag),
        "use_qk_l2norm_in_kernel": lambda: ops.chunk_delta_rule(
            q, q, q, beta, use_qk_l2norm_in_kernel=flag
        ),
    }
    for name, call in calls.items():
        with pytest.raises(DtypeError, match="True or False") as caught:
            call()
        assert caught.value.argument == name


ARRAYS = [[True, False], [True], []]
"""Of the first and the last torch and numpy do not know whether they are true."""


PAIR = {"initial_state": (None, None), "normalize": True}
"""A state that linear attention has only where it is normalised."""


def as_tensor(values: list[bool]) -> Any:
    return torch.tensor(values)


def as_array(values: list[bool]) -> Any:
    return pytest.importorskip("numpy").array(values)


def switches() -> Iterator[Any]:
    """Every switch of every public operator."""
    for name in public_names():
        known = inspect.signature(getattr(ops, name)).parameters
        for switch, parameter in known.items():
            # Without a pool, whose tests have it, its check is not read.
            if isinstance(parameter.default, bool) and switch != "check_state_indices":
                yield pytest.param(name, switch, id=f"{name}-{switch}")
        if "kwargs" in known:
            yield pytest.param(name, "transpose_state_layout", id=f"{name}-transpose_state_layout")


@pytest.mark.parametrize("kind", [as_tensor, as_array])
@pytest.mark.parametrize("values", ARRAYS, ids=repr)
@pytest.mark.parametrize(("name", "switch"), list(switches()))
def test_no_array_is_a_switch(
    name: str, switch: str, values: list[bool], kind: Callable[[list[bool]], Any]
) -> None:
    q = torch.ones(1, 3, 1, 4)
    given: dict[str, Any] = {"layer_idx": 1, "num_layers": 2, "beta": torch.ones(1, 3, 1)}
    known = inspect.signature(getattr(ops, name)).parameters
    required = {n: given.get(n, q) for n, p in known.items() if p.default is p.empty}
    required.pop("kwargs", None)
    for more in ({}, {"lower_bound": -1.0} if "lower_bound" in known else PAIR):
        if more == PAIR and "normalize" not in known:
            continue
        with pytest.raises(DtypeError, match="True or False") as caught:
            getattr(ops, name)(**required | more | {switch: kind(values)})
        assert caught.value.argument == switch
        assert caught.value.got.startswith(("a tensor", "ndarray array(["))


def test_the_switches_that_are_held_against_each_other_are_bools() -> None:
    q, both = torch.ones(1, 3, 1, 4), torch.tensor([True, False])
    kda = partial(ops.chunk_kda, q, q, q, -q, q[..., 0])
    graph = {"use_graph": True, "cu_seqlens": torch.tensor([0, 3])}
    for name, beside in (
        ("disable_recompute", graph),
        ("return_intermediate_states", {"disable_recompute": True}),
        ("state_v_first", {"transpose_state_layout": True}),
    ):
        with pytest.raises(DtypeError, match="True or False") as caught:
            kda(**beside, **{name: both})
        assert caught.value.argument == name


@pytest.mark.parametrize("off", [0, "numpy"], ids=str)
def test_what_is_false_leaves_the_call_as_it_is(off: Any) -> None:
    off = pytest.importorskip("numpy").False_ if off == "numpy" else off
    call = keywords(KDA, make_inputs(KDA))
    names = ("safe_gate", "disable_recompute", "use_graph", "use_gate_in_kernel")
    want = ops.chunk_kda(**call)
    got = ops.chunk_kda(**call, **dict.fromkeys(names, off))
    assert torch.equal(got[0], want[0])
    call = keywords(KDA_RECURRENT, make_inputs(KDA_RECURRENT))
    got = ops.fused_recurrent_kda(**call, inplace_final_state=off)
    assert torch.equal(got[0], ops.fused_recurrent_kda(**call)[0])


def test_numpy_bools_are_switches() -> None:
    numpy = pytest.importorskip("numpy")
    q = torch.ones(1, 3, 1, 4)
    assert ops.chunk_gla(q, q, q, -q, output_final_state=numpy.True_)[1] is not None
    assert ops.chunk_gla(q, q, q, -q, output_final_state=numpy.bool_(0))[1] is None


class Wrapping(Tensor):
    """A tensor without memory around another, as a DTensor is."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapping:
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bare = [x.inner if isinstance(x, Wrapping) else x for x in args]
        return func(*bare, **(kwargs or {}))


@pytest.mark.parametrize("name", ["q", "v", "initial_state", "cu_seqlens"])
def test_tensors_that_wrap_others_are_refused(name: str) -> None:
    """Kernels would read from address 0. That the same call ran before must not matter."""
    call = keywords(GLA_PACKED, make_inputs(GLA_PACKED))
    ops.chunk_simple_gla(**call)
    with pytest.raises(DtypeError, match="a tensor with memory of its own") as caught:
        ops.chunk_simple_gla(**call | {name: Wrapping(call[name])})
    assert caught.value.argument == name
    assert caught.value.got == "Wrapping, which wraps others"


def test_tensors_of_a_class_of_their_own_are_tensors() -> None:
    class Own(Tensor):
        pass

    call = keywords(GLA, make_inputs(GLA))
    operator = getattr(ops, GLA.op)
    want, _ = operator(**call)
    for q in (torch.nn.Parameter(call["q"]), call["q"].as_subclass(Own)):
        assert torch.equal(operator(**call | {"q": q})[0], want)
