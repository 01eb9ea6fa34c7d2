"""What to install for a call, in words that can be pasted."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fla_core.dispatch.decision import Decision
    from fla_core.plugins.record import PluginRecord


def for_call(decision: Decision, arch: str) -> list[str]:
    """What would bring a backend for a call; empty when an installed one can serve its device.

    Only backends that the policy lets in count: another would not be asked. One that is broken is
    no reason to install another; ``doctor`` says what to do about it.

    Args:
        decision: the one for the call.
        arch: architecture that was supposed, ``""`` for that of the device or for any.
    """
    from fla_core.dispatch.chips import EXTRAS
    from fla_core.dispatch.governing import ordered_plugins
    from fla_core.dispatch.policy import AUTOMATIC, parse
    from fla_core.dispatch.runtime import RUNTIME, backends
    from fla_core.plugins.requirements import remedy

    operator = decision.contract, decision.operator
    rule = parse(decision.policy).rule_for(*operator) or AUTOMATIC
    device, arch = decision.view.device, arch or decision.view.arch
    installed = {record.name for record in backends()}
    hints = []
    for record, _ in ordered_plugins(RUNTIME.registry, rule):
        kept_out = record.rule or record.name in rule.excluded
        if record.built_in or kept_out or not _serves(record, device, arch):
            continue
        requires = record.backend.requires if record.backend else ()
        step = remedy(record.origin.distribution, requires)
        if not step:
            return []
        hints.append(f"{step}  # for {record.name}")
    if hints or not rule.open:
        return hints
    # Nothing of ours is on an index: README says how to install from a checkout.
    return [
        f"pip install --no-deps -e ./fla_triton -e ./fla_backend_{extra}  # {what}, from a checkout"
        for extra, what, chips in EXTRAS.get(device, ())
        if extra not in installed | rule.excluded and (not arch or fnmatchcase(arch, chips))
    ]


def _serves(record: PluginRecord, device: str, arch: str) -> bool:
    """Whether a plugin is for a device and has kernels for an architecture, ``""`` for any."""
    return record.serves(device) and (
        record.failure is not None
        or any(
            not arch or not one.arch or any(fnmatchcase(arch, pattern) for pattern in one.arch)
            for one in record.implementations
        )
    )
