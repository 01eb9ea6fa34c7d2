"""What follows from a new plan: a slow fallback, a plugin that should serve and cannot."""

from __future__ import annotations

from fla_core.dispatch.decision import Decision
from fla_core.dispatch.once import say_once
from fla_core.dispatch.resolve import Search
from fla_core.errors import layout
from fla_core.plugins.record import PluginRecord, State


def after_selection(state: Search, decision: Decision) -> None:
    """Give the notices that follow from a new plan."""
    device, said = state.request.device.type, state.runtime.said
    for record in state.reached:
        if record.state is State.BROKEN and _concerns(record, device):
            detail = f"backend {record.name!r} should serve {device} devices and cannot"
            text = f"{detail}: {record.summary()} (fla-kernels doctor)"
            say_once(said, ("broken", record.name, record.detail), text)
    if state.fell_back and device != "cpu":
        headline = f"{decision.operator} runs on the slow reference on {device}"
        text = layout(headline, decision.rows())
        say_once(said, ("reference", decision.contract, device), text)


def _concerns(record: PluginRecord, device: str) -> bool:
    # A plugin that failed before it gave its card could serve any accelerator.
    return device != "cpu" if record.backend is None else record.serves(device)
