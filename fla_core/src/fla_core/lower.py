"""Apply a chain of lowerings to a call, and lift the outputs back through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from fla_core.call import Call
from fla_core.contract import Lowering
from fla_core.lowerings import Outputs


@cache
def load(path: str) -> Callable[..., Any]:
    """Import ``"module:function"``."""
    module, _, function = path.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(module), function)
    return loaded


def lower(call: Call, lowerings: Sequence[Lowering]) -> list[Call]:
    """Return the call before each lowering and, last, the lowered call."""
    chain = [call]
    for lowering in lowerings:
        before = chain[-1]
        changed = frozenset(lowering.features)
        kept = before.features | changed if lowering.when_absent else before.features - changed
        lowered: Call = load(lowering.function)(before)
        chain.append(replace(lowered, features=kept | frozenset(lowering.adds)))
    return chain


def lift(outputs: Outputs, chain: Sequence[Call], lowerings: Sequence[Lowering]) -> Outputs:
    """Turn outputs of the lowered call into those of the first call of the chain."""
    for call, lowering in zip(reversed(chain[:-1]), reversed(lowerings), strict=True):
        if lowering.lift:
            outputs = load(lowering.lift)(outputs, call)
    return outputs
