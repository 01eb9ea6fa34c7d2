"""Things a user should hear once: a slow fallback, a plugin that should serve and cannot."""

from __future__ import annotations

import logging
import sys
import warnings

from fla_core.dispatch.decision import Decision
from fla_core.dispatch.resolve import Search
from fla_core.errors import SelectionWarning, layout
from fla_core.plugins.record import PluginRecord, State

logger = logging.getLogger("fla_core.dispatch")


def after_selection(state: Search, decision: Decision) -> None:
    """Give the notices that follow from a new plan."""
    device = state.request.device.type
    for record in state.reached:
        if record.state is State.BROKEN and _concerns(record, device):
            detail = f"backend {record.name!r} should serve {device} devices and cannot"
            text = f"{detail}: {record.summary()} (fla-kernels doctor)"
            _say(state, ("broken", record.name, record.detail), text)
    if state.fell_back and device != "cpu":
        headline = f"{decision.operator} runs on the slow reference on {device}"
        text = layout(headline, decision.rows())
        _say(state, ("reference", decision.contract, device), text)


def _concerns(record: PluginRecord, device: str) -> bool:
    # A plugin that failed before it gave its card could serve any accelerator.
    return device != "cpu" if record.backend is None else record.serves(device)


def _say(state: Search, key: tuple[str, ...], text: str) -> None:
    if key not in state.runtime.said:
        state.runtime.said.add(key)
        logger.warning(text)
        warnings.warn(text, SelectionWarning, stacklevel=_user_level())


def _user_level() -> int:
    """Stack level of the nearest frame outside this package, where the call was written."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fla_core."):
        level, frame = level + 1, frame.f_back
    return level
