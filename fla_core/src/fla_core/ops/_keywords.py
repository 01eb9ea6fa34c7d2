"""Keywords that public operators take for compatibility, and those they no longer take."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fla_core.call import NO_HINTS, Hints
from fla_core.check import as_float, check_flags, kind_of, switch
from fla_core.errors import ContractError, DtypeError, RemovedKeywordError, UnsupportedError


def leftover(
    title: str, function: Callable[..., Any], kwargs: Mapping[str, Any], state_v_first: bool
) -> bool:
    """Handle keywords beyond the signature; return ``state_v_first``.

    ``transpose_state_layout`` is the old name of ``state_v_first`` and warns; ``head_first`` was
    removed; any other name is a TypeError with the closest known one, as an unknown keyword that
    vanishes is a wrong result waiting to be found.
    """
    if not kwargs:
        return state_v_first
    if "head_first" in kwargs:
        expected = "no such keyword: tensors are [B, T, H, D]; transpose(1, 2) head-first ones"
        raise RemovedKeywordError(title, "head_first", expected, repr(kwargs["head_first"]))
    rest = dict(kwargs)
    if "transpose_state_layout" in rest:
        name = "transpose_state_layout"
        renamed = switch(title, name, rest.pop(name))
        if switch(title, "state_v_first", state_v_first):
            expected = "state_v_first or its old name transpose_state_layout, not both"
            raise ContractError(title, "transpose_state_layout", expected, "both")
        if not torch.compiler.is_compiling():
            text = f"{title}: transpose_state_layout is now state_v_first"
            warnings.warn(text, DeprecationWarning, stacklevel=3)
        state_v_first = renamed
    for name in rest:
        known = [p for p in inspect.signature(function).parameters if p != "kwargs"]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; it takes {', '.join(known)}"
        raise TypeError(f"{title}() got an unexpected keyword argument {name!r}{hint}")
    return state_v_first


def chunk_hint(title: str, chunk_size: int | None, allowed: tuple[int, ...] = ()) -> Hints:
    """Check a chunk size: one of ``allowed``, or any power of two when that is empty."""
    if chunk_size is None:
        return NO_HINTS
    if not isinstance(chunk_size, int) or isinstance(chunk_size, bool):
        raise DtypeError(title, "chunk_size", "an int", repr(chunk_size))
    if allowed and chunk_size not in allowed:
        raise ContractError(title, "chunk_size", " | ".join(map(str, allowed)), str(chunk_size))
    if chunk_size < 1 or chunk_size & (chunk_size - 1):
        raise ContractError(title, "chunk_size", "a power of two", str(chunk_size))
    return Hints(chunk_size=chunk_size)


def no_context_parallel(title: str, cp_context: object) -> None:
    """Refuse ``cp_context``."""
    if cp_context is not None:
        instead = "split the sequence yourself and carry initial_state / final_state"
        raise UnsupportedError(title, "cp_context (context parallelism)", instead)


def unused_chunk_indices(title: str, chunk_indices: object) -> None:
    """Check the shape of a prebuilt chunk table; tables are built here, so it is not read."""
    if chunk_indices is None:
        return
    if not isinstance(chunk_indices, Tensor):
        expected = "an integer tensor [NT, 2]"
        raise DtypeError(title, "chunk_indices", expected, type(chunk_indices).__name__)
    if chunk_indices.dim() != 2 or chunk_indices.shape[1] != 2:
        expected, got = "an integer tensor [NT, 2]", f"shape {list(chunk_indices.shape)}"
        raise ContractError(title, "chunk_indices", expected, got)


def check_beta_mode(title: str, flags: frozenset[str]) -> None:
    """``allow_neg_eigval`` doubles a sigmoid and means nothing without one."""
    if "neg_eigval" in flags and "beta_sigmoid" not in flags:
        expected = "use_beta_sigmoid_in_kernel=True beside allow_neg_eigval=True"
        raise ContractError(title, "allow_neg_eigval", expected, "use_beta_sigmoid_in_kernel=False")


def check_gate_mode(
    title: str,
    in_kernel: bool,
    a_log: object,
    dt_bias: object,
    bounds: tuple[float | None, ...] = (),
) -> None:
    """Gate parameters belong to the in-kernel gate, which cannot do without a rate or a bound.

    ``bounds`` has the operator's ``lower_bound``; it is empty where there is no such argument.
    """
    if not in_kernel:
        for name, value in (("A_log", a_log), ("dt_bias", dt_bias)):
            if value is not None:
                expected = "use_gate_in_kernel=True beside it: without the flag it has no effect"
                raise ContractError(title, name, expected, "use_gate_in_kernel=False")
    elif a_log is None and all(bound is None for bound in bounds):
        bounded = ", or lower_bound" if bounds else ""
        expected = f"the log of the gate's rate, [HV]{bounded}, under use_gate_in_kernel=True"
        raise ContractError(title, "A_log", expected, "None")


def check_lower_bound(title: str, bound: float | None, in_kernel: bool, safe: bool) -> None:
    """A bound is negative and finite; a safe in-kernel gate needs one in [-5, 0)."""
    if bound is None:
        if safe and in_kernel:
            expected = "a number in [-5, 0) under safe_gate=True and use_gate_in_kernel=True"
            raise ContractError(title, "lower_bound", expected, "None")
        return
    if not isinstance(bound, (int, float)) or isinstance(bound, bool):
        raise DtypeError(title, "lower_bound", "a negative number or None", repr(bound))
    lowest = -5.0 if safe else float("-inf")
    if not (lowest <= bound < 0.0) or as_float(bound) == float("-inf"):
        expected = "a number in [-5, 0)" if safe else "a finite number below 0"
        raise ContractError(title, "lower_bound", expected, kind_of(bound))


def gate_hints(title: str, hints: Hints, safe_gate: bool, keep: bool, states: bool) -> Hints:
    """Hints with what a caller says of gates and intermediates; states need no kept ones."""
    if type(safe_gate) is not bool or type(keep) is not bool or type(states) is not bool:
        names = ("safe_gate", "disable_recompute", "states")
        check_flags(title, names, (safe_gate, keep, states))
    if states and keep:
        expected = "False beside return_intermediate_states=True"
        raise ContractError(title, "disable_recompute", expected, "True")
    if safe_gate or keep:
        hints = replace(hints, safe_gate=bool(safe_gate), recompute=not keep)
    return hints
