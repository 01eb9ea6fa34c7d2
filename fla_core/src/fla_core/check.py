"""Metadata checks of a public call, all derived from the contract.

Everything here looks at shapes, dtypes, devices and host values. It runs before any kernel, on a
call signature's first appearance; what it returns (axis sizes, features) is kept with the plan.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import shorten

import torch
from torch import Tensor

from fla_core.contract import Contract, TensorSpec
from fla_core.dtypes import dtype_name, wide
from fla_core.errors import ContractError, DtypeError
from fla_core.seqlens import is_fake


@dataclass(frozen=True, slots=True)
class Checked:
    """A call that satisfies its contract: axis sizes and the features in use."""

    sizes: Mapping[str, int]
    features: frozenset[str]


def check_call(
    operator: str,
    contract: Contract,
    tensors: Mapping[str, Tensor | None],
    flags: frozenset[str],
    cu_seqlens: Tensor | None = None,
) -> Checked:
    """Check every tensor against the contract and return sizes and features.

    Raises:
        ContractError: a shape, dtype, device or combination the contract does not allow.
    """
    _check_kinds(operator, contract, tensors)
    _check_dtypes(operator, contract, tensors)
    _check_devices(operator, tensors, cu_seqlens)
    sizes, features = _bind(operator, contract, tensors, flags, cu_seqlens)
    _check_domain(operator, contract, sizes, features)
    return Checked(sizes, features)


def check_scale(operator: str, scale: object) -> float:
    """Return an explicit scale as a float; it must be a finite number."""
    if isinstance(scale, (int, float)) and not isinstance(scale, bool):
        number = as_float(scale)
        if math.isfinite(number):
            return number
        raise ContractError(operator, "scale", "a finite number or None", kind_of(scale))
    raise DtypeError(operator, "scale", "a finite number or None", kind_of(scale))


def as_float(number: float) -> float:
    """A number as a float: an int that is beyond the range of floats is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


SWITCHES = {
    "final_state": "output_final_state",
    "l2norm": "use_qk_l2norm_in_kernel",
    "gate": "use_gate_in_kernel",
    "beta_sigmoid": "use_beta_sigmoid_in_kernel",
    "neg_eigval": "allow_neg_eigval",
    "states": "return_intermediate_states",
}
"""Public names of the flags that have another one than their feature."""


def check_flags(operator: str, names: Sequence[str], flags: Sequence[object]) -> None:
    """Check that switches are bools, 0, 1 or numpy's bools: any other text or list is "true"."""
    for name, flag in zip(names, flags, strict=True):
        if isinstance(flag, int) and flag in (0, 1):
            continue
        if type(flag).__name__ not in ("bool", "bool_"):  # numpy's, by its names of two ages
            raise DtypeError(operator, SWITCHES.get(name, name), "True or False", kind_of(flag))


def switch(operator: str, name: str, flag: object) -> bool:
    """One checked switch as a bool, for a caller that has to know before the others are checked."""
    if flag is not True and flag is not False:
        check_flags(operator, (name,), (flag,))
    return bool(flag)


def kind_of(value: object) -> str:
    """A value of the wrong kind, in a few words."""
    if isinstance(value, Tensor):
        return "a tensor"
    # A list may have millions of members, and an array as many lines.
    return f"{type(value).__name__} {shorten(reprlib.repr(value), 80, placeholder=' ...')}"


def describe(tensor: Tensor) -> str:
    """``bfloat16[2, 64, 4, 128] on cuda:0``."""
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)} on {tensor.device}"


def _check_kinds(operator: str, contract: Contract, tensors: Mapping[str, Tensor | None]) -> None:
    for spec in contract.inputs:
        value = tensors[spec.name]
        if value is None:
            if not spec.optional:
                raise DtypeError(operator, spec.name, f"a tensor [{_letters(spec.shape)}]", "None")
        elif not isinstance(value, Tensor):
            raise DtypeError(
                operator, spec.name, f"a tensor [{_letters(spec.shape)}]", kind_of(value)
            )
        elif value.layout != torch.strided or value.is_nested:
            raise DtypeError(operator, spec.name, "a dense (strided) tensor", layout_of(value))


