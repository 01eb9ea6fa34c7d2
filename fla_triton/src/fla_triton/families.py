"""Every family of kernels, as tables and tuning see it: its tiles and how they make a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fla_triton import channel_plan, delta_channel_plan, delta_plan, plan
from fla_triton.delta_plan import OVER_TIME, DeltaTiles
from fla_triton.plan import Problem, Tiles
from fla_triton.profiles import Profile


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Attributes:
        tiles: dataclass of its tiles.
        default: tiles of a problem, a direction and a device.
        plan: the plan of a problem, a direction, a device and tiles.
        whole: parts of the tiles whose rows hold a key whole, so that BK is not free.
    """

    tiles: type[Any]
    default: Callable[[Problem, str, Profile], Any]
    plan: Callable[[Problem, str, Profile, Any], Any]
    whole: frozenset[str]


FAMILIES = {
    "scalar_decay": Family(Tiles, plan.default_tiles, plan.plan, frozenset({"chunk"})),
    "channel_decay": Family(Tiles, channel_plan.default_tiles, channel_plan.plan, frozenset()),
    "delta": Family(
        DeltaTiles,
        delta_plan.default_tiles,
        delta_plan.plan,
        frozenset(stage for stages in delta_plan.STAGES.values() for stage in stages),
    ),
    "delta_channel": Family(
        DeltaTiles,
        delta_channel_plan.default_tiles,
        delta_channel_plan.plan,
        frozenset(OVER_TIME),
    ),
}
"""By the module of host code, as :mod:`fla_triton.declared` names them."""
