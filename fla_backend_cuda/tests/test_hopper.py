"""Host code around the kernels for Hopper, where no kernel runs."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import reduce
from importlib import import_module
from pkgutil import iter_modules
from types import SimpleNamespace

import pytest
import torch

from fla_conformance.case import Case
from fla_conformance.inputs import make_inputs
from fla_core.call import Call
from fla_core.contracts import CONTRACTS
from fla_triton.declared import NORMALISED, ROWS, Row
from fla_triton.plan import Problem
from fla_triton.profiles import PROFILES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@pytest.mark.parametrize("offset", [0, 1])
def test_what_copies_cannot_read_is_moved_and_nothing_else(offset: int) -> None:
    from fla_backend_cuda.hopper.operands import placed

    contract = CONTRACTS["delta_rule"]
    memory = torch.arange(136, dtype=torch.bfloat16)
    given = {
        **dict.fromkeys(spec.name for spec in contract.inputs),
        "q": memory[offset : offset + 64].view(1, 1, 1, 64),
        "k": memory[72:136].view(1, 1, 1, 64),
    }
    call = Call(contract, "chunk", given, 1.0, frozenset())
    found = placed(call)
    assert (found is call) == (offset == 0)
    assert found.q.data_ptr() % 16 == 0
    assert found.q.equal(given["q"])
    assert found.k is given["k"]


H200 = PROFILES["sm90"]


def call_of(contract: str, features: set[str], dtype: torch.dtype, values: int) -> Call:
    """A call of one token, whose tensors are those that host code looks at."""
    tensors = {
        **dict.fromkeys(spec.name for spec in CONTRACTS[contract].inputs),
        "q": torch.zeros(1, 1, 1, 64, dtype=dtype),
        "v": torch.zeros(1, 1, 2 if "gva" in features else 1, values, dtype=dtype),
    }
    return Call(CONTRACTS[contract], "chunk", tensors, 1.0, frozenset(features))


@pytest.mark.parametrize(
    ("contract", "features", "dtype", "values", "forward", "backward"),
    [
        ("delta_rule", {"l2norm"}, torch.bfloat16, 128, False, False),
        ("delta_rule", {"l2norm"}, torch.float16, 128, True, True),  # of too short a range
        ("delta_rule", {"l2norm"}, torch.bfloat16, 192, False, True),  # portable gradients
        ("gated_delta_rule", {"l2norm", "gva"}, torch.bfloat16, 64, False, True),
        ("gated_delta_rule", {"gva"}, torch.bfloat16, 64, False, True),
        ("gated_delta_rule", {"l2norm", "gate"}, torch.bfloat16, 64, True, True),
        ("kda", {"l2norm", "gate", "A_log", "gva"}, torch.float16, 64, False, True),
        ("gdn2", {"gate", "dt_bias"}, torch.bfloat16, 64, False, True),
        ("kda", set(), torch.bfloat16, 64, False, False),
    ],
)
def test_a_pass_before_chunks_is_left_to_what_their_kernels_cannot_take_raw(
    contract: str,
    features: set[str],
    dtype: torch.dtype,
    values: int,
    forward: bool,
    backward: bool,
) -> None:
    from fla_backend_cuda.hopper import delta
    from fla_triton.prologue import Prologue

    family = "delta_channel" if contract in ("kda", "gdn2") else "delta"
    kernels = delta.FAMILIES[family](H200)
    call = call_of(contract, features, dtype, values)
    for direction, wanted in (("forward", forward), ("backward", backward)):
        found = Prologue.of(call, H200, kernels._left(call, direction))
        assert (found is not None) == wanted


@pytest.mark.parametrize(
    ("programs", "chunks", "wanted"),
    [
        (64, 128, (1, 128, 2)),  # two halves fill the chip
        (67, 128, (1, 128, 1)),
        (66, 1, (1, 1, 1)),
        (32, 512, (4, 128, 1)),  # segments, for there is room for several
        (32, 16, (1, 16, 2)),  # of too few chunks
        (1, 1024, (128, 8, 1)),  # each of chunks enough
        (1, 1300, (130, 10, 1)),  # none without chunks
        (0, 0, (1, 0, 1)),
    ],
)
def test_time_is_cut_as_far_as_programs_leave_room(
    programs: int, chunks: int, wanted: tuple[int, int, int]
) -> None:
    from fla_backend_cuda.hopper.over_time import cuts

    assert cuts(programs, chunks, H200) == wanted


@pytest.mark.parametrize("channel", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("sequences", "longest"), [(1, 33), (2, 8192), (1, 131072), (2000, 65)])
@pytest.mark.parametrize(("heads", "values"), [(1, 64), (16, 128), (96, 512)])
def test_launches_cover_every_chunk_once(
    sequences: int, longest: int, heads: int, values: int, packed: bool, channel: bool
) -> None:
    from fla_backend_cuda.hopper import decay

    tokens = sequences * longest
    problem = Problem(sequences, tokens, longest, heads, 128, values, 2, packed, not channel)
    make = decay._channel_planned if channel else decay._planned
    planned, chunks = make(problem, H200), -(-longest // 64)
    programs = sequences * heads * values // 64
    assert (planned.segments - 1) * planned.span < chunks <= planned.segments * planned.span
    launches = planned.launches
    assert launches["over_time"].grid == programs * planned.segments * planned.halves
    assert programs * planned.segments * planned.halves <= max(programs, H200.multiprocessors)
    assert launches["over_time"].constants["C"] == planned.tiles.chunk_size == 64
    assert ("prepare" in launches) == channel
    assert ("totals" in launches) == ("chain" in launches) == (planned.segments > 1)
    if planned.segments > 1:
        tile = launches["totals"].constants
        tiles = (128 // tile["BK"]) * (values // tile["BV"])
        assert launches["totals"].grid == sequences * heads * tiles * (planned.segments - 1)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("erase", "programs"), [(False, 4), (True, 3)])
def test_as_many_programs_score_pairs_side_by_side_as_registers_leave_room_for(
    direction: str, erase: bool, programs: int
) -> None:
    from fla_backend_cuda.hopper import decay, delta

    problem = Problem(2, 2 * 8192, 8192, 16, 128, 128, 2)
    if erase:
        planned = delta._channel_planned(problem, direction, H200).launches["prepare"]
    else:
        make = decay._channel_planned if direction == "forward" else decay._channel_backward
        planned = make(problem, H200).launches["prepare"]
    assert planned.registers is not None
    assert H200.registers // (planned.registers * planned.warps * H200.warp_width) == programs


@pytest.mark.parametrize(("sequences", "longest"), [(1, 33), (2, 8192), (3, 129), (2000, 33)])
@pytest.mark.parametrize("keys", [64, 128])
def test_gradients_of_delta_rules_cover_every_chunk_and_channel(
    sequences: int, longest: int, keys: int
) -> None:
    from fla_backend_cuda.hopper import delta

    problem = Problem(sequences, sequences * longest, longest, 16, keys, 128, 2, gated=True)
    around = delta._planned(problem, "backward", H200).launches["gradients"]
    assert around.grid == sequences * 16 * -(-longest // 128)
    launches = delta._channel_planned(problem, "backward", H200).launches
    assert launches["across"].grid == sequences * 16 * -(-longest // 64) * keys // 64
    assert launches["chunk_errors"].grid == sequences * 16 * -(-longest // 64)


@pytest.mark.parametrize(
    ("strength", "values", "own"), [("beta", 128, True), ("beta", 256, False), ("b", 128, False)]
)
def test_errors_of_channels_and_of_wide_values_are_left_to_the_portable_kernel(
    strength: str, values: int, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fla_backend_cuda.hopper import delta

    ran = []
    monkeypatch.setattr(delta.gradients, "run_errors", lambda stages, _: ran.append(True))
    monkeypatch.setattr(delta.ChannelStages, "_errors", lambda stages, _: ran.append(False))
    problem = Problem(2, 2 * 8192, 8192, 16, 128, values, 2)
    stages = SimpleNamespace(call={strength: torch.zeros(1)}, problem=problem)
    delta.HopperChannelStages._errors(stages, ())
    assert ran == [own]


@pytest.mark.parametrize(("sequences", "longest"), [(1, 33), (2, 8192), (1, 65536), (2000, 33)])
@pytest.mark.parametrize("keys", [64, 128])
@pytest.mark.parametrize("channel", [False, True])
def test_gradients_under_decays_cover_every_chunk_and_channel_both_ways(
    sequences: int, longest: int, keys: int, channel: bool
) -> None:
    from fla_backend_cuda.hopper import decay

    problem = Problem(sequences, sequences * longest, longest, 2, keys, 192, 2)
    make = decay._channel_backward if channel else decay._backward
    planned, chunks = make(problem, H200), -(-longest // 64)
    around, both = planned.launches["gradients"], planned.launches["both"]
    assert around.grid == sequences * 2 * chunks * (keys // 64 if channel else 1)
    tiles = (keys // both.constants["BK"]) * (192 // both.constants["BV"])
    assert both.grid == 2 * sequences * 2 * tiles * planned.segments
    assert both.constants["C"] == planned.tiles.chunk_size == 64
    assert (planned.segments - 1) * planned.span < chunks <= planned.segments * planned.span


def test_sums_of_what_lies_before_a_token_keep_their_digits_beside_what_lies_behind() -> None:
    from fla_backend_cuda.hopper.kernels.decayed_gradients import _before

    leaves = torch.tensor([1e-20, 2e-20, 3e-20, 1.0])
    scanned = [(torch.tensor(0.0), x) for x in leaves]
    halves = [reduce(lambda a, b: _before.fn(*a, *b), part) for part in (scanned[:2], scanned[2:])]
    before, whole = _before.fn(*halves[0], *halves[1])
    assert before.item() == pytest.approx(6e-20)
    assert whole.item() == 1.0
    assert (leaves.sum() - leaves[-1]).item() == 0.0


def test_gradients_without_gates_of_tokens_are_left_to_what_keeps_fewer_states() -> None:
    from fla_backend_cuda.hopper import decay

    kernels, plain = decay.Kernels(H200), Problem(2, 2 * 8192, 8192, 16, 128, 128, 2)
    planned = kernels._plan_backward(plain)
    assert "gradients" not in planned.launches
    assert planned.tiles.chunk_size == 128
    gated = kernels._plan_backward(replace(plain, gated=True))
    assert "gradients" in gated.launches
    assert gated.tiles.chunk_size == 64


@pytest.mark.parametrize("values", [128, 192])
def test_states_wider_than_shared_memory_are_left_to_the_portable_kernel(values: int) -> None:
    from fla_backend_cuda.hopper import delta

    problem = Problem(2, 2 * 8192, 8192, 16, 128, values, 2, gated=True)
    tiles = delta._planned(problem, "backward", H200).launches["gradients"].constants
    assert bool(tiles) == (values > 128)


@pytest.mark.parametrize(("batch", "tokens"), [(0, 17), (0, 1), (0, 0), (2, 0)])
@pytest.mark.parametrize("row", [*ROWS, NORMALISED], ids=lambda row: row.contract)
def test_nothing_is_computed_without_a_sequence_or_a_token(
    row: Row, batch: int, tokens: int
) -> None:
    from fla_backend_cuda.hopper import decay, delta

    gate = {"g"}.intersection(row.features)
    sizes = {"B": batch, "T": tokens, "H": 2, "HV": 2, "K": 64, "V": 128}
    features = frozenset({"initial_state", "final_state", *row.required, *gate})
    inputs = make_inputs(Case(row.contract, "bwd", "bfloat16", "chunk", sizes, features))
    kernels = {**decay.FAMILIES, **delta.FAMILIES}[row.family](H200)
    call = inputs.call()
    (o, last, *_), residuals = kernels.forward(call, True)
    assert o.shape == (batch, tokens, 2, 128)
    assert last.equal(call.initial_state)
    grads = [inputs.grads[name] for name in inputs.output_names]
    found = kernels.backward(call, residuals, grads, frozenset(inputs.present))
    assert found["q"].shape == (batch, tokens, 2, 64)
    assert found["initial_state"].equal(grads[1])


def test_what_takes_longest_to_compile_is_a_kernel() -> None:
    from triton.runtime.jit import JITFunction

    import fla_backend_cuda.hopper.kernels as own
    import fla_triton.kernels as portable
    from fla_backend_cuda.hopper import served

    names: set[str] = set()
    for package in (own, portable):
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            values = vars(import_module(module.name)).values()
            names |= {x.__name__ for x in values if isinstance(x, JITFunction)}
    assert served.together.SECONDS.keys() <= names
    assert "delta_overlapped" in served.together.SECONDS