def check_memory(operator: str, name: str, tensor: Tensor) -> None:
    """Check that kernels can be given the address of a tensor: one that wraps others has none.

    Not while ``torch.compile`` traces, whose tensors are such too.
    """
    kind = type(tensor)
    if kind is Tensor:
        return  # every packed call asks of its boundaries: 0.1 us in place of 0.2
    if kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl or is_fake(tensor):
        return
    try:
        tensor.untyped_storage().data_ptr()
    except RuntimeError:
        expected = "a tensor with memory of its own (of a DTensor its to_local())"
        raise DtypeError(operator, name, expected, f"{kind.__name__}, which wraps others") from None


def check_sign(operator: str, name: str, tensor: Tensor) -> None:
    """Check that a tensor's memory holds its values, not those of a lazy minus (``is_neg``).

    In the first call of a signature: asking five tensors in each took 0.8 us more of 9.3.
    """
    if tensor.is_neg():
        expected = "values that lie in memory (resolve_neg() writes them)"
        raise DtypeError(operator, name, expected, "a lazy negation: is_neg() = True")


def layout_of(tensor: Tensor) -> str:
    """How a tensor that is not strided is laid out."""
    return "a nested tensor" if tensor.is_nested else str(tensor.layout)


def _letters(shape: str) -> str:
    return ", ".join(shape.split())


def _check_dtypes(operator: str, contract: Contract, tensors: Mapping[str, Tensor | None]) -> None:
    q = tensors["q"]
    assert q is not None
    allowed = contract.domain.dtypes
    if dtype_name(q.dtype) not in allowed:
        raise DtypeError(operator, "q", " | ".join(allowed), dtype_name(q.dtype))
    for spec in contract.inputs:
        tensor = tensors[spec.name]
        if tensor is None:
            continue
        expected = dtype_problem(spec, tensor.dtype, q.dtype)
        if expected:
            raise DtypeError(operator, spec.name, expected, dtype_name(tensor.dtype))


def dtype_problem(spec: TensorSpec, dtype: torch.dtype, activation: torch.dtype) -> str:
    """What a tensor's dtype should be instead, beside that of q; ``""`` where it is right."""
    if spec.dtype == "activation":
        same = dtype == activation
        return "" if same else f"the dtype of q, {dtype_name(activation)}"
    if not dtype.is_floating_point or dtype.itemsize < 2:
        return "a floating point dtype of 16 bits or more"
    narrowed = dtype == torch.float64 and activation != torch.float64
    if spec.dtype == "state" and narrowed:
        return f"float32 (or narrower) beside {dtype_name(activation)} q; float64 would be cut"
    return ""


def _check_devices(
    operator: str, tensors: Mapping[str, Tensor | None], cu_seqlens: Tensor | None
) -> None:
    q = tensors["q"]
    assert q is not None
    for name, tensor in {**tensors, "cu_seqlens": cu_seqlens}.items():
        if tensor is not None and tensor.device != q.device:
            got = f"{name} on {tensor.device}"
            raise ContractError(operator, name, f"the device of q, {q.device}", got)


def _bind(
    operator: str,
    contract: Contract,
    tensors: Mapping[str, Tensor | None],
    flags: frozenset[str],
    cu_seqlens: Tensor | None,
) -> tuple[dict[str, int], frozenset[str]]:
    sizes: dict[str, int] = {}
    features = set(flags)
    if cu_seqlens is not None:
        features.add("varlen")
        sizes["N"] = cu_seqlens.shape[0] - 1
    for spec in contract.inputs:
        tensor = tensors[spec.name]
        if tensor is None:
            continue
        if spec.optional:
            features.add(spec.name)
        if spec.dtype == "state" and tensor.dtype != wide(tensors["q"]):  # type: ignore[arg-type]
            features.add("narrow_state")
        shape = spec.axes
        if spec.alternative and tensor.dim() == len(spec.alternative.split()):
            shape = tuple(spec.alternative.split())
            features.add(f"{spec.name}_v")
        if "state_v_first" in flags and shape[-2:] == ("K", "V"):
            shape = (*shape[:-2], "V", "K")
        _bind_tensor(operator, spec, tensor, shape, sizes)
        if spec.name == "q":
            if cu_seqlens is not None and sizes["B"] != 1:
                expected = "batch size 1: with cu_seqlens all sequences are packed in one row"
                raise ContractError(operator, "q", expected, f"batch size {sizes['B']}")
            sizes.setdefault("N", sizes["B"])
    sizes.setdefault("HV", sizes["H"])
    if sizes["HV"] != sizes["H"]:
        features.add("gva")
    return sizes, frozenset(features & set(contract.features))


