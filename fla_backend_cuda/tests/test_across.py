"""What the kernel across segments of Hopper compiles to; it has no interpreter."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from triton import compile as compiled
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from fla_backend_cuda.hopper.kernels.across import across_segments

ABSENT = dict.fromkeys(("start", "dlast", "cu", "table"))
OFF = dict.fromkeys(("HAS_START", "HAS_DLAST", "VARLEN", "CHANNELS"), False)
CONSTANTS = {**ABSENT, **OFF, "WITH_GATES": True, "H": 2, "K": 64, "V": 64}
WIDENED = {"fp16": "cvt.f32.f16", "bf16": "cvt.f32.bf16"}


def ptx(operands: str, gates: str) -> str:
    """The kernel's code where q, k, v and the like are of one dtype and gates of another."""
    names = across_segments.arg_names
    kinds = dict.fromkeys(names, f"*{operands}") | {"g": f"*{gates}", "T": "i32", "scale": "fp32"}
    kinds |= {"erase": "*fp32", "pieces": "*fp32", **dict.fromkeys(CONSTANTS, "constexpr")}
    aligned = [["tt.divisibility", 16]]
    attributes = {(i,): aligned for i, name in enumerate(names) if kinds[name].startswith("*")}
    source = GluonASTSource(across_segments, kinds, CONSTANTS, attributes)
    return str(
        compiled(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
    )


@pytest.mark.parametrize(("operands", "gates"), [("bf16", "fp16"), ("fp16", "bf16")])
def test_gates_of_16_bits_are_read_in_their_own_dtype(operands: str, gates: str) -> None:
    assert ptx(operands, gates).count(WIDENED[gates]) > 0
    assert ptx(operands, "fp32").count(WIDENED[gates]) == 0
