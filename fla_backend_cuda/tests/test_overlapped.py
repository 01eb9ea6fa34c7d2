"""When chunks are prepared while others are passed over."""

from __future__ import annotations

import importlib.util

import pytest

from fla_triton.plan import Problem
from fla_triton.profiles import PROFILES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

H200 = PROFILES["sm90"]


@pytest.mark.parametrize(
    ("sequences", "longest", "heads", "values", "packed", "preparing"),
    [
        (2, 8192, 16, 128, False, 68),  # 64 programs pass over time
        (1, 32768, 16, 128, False, 100),
        (1, 1025, 1, 64, False, 131),
        (1, 1024, 16, 128, False, 0),  # over before it pays
        (2, 8192, 16, 128, True, 0),  # not in order of time
        (8, 2048, 32, 64, False, 0),  # no multiprocessor is idle
        (1, 8192, 48, 128, False, 0),  # too few are
        (0, 0, 16, 128, False, 0),
    ],
)
def test_chunks_are_prepared_by_what_would_be_idle(
    sequences: int, longest: int, heads: int, values: int, packed: bool, preparing: int
) -> None:
    from fla_backend_cuda.hopper import delta
    from fla_backend_cuda.hopper.overlapped import preparing_programs

    tokens = sequences * longest
    problem = Problem(sequences, tokens, longest, heads, 128, values, 2, packed, gated=True)
    assert preparing_programs(problem, H200) == preparing
    launches = delta._planned(problem, "forward", H200).launches
    for stage in ("over_time", "kept_over_time"):
        found = launches.get(f"{stage} overlapped")
        assert (found is not None) == bool(preparing)
        if found is not None:
            passing = launches[stage]
            # All run at once, also where a chip did not start programs in order.
            assert found.grid == preparing + passing.grid <= H200.multiprocessors
            assert found.registers == passing.registers
