"""One launch that prepares chunks and passes over them: when, and how many programs do which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fla_backend_cuda.hopper.chunks import CHUNK, SolvableErrors
from fla_backend_cuda.hopper.kernels.overlapped import delta_overlapped
from fla_backend_cuda.hopper.operands import COLUMNS
from fla_triton.calls import start_of
from fla_triton.delta_stages import Stages
from fla_triton.plan import Launch, Problem
from fla_triton.profiles import Profile

PREPARING, PASSING = 2.8, 1.42
"""Microseconds of one multiprocessor for a chunk of a head, at K = V = 128 on an H200."""

FEWEST = 16
"""Chunks of a sequence worth it: the first of them are waited for, and counters are cleared."""

STAGES = ("over_time", "kept_over_time")


def overlapping(
    launches: Mapping[str, Launch], problem: Problem, profile: Profile
) -> dict[str, Launch]:
    """Launches that prepare chunks besides, where that is faster; none where it is not."""
    preparing = preparing_programs(problem, profile)
    if not preparing:
        return {}
    found = {}
    for stage in STAGES:
        planned, name = launches[stage], f"{stage} overlapped"
        constants = {**planned.constants, "TOKENS": planned.constants["C"]}
        del constants["C"]
        found[name] = replace(
            planned, stage=name, grid=preparing + planned.grid, constants=constants
        )
    return found


def preparing_programs(problem: Problem, profile: Profile) -> int:
    """How many programs prepare chunks while others pass over them; 0 if these wait for a launch.

    Chunks of packed sequences are numbered sequence by sequence, not in order of time.
    """
    heads = problem.sequences * problem.heads
    idle = profile.multiprocessors - heads * (problem.V // COLUMNS)
    if problem.packed or idle <= 0 or problem.longest <= FEWEST * CHUNK:
        return 0
    apart = PASSING + PREPARING * heads / profile.multiprocessors
    return idle if max(PASSING, PREPARING * heads / idle) < apart else 0


def run_overlapped(
    stages: Stages, stage: str, errors: SolvableErrors, made: tuple[Tensor | None, ...]
) -> bool:
    """Prepare chunks and pass over them, if it is planned and q and k are not raw.

    Args:
        stages: of the call.
        stage: the pass over time.
        errors: takes what is prepared.
        made: outputs, or states and errors, and the final state.
    """
    planned = stages.todo.launches.get(f"{stage} overlapped")
    if planned is None or errors.asks is not None:
        return False
    call, problem, start = stages.call, stages.problem, start_of(stages.call)
    ready = call.k.new_zeros((stages.count, problem.heads), dtype=torch.int32)
    heads = problem.sequences * problem.heads
    preparing = planned.grid - stages.todo.launches[stage].grid
    given = (call.q, call.k, call.v, call.get("g"), call.beta)
    operands = (*given, *errors.made, errors.erases, ready, start)
    switches = {
        **errors.switches(stages),
        "H": problem.heads,
        "K": problem.K,
        "V": problem.V,
        "HAS_START": start is not None,
        "HAS_LAST": made[-1] is not None,
        "KEEP": made[1] is not None,
        "EVERY": stages.todo.every,
    }
    stages.launches.run(
        planned.stage,
        (*operands, *made, call.q.shape[1], call.scale, heads, preparing),
        lambda: (delta_overlapped, planned, switches),
    )
    return True
