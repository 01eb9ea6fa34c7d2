"""Plugins made of thin air, and facts to call ``find_plan`` with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from fla_core.contracts import CONTRACTS
from fla_core.dispatch.plan import Plan, find_plan
from fla_core.domain import AXES, FLOATS, AxisRange, Domain
from fla_core.plugins import Backend, Implementation, Probe, Validity, hookimpl
from fla_core.plugins.api import Device
from fla_core.plugins.discover import in_memory
from fla_core.plugins.record import PluginRecord

CUDA, CPU = Device("cuda", 0), Device("cpu")
BASE = ("varlen", "initial_state", "final_state")


def forward(call: Any, save: bool) -> Any:
    return (), ()


def backward(call: Any, residuals: Any, grads: Any, needs: Any) -> Any:
    return {}


def domain(*features: str, **axes: AxisRange) -> Domain:
    """A domain with the base features optional, and further features likewise."""
    return Domain(FLOATS[:3], axes, (), dict.fromkeys((*BASE, *features), "optional"))


def implementation(contract: str = "gla", variant: str = "chunk", **changes: Any) -> Implementation:
    defaults: dict[str, Any] = {
        "contract": contract,
        "revision": 1,
        "variant": variant,
        "forward": forward,
        "backward": backward,
        "domain": domain("gk") if contract == "gla" else domain(),
    }
    return Implementation(**{**defaults, **changes})


def module(
    name: str = "acme",
    *implementations: Implementation,
    probe: Callable[[str], Any] | None = None,
    validity: Iterable[Validity] = (),
    targets: tuple[str, ...] = ("cuda",),
    **card: Any,
) -> ModuleType:
    """A plugin module; keywords beyond the named ones go into the card."""
    made = ModuleType(f"plugin_{name}")
    backend = Backend(**{"name": name, "targets": targets, "toolchain": "triton", **card})
    items = implementations or (implementation(),)

    @hookimpl
    def fla_backend() -> Backend:
        return backend

    @hookimpl
    def fla_implementations() -> Iterable[Implementation]:
        return items

    @hookimpl
    def fla_validity() -> Iterable[Validity]:
        return tuple(validity)

    @hookimpl
    def fla_probe(device: str) -> Any:
        return Probe(True, arch="sm90") if probe is None else probe(device)

    for hook in (fla_backend, fla_implementations, fla_validity, fla_probe):
        setattr(made, hook.__name__, hook)
    return made


def plugin(name: str = "acme", *implementations: Implementation, **options: Any) -> PluginRecord:
    """The record of such a module."""
    return in_memory(name, module(name, *implementations, **options))


def plan(contract: str = "gla", operator: str = "", policy: str = "", **facts: Any) -> Plan:
    """Call ``find_plan`` with sizes by letter and everything else by default."""
    spec = CONTRACTS[contract]
    sizes = {"B": 2, "T": 128, "H": 4, "HV": 4, "K": 64, "V": 64, "N": 2}
    sizes.update({axis: facts.pop(axis) for axis in AXES if axis in facts})
    features = frozenset(facts.get("features", ()))
    dtype = facts.get("dtype", "bfloat16")
    dtypes = tuple(
        None
        if s.optional and s.name not in features
        else dtype
        if s.dtype == "activation"
        else "float32"
        for s in spec.inputs
    )
    return find_plan(
        spec,
        operator or f"chunk_{contract}",
        facts.get("form", "chunk"),
        facts.get("device", CUDA),
        dtype,
        dtypes,
        tuple(sizes[axis] for axis in AXES),
        features,
        frozenset(facts.get("gradients", ())),
        facts.get("traced", False),
        policy,
    )
