"""Plugins for tests: the reference's mathematics behind a door of our own, right or spoilt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

from fla_conformance.run import Target, targets
from fla_core.dispatch.runtime import sandbox
from fla_core.plugins import Backend, Implementation, hookimpl
from fla_core.plugins.discover import in_memory
from fla_core.reference import implementations as reference
from fla_core.reference.plugin import fla_implementations as of_reference

Change = Callable[..., Any]


def implementation(contract: str, variant: str = "chunk", **changes: Any) -> Implementation:
    """The reference's implementation of a contract, functions and all, with some fields changed."""
    found = next(
        one for one in of_reference() if (one.contract, one.variant) == (contract, variant)
    )
    names = {role: str(getattr(found, role)).partition(":")[2] for role in ("forward", "backward")}
    functions = {role: getattr(reference, name) for role, name in names.items()}
    return replace(found, **{**functions, **changes})


@contextmanager
def installed(*implementations: Implementation, **hooks: Any) -> Iterator[list[Target]]:
    """A plugin ``acme`` with these implementations on the CPU; yields its targets."""
    module = ModuleType("plugin_acme")

    @hookimpl
    def fla_backend() -> Backend:
        return Backend("acme", targets=("cpu",), toolchain="torch")

    @hookimpl
    def fla_implementations() -> Iterable[Implementation]:
        return implementations

    for hook in (fla_backend, fla_implementations):
        setattr(module, hook.__name__, hook)
    for name, hook in hooks.items():
        setattr(module, name, hookimpl(hook))
    with sandbox(in_memory("acme", module)):
        yield targets("acme")
