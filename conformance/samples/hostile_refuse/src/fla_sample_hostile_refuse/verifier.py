"""Falls over instead of refusing."""

from __future__ import annotations

from fla_core.verify import CallView


def verify(view: CallView) -> tuple[bool, str | None]:
    """Even lengths only, or so it was meant."""
    if (view.axes["T"] or 0) % 2:
        raise ZeroDivisionError("odd lengths")
    return True, None
