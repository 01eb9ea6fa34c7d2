"""Raw arguments of the delta rules made into those that their kernels read, and gradients back.

The features ``RAW`` in one pass over the arguments before chunks are computed, and one over their
gradients after. Nothing is kept in between: backward forms unit vectors, decays and strengths anew,
in less time than it would take to read what else had to be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fla_core.call import Call
from fla_triton.calls import Settled, float32, settled
from fla_triton.kernels.prologue import delta_epilogue, delta_prologue
from fla_triton.launch import Settling
from fla_triton.plan import Launch, Problem, power_of_two, startable
from fla_triton.profiles import Profile

NORM = "l2norm"
GATE = ("gate", "lower_bound", "A_log", "dt_bias")
STRENGTH = ("beta_sigmoid", "neg_eigval")
SHARED = "gva"
RAW = frozenset({NORM, *GATE, *STRENGTH, SHARED})
"""Features that the kernels of chunks do not know."""

NOTHING: frozenset[str] = frozenset()

FEEDS = {"g": "g", "A_log": "g", "dt_bias": "g"}
"""Arguments whose gradient comes out of that of another."""


def activations(features: frozenset[str]) -> dict[str, bool]:
    """What is made of the raw arguments of a call with such features, as kernels' constants."""
    return {
        "NORMS": NORM in features,
        "GATE": "gate" in features,
        "BOUNDED": "lower_bound" in features,
        "HAS_RATE": "A_log" in features,
        "HAS_BIAS": "dt_bias" in features,
        "SIGMOID": "beta_sigmoid" in features,
        "DOUBLED": "neg_eigval" in features,
    }


def _switched(constants: Mapping[str, bool]) -> str:
    """What is on, as part of a name."""
    return " ".join(name for name, on in constants.items() if on)


def bound_of(call: Call) -> float:
    """The gate's lower bound; zero where there is none, and nobody reads it."""
    return float(call.options.get("lower_bound") or 0.0)


def plan(problem: Problem, profile: Profile) -> Launch:
    """A program for so many tokens of a head that every thread has 32 channels of each tensor."""
    keys = power_of_two(problem.K)
    rows = max(16, min(64, 4096 // keys))
    grid = -(-problem.tokens // rows) * problem.heads
    constants = {"BK": keys, "BT": rows}
    warps = min(4 * profile.warps, 8)
    return startable(Launch("prologue", grid, constants, warps, 1, 0), profile)


@dataclass(frozen=True, slots=True)
class Prologue:
    """The passes around the kernels of one call.

    Attributes:
        call: as it was made.
        todo: how they are launched.
        left: features that the kernels of chunks take care of.
    """

    call: Call
    todo: Settled[Launch]
    left: frozenset[str] = NOTHING

    @classmethod
    def of(cls, call: Call, profile: Profile, left: frozenset[str] = NOTHING) -> Prologue | None:
        """The passes that a call needs; None where its arguments are read as they are."""
        if (RAW - left).isdisjoint(call.features):
            return None
        return cls(call, settled(call, "prologue", lambda problem: plan(problem, profile)), left)

    def base(self) -> Call:
        """The call that kernels of chunks read."""
        call, features = self.call, self.call.features
        given: Any = call.tensors.get
        q, k, v, g, beta = (given(name) for name in ("q", "k", "v", "g", "beta"))
        tensors = {**call.tensors, "q": q, "k": k}
        if self._shares:
            shape = (*v.shape[:3], q.shape[3])
            tensors |= {"q": q.new_empty(shape), "k": q.new_empty(shape)}
        if "gate" in features:
            tensors |= {"g": float32(q, *g.shape), "A_log": None, "dt_bias": None}
        if "beta_sigmoid" in features:
            tensors["beta"] = float32(q, *beta.shape)
        made = (tensors["q"], tensors["k"], tensors.get("g"), tensors.get("beta"))
        constants = self._constants()
        self._run(f"prologue {_switched(constants)}", delta_prologue, made, constants)
        base = call.holding(tensors)
        base.features = features - (RAW - self.left)
        base.memo = call.memo
        return base

    def gradients(
        self, found: Mapping[str, Tensor | None], needs: frozenset[str]
    ) -> Mapping[str, Tensor | None]:
        """Gradients of the call as it was made, from those of its base.

        Args:
            found: gradients of the base call; those of q, k and g are written over.
            needs: inputs of the call whose gradient is wanted.
        """
        call = self.call
        given: Any = call.tensors.get
        q, g, beta, a_log, dt_bias = (given(n) for n in ("q", "g", "beta", "A_log", "dt_bias"))
        constants = self._constants()
        constants["SHARES"] &= not needs.isdisjoint({"q", "k"})
        constants["GATE"] &= not needs.isdisjoint(FEEDS)
        constants["SIGMOID"] &= "beta" in needs
        if not (constants["SHARES"] or constants["GATE"] or constants["SIGMOID"]):
            return found
        made = dict(found)
        if constants["SHARES"] and SHARED in call.features:
            made |= {"q": torch.empty_like(q), "k": torch.empty_like(q)}
        rates = biases = None
        if constants["GATE"]:
            if g.dtype != torch.float32:
                made["g"] = torch.empty_like(g)
            blocks = self.todo.plan.grid // self.todo.problem.heads
            rates = None if a_log is None else float32(q, blocks, g.shape[2])
            biases = None if dt_bias is None else float32(q, blocks, *g.shape[2:])
        if constants["SIGMOID"]:
            made["beta"] = torch.empty_like(beta)
        known = tuple(found.get(name) for name in ("q", "k", "g", "beta"))
        given_back = tuple(made.get(name) for name in ("q", "k", "g", "beta"))
        self._run(
            _switched(constants), delta_epilogue, (*known, *given_back, rates, biases), constants
        )
        # Partial sums are few: one of a block of tokens.
        if rates is not None:
            made["A_log"] = rates.sum(0).reshape(a_log.shape)
        if biases is not None:
            made["dt_bias"] = biases.sum(0).reshape(dt_bias.shape)
        return made

    @property
    def _shares(self) -> bool:
        """Whether q and k are written anew."""
        return not self.call.features.isdisjoint({NORM, SHARED} - self.left)

    def _constants(self) -> dict[str, bool]:
        return {"SHARES": self._shares, **activations(self.call.features - self.left)}

    def _run(
        self,
        name: str,
        kernel: Any,
        made: tuple[Tensor | None, ...],
        switches: Mapping[str, bool],
    ) -> None:
        call, problem = self.call, self.todo.problem
        given: Any = call.tensors.get
        raw = tuple(given(n) for n in ("q", "k", "g", "beta", "A_log", "dt_bias"))
        group = problem.heads // raw[0].shape[2]

        def settle() -> Settling:
            channels = raw[2] is not None and raw[2].ndim == 4
            sizes = {"H": problem.heads, "GROUP": group, "K": problem.K, "CHANNELS": channels}
            return kernel, self.todo.plan, {**sizes, **switches}

        grid = self.todo.plan.grid // group
        tokens = problem.tokens
        self.todo.launches.run(name, (*raw, *made, tokens, bound_of(call)), settle, grid)


def needs_of_base(needs: frozenset[str]) -> frozenset[str]:
    """Inputs of the base call whose gradient those of a raw call come from."""
    return frozenset(FEEDS.get(name, name) for name in needs)
