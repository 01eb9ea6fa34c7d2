"""How much faster the chunked reference is than its token recurrence, on one CPU thread.

    python fla_core/benchmarks/reference_speed.py --ops gla simple_gla --chunk-size 32 64

Each figure is the CPU time of the best of several runs, taken in one process in turn, so that the
ratio is not that of two different machine loads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fla_core.reference.decay import decay_chunk, decay_recurrent
from fla_core.reference.delta import delta_chunk, delta_recurrent

Inputs = dict[str, Tensor]
Function = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Shape:
    B: int
    T: int
    H: int
    K: int
    V: int


@dataclass(frozen=True, slots=True)
class Operator:
    """A recurrence, its chunked form, and what they take beside q, k and v."""

    recurrent: Function
    chunk: Function
    extra: Callable[[Shape], Inputs]


def head_gate(s: Shape) -> Inputs:
    return {"g": F.logsigmoid(torch.randn(s.B, s.T, s.H))}


def key_gate(s: Shape) -> Inputs:
    return {"gk": F.logsigmoid(torch.randn(s.B, s.T, s.H, s.K))}


def value_gate(s: Shape) -> Inputs:
    return {"gv": F.logsigmoid(torch.randn(s.B, s.T, s.H, s.V))}


def steps(s: Shape) -> Inputs:
    return {"beta": torch.rand(s.B, s.T, s.H)}


OPERATORS: Mapping[str, Operator] = {
    "linear_attn": Operator(decay_recurrent, decay_chunk, lambda s: {}),
    "simple_gla": Operator(decay_recurrent, decay_chunk, head_gate),
    "gla": Operator(decay_recurrent, decay_chunk, key_gate),
    "gla_gv": Operator(decay_recurrent, decay_chunk, value_gate),
    "gla_gk_gv": Operator(decay_recurrent, decay_chunk, lambda s: key_gate(s) | value_gate(s)),
    "delta": Operator(delta_recurrent, delta_chunk, steps),
    "gated_delta": Operator(delta_recurrent, delta_chunk, lambda s: steps(s) | head_gate(s)),
    "kda": Operator(delta_recurrent, delta_chunk, lambda s: steps(s) | key_gate(s)),
}


def draw(operator: Operator, s: Shape) -> Inputs:
    torch.manual_seed(0)
    q, k = (F.normalize(torch.randn(s.B, s.T, s.H, s.K), dim=-1) for _ in range(2))
    inputs = {"q": q, "k": k, "v": torch.randn(s.B, s.T, s.H, s.V), **operator.extra(s)}
    return {name: x.requires_grad_() for name, x in inputs.items()}


def forward(function: Function, inputs: Inputs) -> None:
    with torch.no_grad():
        function(**inputs, scale=0.125)


def training_step(function: Function, inputs: Inputs) -> None:
    o, state, *_ = function(**inputs, scale=0.125)
    torch.autograd.grad(o.sum() + state.sum(), list(inputs.values()))


def best_times(runs: list[Callable[[], None]], repeats: int) -> list[float]:
    """CPU seconds of the fastest of ``repeats`` rounds, a round being each run once."""
    best = [float("inf")] * len(runs)
    for _ in range(repeats + 1):
        for i, run in enumerate(runs):
            start = time.process_time()
            run()
            best[i] = min(best[i], time.process_time() - start)
    return best


def compare(
    operator: Operator, shape: Shape, chunk_sizes: Sequence[int], repeats: int
) -> Iterator[list[str]]:
    """Table cells for each chunk size: milliseconds and ratio, forward and with backward."""
    inputs = draw(operator, shape)
    functions: list[Function] = [
        operator.recurrent,
        *(partial(operator.chunk, chunk_size=size) for size in chunk_sizes),
    ]
    timed = [
        best_times([partial(work, f, inputs) for f in functions], repeats)
        for work in (forward, training_step)
    ]
    for i, size in enumerate(chunk_sizes, 1):
        yield [
            str(size),
            *(
                f"{x:.1f}"
                for times in timed
                for x in (times[0] * 1e3, times[i] * 1e3, times[0] / times[i])
            ),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", nargs="+", choices=OPERATORS, default=list(OPERATORS))
    parser.add_argument("--chunk-size", nargs="+", type=int, default=[64])
    parser.add_argument("--repeats", type=int, default=5)
    for axis, size in {"B": 1, "T": 2048, "H": 4, "K": 64, "V": 64}.items():
        parser.add_argument(f"-{axis}", type=int, default=size)
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = Shape(args.B, args.T, args.H, args.K, args.V)

    table = Table(
        "operator",
        "chunk",
        *(
            f"{what} {unit}"
            for what in ("forward", "fwd+bwd")
            for unit in ("recurrent ms", "chunk ms", "ratio")
        ),
        title=f"{shape}, float32, one thread",
    )
    for name in args.ops:
        for row in compare(OPERATORS[name], shape, args.chunk_size, args.repeats):
            table.add_row(name, *row)
    Console().print(table)


if __name__ == "__main__":
    main()
