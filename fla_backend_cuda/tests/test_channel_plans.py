"""Plans of delta rules under channel decays on Hopper."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from fla_backend_cuda.hopper import delta
from fla_triton.plan import Problem
from fla_triton.profiles import PROFILES

H200 = PROFILES["sm90"]
PROBLEM = Problem(2, 2 * 8192, 8192, 16, 128, 128, 2)


@pytest.mark.parametrize(("channels", "registers"), [(False, 96), (True, None)])
def test_registers_of_pairs_inside_segments_are_limited_for_strengths_of_heads(
    channels: bool, registers: int | None
) -> None:
    planned = delta._channel_planned(PROBLEM, "backward", H200, channels)
    assert planned.launches["within"].registers == registers