def _bind_tensor(
    operator: str, spec: TensorSpec, tensor: Tensor, letters: Sequence[str], sizes: dict[str, int]
) -> None:
    wanted = f"[{', '.join(letters)}]"
    got = list(tensor.shape)
    if spec.any_shape:
        (letter,) = letters
        if tensor.numel() != sizes[letter]:
            expected = f"{letter} = {sizes[letter]} elements"
            raise ContractError(operator, spec.name, expected, f"shape {got}")
        return
    if tensor.dim() != len(letters):
        alternative = f" or [{_letters(spec.alternative)}]" if spec.alternative else ""
        expected = f"{wanted}{alternative} ({len(letters)} dimensions)"
        raise ContractError(operator, spec.name, expected, f"shape {got}")
    for letter, size in zip(letters, tensor.shape, strict=True):
        known = 1 if letter == "1" else sizes.get(letter)
        if "*" in letter:
            first, _, second = letter.partition("*")
            known = sizes[first] * sizes[second]
        if known is None:
            sizes[letter] = size
        elif known != size:
            values = ", ".join(_size_text(axis, sizes) for axis in letters)
            raise ContractError(operator, spec.name, f"{wanted} = [{values}]", f"shape {got}")


def _size_text(letter: str, sizes: Mapping[str, int]) -> str:
    if letter == "1":
        return "1"
    if "*" in letter:
        first, _, second = letter.partition("*")
        return str(sizes[first] * sizes[second])
    return str(sizes.get(letter, letter))


def _check_domain(
    operator: str, contract: Contract, sizes: Mapping[str, int], features: frozenset[str]
) -> None:
    for axis, allowed in contract.domain.axes.items():
        if sizes[axis] not in allowed:
            argument = next(s.name for s in contract.inputs if axis in s.axes or axis == "N")
            raise ContractError(operator, argument, f"{axis} {allowed}", f"{axis} = {sizes[axis]}")
    for relation in contract.domain.relations:
        if not relation.holds(sizes):
            got = ", ".join(f"{axis} = {sizes[axis]}" for axis in relation.axes)
            expected = f"{relation} (value heads a multiple of key heads)"
            raise ContractError(operator, "v", expected, got)


def check_boundaries(operator: str, bounds: Sequence[int], length: int, argument: str) -> None:
    """Check that boundaries start at 0, never fall and end at T."""
    if not bounds or bounds[0] != 0:
        got = f"{argument}[0] = {bounds[0]}" if bounds else "no entries"
        raise ContractError(operator, argument, "boundaries that start at 0", got)
    for index, (begin, end) in enumerate(pairwise(bounds)):
        if end < begin:
            got = f"{argument}[{index}] = {begin} > {argument}[{index + 1}] = {end}"
            raise ContractError(operator, argument, "boundaries that never fall", got)
    if bounds[-1] != length:
        got = f"{argument}[-1] = {bounds[-1]}"
        raise ContractError(operator, argument, f"boundaries that end at T = {length}", got)


def check_cu_seqlens(operator: str, cu_seqlens: object, argument: str = "cu_seqlens") -> None:
    """Check kind, rank and dtype of packed boundaries."""
    expected = "int32 or int64 tensor [N+1]"
    if not isinstance(cu_seqlens, Tensor):
        raise DtypeError(operator, argument, expected, kind_of(cu_seqlens))
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise DtypeError(operator, argument, expected, dtype_name(cu_seqlens.dtype))
    if cu_seqlens.layout != torch.strided:
        raise DtypeError(operator, argument, "a dense (strided) tensor", layout_of(cu_seqlens))
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1:
        raise ContractError(operator, argument, expected, f"shape {list(cu_seqlens.shape)}")
