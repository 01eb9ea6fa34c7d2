"""A plugin in memory whose one implementation has a fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from fla_conformance.faults.fault import Fault
from fla_conformance.faults.manners import functions
from fla_conformance.faults.maths import right
from fla_conformance.run import Target, targets
from fla_core.contract import Contract
from fla_core.dispatch.runtime import sandbox
from fla_core.domain import Domain
from fla_core.plugins import Backend, Implementation, Probe, hookimpl
from fla_core.plugins.discover import in_memory

PLUGIN = "planted"


def implementation(fault: Fault, contract: Contract) -> Implementation:
    """The fault as an implementation that takes all of a contract, features included."""
    forward, backward = fault.unruly() if fault.unruly else functions(fault.maths or right)
    if fault.backward:
        forward, _ = functions(right)
    return Implementation(
        contract=contract.name,
        revision=contract.revision,
        variant=fault.name,
        forward=forward,
        backward=backward,
        domain=Domain(dtypes=contract.domain.dtypes, features=contract.domain.features),
        forms=tuple(dict.fromkeys(form for _, form in contract.public)),
        strided=fault.strided,
        claims=fault.claims,
        pooled=fault.pooled,
    )


@contextmanager
def planted(fault: Fault, contract: Contract) -> Iterator[Target]:
    """Install the plugin, alone beside the reference, and give its implementation."""
    one = implementation(fault, contract)

    @hookimpl
    def fla_backend() -> Backend:
        return Backend(PLUGIN, ("cpu",), "torch", description=fault.what)

    @hookimpl
    def fla_implementations() -> tuple[Implementation, ...]:
        return (one,)

    @hookimpl
    def fla_probe(device: str) -> Probe:
        return Probe(True)

    hooks = (fla_backend, fla_implementations, fla_probe)
    module = SimpleNamespace(**{hook.__name__: hook for hook in hooks})
    with sandbox(in_memory(PLUGIN, module)):
        (target,) = targets(PLUGIN)
        yield target
