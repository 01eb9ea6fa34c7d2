"""Pieces that several contracts state in the same words."""

from __future__ import annotations

from fla_core.contract import Lowering, TensorSpec
from fla_core.domain import FLOATS, AxisRange, Domain, Presence, Relation

Q = TensorSpec("q", "B T H K", "queries")
K = TensorSpec("k", "B T H K", "keys")
O_STATE = "the state after the last token of each sequence"
STATES = TensorSpec(
    "states",
    "B NT HV K V",
    "the state before each chunk of 64 (or chunk_size) tokens",
    feature="states",
)
CHANNEL_GATE = TensorSpec(
    "g",
    "B T HV K",
    "log decay, <= 0; under gate, its logits: -exp(A_log) softplus(g + dt_bias), or with"
    " lower_bound L: L sigmoid(exp(A_log) (g + dt_bias))",
    "float",
)
RATE = TensorSpec("A_log", "HV", "log of the gate's rate", "float", optional=True, any_shape=True)
BIAS = TensorSpec("dt_bias", "HV*K", "added to the gate's logits", "float", optional=True)
LAWS = ("poison", "nanfill", "prefix", "split", "pack", "stride", "repeat", "gradmask", "immut")


def values(heads: str) -> TensorSpec:
    """v with the letter of its heads."""
    return TensorSpec("v", f"B T {heads} V", "values")


def initial_state(heads: str) -> TensorSpec:
    """S_0, zeros when absent."""
    meaning = "state before the first token, 16-bit ones are widened; [.., V, K] if state_v_first"
    return TensorSpec("initial_state", f"N {heads} K V", meaning, dtype="state", optional=True)


def outputs(heads: str) -> tuple[TensorSpec, TensorSpec]:
    """o and the final state."""
    return (
        TensorSpec("o", f"B T {heads} V", "outputs"),
        TensorSpec("final_state", f"N {heads} K V", O_STATE, dtype="state", feature="final_state"),
    )


def domain(heads: str, *features: str, required: tuple[str, ...] = ()) -> Domain:
    """The contract domain all recurrent families share; every feature is optional."""
    presence: dict[str, Presence] = dict.fromkeys(
        ("varlen", "initial_state", "narrow_state", "final_state", *features), "optional"
    )
    presence.update(dict.fromkeys(required, "required"))
    axes = {"B": AxisRange(0), "T": AxisRange(0), "N": AxisRange(0)}
    axes.update({letter: AxisRange(1) for letter in dict.fromkeys(("H", heads, "K", "V"))})
    grouped = (Relation("divides", ("H", "HV")),) if heads == "HV" else ()
    return Domain(dtypes=FLOATS, axes=axes, relations=grouped, features=presence)


def lowering(
    name: str,
    *also: str,
    lift: bool = False,
    absent: bool = False,
    adds: tuple[str, ...] = (),
    consumes: tuple[str, ...] = (),
    widens: tuple[str, ...] = (),
    resizes: tuple[str, str, int] | None = None,
) -> Lowering:
    """A lowering whose functions carry its name in ``fla_core.lowerings``."""
    return Lowering(
        name=name,
        features=(name.removeprefix("default_"), *also),
        function=f"fla_core.lowerings:{name}",
        lift=f"fla_core.lowerings:lift_{name}" if lift else "",
        when_absent=absent,
        adds=adds,
        consumes=consumes,
        widens=(widens,) if widens else (),
        resizes=resizes,
    )


REVERSE = lowering("reverse", lift=True)
NARROW_STATE = lowering("narrow_state", widens=("initial_state", "q"))
STATE_V_FIRST = lowering("state_v_first", lift=True)
L2NORM = lowering("l2norm")
GATE_PARAMETERS = ("A_log", "dt_bias")


def gate(*bound: str) -> Lowering:
    """The gate activation, with the features that belong to it."""
    return lowering(
        "gate",
        *bound,
        *GATE_PARAMETERS,
        consumes=GATE_PARAMETERS,
        widens=("g", "g", *GATE_PARAMETERS),
    )


GVA = lowering("gva", resizes=("H", "HV", 0))
BETA_SIGMOID = lowering("beta_sigmoid", "neg_eigval", widens=("beta", "beta"))
DEFAULT_BETA = lowering("default_beta", absent=True, widens=("beta", "q"))
DEFAULT_G = lowering("default_g", absent=True, widens=("g", "q"))
