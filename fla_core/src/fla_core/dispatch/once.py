"""Things a user should hear once: as a warning where the call was written, and in the log."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Hashable

from fla_core.errors import SelectionWarning

logger = logging.getLogger("fla_core.dispatch")


def say_once(
    said: set[Hashable], key: Hashable, text: str, category: type[Warning] = SelectionWarning
) -> None:
    """Warn, unless ``key`` has been ``said`` before."""
    if key not in said:
        said.add(key)
        logger.warning(text)
        warnings.warn(text, category, stacklevel=_user_level())


def _user_level() -> int:
    """Stack level of the nearest frame outside this package, where the call was written."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fla_core."):
        level, frame = level + 1, frame.f_back
    return level
