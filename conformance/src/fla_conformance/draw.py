"""Distributions of the arguments, in float64 on the CPU.

A regime says what gates, keys and writing strengths are like:

``plain``
    decays of 0.7 to 1, independent keys, strengths in (0, 1).
``long_memory``
    decays so close to one that a state lasts for thousands of tokens.
``fast_decay``
    a state is gone after two or three tokens.
``resets``
    a sixth of the log gates lies in -1e4..-30 and a third is exactly zero: sums of gates must not
    lose a mild decay behind a strong one, nor may an exponential of their difference overflow.
``parallel_keys``
    nearly equal unit keys, and strengths near the largest that the call allows: the triangular
    system of the delta rule at its worst.
``idle``
    keys are zero and decays those of long memory: nothing is written, and a state only decays,
    which takes no product of 16 bits. Who keeps states in fewer bits than float32 between two
    chunks loses them here.
``loud``
    queries and keys of a hundred and values of a hundredth, for a small scale: scores before it are
    beyond float16, and nothing that is given or returned is.

Where a gate or a strength comes as logits, these are drawn so that what they become is alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

DELTA_FAMILY = ("delta_rule", "gated_delta_rule", "kda", "gdn2")
"""Contracts whose keys have unit length."""

LOUD = 128.0
"""How large queries and keys are, and how small values, where they are loud."""

ROOM = 8
"""Key channels that give each token room enough."""

_SLOW = ("long_memory", "idle")
"""Regimes of decays close to one."""

Shape = tuple[int, ...]


def crowded(contract: str, tokens: int, keys: int) -> bool:
    """Whether tokens write over one another so often that a chunk's sums cancel.

    A chunk adds up what each token writes and takes away what later ones erase. Of n unit keys in
    few channels K most is erased: sums of n terms are rounded, and what counts is what is left.
    With products of 16 bits, and twice as many for the inverse of the triangular system, 3 to 77
    in a hundred gradients of gates are beyond their limits at K = 1 and n of 16 and 64, one or two
    at K = 3 (there even at n = 2), and none of 240 at K = 8. That is no fault of a kernel, and no
    head has so few.
    """
    return contract in DELTA_FAMILY and tokens > 1 and keys < ROOM


@dataclass(frozen=True, slots=True)
class Draw:
    """What the distribution of an argument depends on.

    Attributes:
        contract: name of the contract.
        regime: see above.
        features: in use.
        generator: source of random numbers.
        lower_bound: of the gate, None without one.
    """

    contract: str
    regime: str
    features: frozenset[str]
    generator: torch.Generator
    lower_bound: float | None = None

    def normal(self, shape: Shape) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, shape: Shape, low: float, high: float) -> Tensor:
        """Numbers between two bounds."""
        x = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return low + (high - low) * x


def values(name: str, shape: Shape, draw: Draw) -> Tensor:
    """Draw one argument by its contract name."""
    return _BY_NAME.get(name, _normal)(shape, draw)


def _normal(shape: Shape, draw: Draw) -> Tensor:
    return draw.normal(shape)


def _values(shape: Shape, draw: Draw) -> Tensor:
    return draw.normal(shape) / (LOUD if draw.regime == "loud" else 1)


def _queries(shape: Shape, draw: Draw) -> Tensor:
    x = draw.normal(shape)
    if "normalize" in draw.features:
        return F.softplus(x)  # a feature map: the normaliser must stay away from zero
    if "l2norm" in draw.features:
        # Norms of all sizes: what is added below the root shows in the small ones.
        return x * 10 ** draw.uniform((*shape[:-1], 1), -2.5, 0.5)
    if draw.regime == "loud":
        return x * LOUD
    return F.normalize(x, dim=-1) if draw.contract in DELTA_FAMILY else x


def _keys(shape: Shape, draw: Draw) -> Tensor:
    if draw.regime == "idle":
        return torch.zeros(shape, dtype=torch.float64)
    if draw.regime != "parallel_keys":
        return _queries(shape, draw)
    common = F.normalize(draw.normal((shape[0], 1, *shape[2:])), dim=-1)
    each = 0.02 * draw.normal(shape)
    return F.normalize(common + each, dim=-1)


def _gate(shape: Shape, draw: Draw) -> Tensor:
    """Log decay, or the logits that a gate with a rate of about one turns into it."""
    return _gate_logits(shape, draw) if "gate" in draw.features else _log_decay(shape, draw)


def _log_decay(shape: Shape, draw: Draw) -> Tensor:
    x = draw.normal(shape)
    if draw.regime in _SLOW:
        return -2e-4 * x.sigmoid()
    if draw.regime == "fast_decay":
        return -1.5 - x.abs()
    mild = -0.2 * x.sigmoid().square()
    if draw.regime != "resets":
        return mild
    chance = draw.uniform(shape, 0.0, 1.0)
    strong = -(10 ** draw.uniform(shape, math.log10(30.0), 4.0))
    return torch.where(chance < 1 / 6, strong, torch.where(chance < 1 / 2, 0.0, mild))


def _gate_logits(shape: Shape, draw: Draw) -> Tensor:
    x = draw.normal(shape)
    if draw.regime in _SLOW:
        # A bounded gate multiplies its logits by the rate, which may be well below one.
        return 0.5 * x - (9 if draw.lower_bound is None else 14)
    if draw.regime == "fast_decay":
        return x + 2
    mild = x - 2.5
    if draw.regime != "resets":
        return mild
    chance = draw.uniform(shape, 0.0, 1.0)
    # Of a sigmoid's gradient at 30, which is 1 - 1 in float32, nobody's arithmetic leaves anything.
    least = 30.0 if draw.lower_bound is None else 120.0
    strong = 10 ** draw.uniform(shape, math.log10(least), 4.0)
    return torch.where(chance < 1 / 6, strong, torch.where(chance < 1 / 2, -40.0, mild))


def _head_decay(shape: Shape, draw: Draw) -> Tensor:
    if draw.regime in _SLOW:
        return -draw.uniform(shape, 1e-5, 2e-4)
    if draw.regime in ("fast_decay", "resets"):
        return -draw.uniform(shape, 1.0, 3.0)
    return -draw.uniform(shape, 0.01, 0.2)


def _strength(shape: Shape, draw: Draw) -> Tensor:
    logits = "beta_sigmoid" in draw.features
    if draw.regime == "parallel_keys":
        return draw.uniform(shape, 3.0, 6.0) if logits else draw.uniform(shape, 1.8, 2.0)
    x = draw.normal(shape)
    return x if logits else x.sigmoid()


_BY_NAME: dict[str, Callable[[Shape, Draw], Tensor]] = {
    "q": _queries,
    "k": _keys,
    "v": _values,
    "g": _gate,
    "gk": _log_decay,
    "gv": _log_decay,
    "g_gamma": _head_decay,
    "beta": _strength,
    "b": _strength,
    "w": lambda shape, draw: draw.normal(shape).sigmoid(),
    "A_log": lambda shape, draw: draw.uniform(shape, -0.5, 0.5),
    "dt_bias": lambda shape, draw: 0.3 * draw.normal(shape),
    "initial_z": lambda shape, draw: F.softplus(draw.normal(shape)),
}
