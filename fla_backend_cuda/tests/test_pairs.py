"""Which way Hopper's kernel of pairs under channel decays goes; it has no interpreter."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")

from triton import compile as compiled
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from fla_backend_cuda.hopper.kernels.halves import FAR, RANGE
from fla_backend_cuda.hopper.kernels.pairs import channel_pairs

ABSENT = dict.fromkeys(("write", "a_log", "dt_bias", "solved", "cu", "table"))
OFF = ("CHANNELS", "WITH_INVERSE", "NORMS", "GATE", "BOUNDED", "HAS_RATE", "HAS_BIAS", "VARLEN")
SIZES = {"H": 2, "K": 64, "V": 64, "GROUP": 1}
CONSTANTS = {
    **ABSENT,
    **dict.fromkeys((*OFF, "SIGMOID", "DOUBLED"), False),
    **SIZES,
    "ERASE": True,
}
DOWN = "neg.f32 minus"
"""Of a power of minus something, which the tree has none of."""


def ptx(operands: str, gates: str) -> str:
    """The kernel's code where q, k and v are of one dtype and gates of another."""
    names = channel_pairs.arg_names
    kinds = dict.fromkeys(names, f"*{operands}") | {"g": f"*{gates}", "erase": "*fp32"}
    kinds |= {"totals": "*fp32", "T": "i32", "scale": "fp32", "bound": "fp32"}
    kinds |= dict.fromkeys(CONSTANTS, "constexpr")
    aligned = [["tt.divisibility", 16]]
    attributes = {(i,): aligned for i, name in enumerate(names) if kinds[name].startswith("*")}
    source = GluonASTSource(channel_pairs, kinds, CONSTANTS, attributes)
    return str(
        compiled(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
    )


@pytest.mark.parametrize(
    ("operands", "gates", "quick"),
    [("bf16", "fp32", True), ("fp16", "fp32", False), ("bf16", "bf16", False)],
)
def test_powers_of_both_signs_are_for_numbers_of_a_wide_range(
    operands: str, gates: str, quick: bool
) -> None:
    assert (DOWN in ptx(operands, gates)) == quick


@pytest.mark.parametrize(("most", "least"), [(2.0**30, RANGE.value), (1024.0, FAR.value)])
def test_no_factor_of_a_pair_overflows(most: float, least: float) -> None:
    largest = torch.tensor(most * 2.0 ** (-least / 2), dtype=torch.float64)
    assert torch.isfinite(largest.to(torch.bfloat16))
    assert torch.tensor(2.0 ** (least / 2), dtype=torch.bfloat16) > 0


def test_half_a_chunk_of_the_lowest_gates_a_layer_asks_for_is_in_range() -> None:
    assert FAR.value <= 32 * -5.0 / math.log(2.0)
