"""The contract: one mathematical function, in both directions, as frozen data.

Everything that describes an operator is derived from its contract: argument checks, the fake
kernel of the compiled entrance, conformance cases, documentation, benchmark inputs, ``explain``.
A contract is importable without torch; what needs torch is named by a ``"module:function"`` string.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from fla_core.domain import Domain

Form = Literal["chunk", "recurrent", "parallel"]
DtypeClass = Literal["activation", "float", "state"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor argument or output.

    Attributes:
        name: argument name.
        shape: axis letters (``"B T H K"``); ``"HV*K"`` is the product of two axes.
        meaning: one sentence, with units.
        dtype: ``activation`` (the dtype of q), ``float`` (any floating dtype) or ``state``
            (float32; float64 when q is float64).
        optional: may be absent; its presence is then the feature of the same name.
        feature: feature that must be on for an output to exist; ``""`` for always.
        alternative: a second shape that is allowed; taking it sets the feature ``NAME_v``.
        any_shape: only the number of elements counts.
    """

    name: str
    shape: str
    meaning: str
    dtype: DtypeClass = "activation"
    optional: bool = False
    feature: str = ""
    alternative: str = ""
    any_shape: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis letters as a tuple."""
        return tuple(self.shape.split())


@dataclass(frozen=True, slots=True)
class Lowering:
    """How core turns a feature into the base form around an implementation that lacks it.

    Attributes:
        name: shown in decisions, ``(lowered: l2norm)``.
        features: features this lowering removes; it applies when one of them is refused.
        function: ``"module:function"``, pure torch, from the raw call to one without the features.
        lift: ``"module:function"`` from base outputs to the raw call's outputs; ``""`` if none.
        lift_reads_outputs: the derivative of ``lift`` depends on the base outputs' values.
        when_absent: the lowering fills in a missing argument (``features`` has one member).
        adds: features the lowered call has in addition (``final_state`` for a normaliser).
        consumes: tensor arguments that no longer exist after it.
        widens: arguments that leave it in float32, or in float64 if one of the arguments named
            after them in the same tuple is float64.
        keeps: pairs of an argument and a dtype in which ``widens`` leaves it.
        resizes: an axis, the axis that it takes its size from, and what is added to that.
    """

    name: str
    features: tuple[str, ...]
    function: str
    lift: str = ""
    lift_reads_outputs: bool = False
    when_absent: bool = False
    adds: tuple[str, ...] = ()
    consumes: tuple[str, ...] = ()
    widens: tuple[tuple[str, ...], ...] = ()
    keeps: tuple[tuple[str, str], ...] = ()
    resizes: tuple[str, str, int] | None = None


@dataclass(frozen=True, slots=True)
class Numerics:
    """Error budgets in units of what rounding the inputs does, and the accumulator required."""

    block: float = 4.0
    token: float = 16.0
    accumulate: str = "float32"


@dataclass(frozen=True, slots=True)
class Contract:
    """One operator.

    Attributes:
        name: contract name.
        revision: raised whenever the meaning changes.
        equation: the recurrence, in plain text.
        source: paper or page the operator comes from.
        inputs: tensor arguments in order; the first is ``q``.
        options: names of further float arguments (None where not given).
        outputs: tensors in order of return; the first is ``o``.
        flags: features that a caller switches on (as opposed to those that follow from shapes).
        domain: what a call may look like.
        lowerings: in the order in which they are applied.
        reference: ``"module:function"`` of the differentiable token recurrence in base form.
        public: public names, each with its form.
        aliases: public names that are second names of others, each with the first.
        given: public names that require optional arguments of the contract, each with those.
        brought: public names that bring constants of their own as arguments of the contract, each
            with those.
        numerics: error budgets.
        laws: names of relations that hold without an oracle.
    """

    name: str
    revision: int
    equation: str
    source: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    flags: tuple[str, ...]
    domain: Domain
    lowerings: tuple[Lowering, ...]
    reference: str
    public: tuple[tuple[str, Form], ...]
    aliases: tuple[tuple[str, str], ...] = ()
    given: tuple[tuple[str, tuple[str, ...]], ...] = ()
    brought: tuple[tuple[str, tuple[str, ...]], ...] = ()
    options: tuple[str, ...] = ()
    numerics: Numerics = Numerics()
    laws: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Every feature name of the contract, in the order of its domain."""
        return tuple(self.domain.features)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the tensor arguments in order."""
        return tuple(spec.name for spec in self.inputs)

    def input(self, name: str) -> TensorSpec:
        """The tensor argument of that name."""
        return next(spec for spec in self.inputs if spec.name == name)

    def outputs_for(self, features: Iterable[str]) -> tuple[TensorSpec, ...]:
        """The outputs a call with these features returns, in order."""
        active = frozenset(features)
        return tuple(out for out in self.outputs if not out.feature or out.feature in active)

    def lowerings_for(
        self, active: frozenset[str], accepts: Domain
    ) -> tuple[tuple[Lowering, ...], frozenset[str]]:
        """Choose the lowerings under which an implementation's domain takes the features.

        Returns:
            the lowerings in order of application and the features of the lowered call.
        """
        chosen, features = [], active
        for lowering in self.lowerings:
            if lowering.when_absent:
                (name,) = lowering.features
                applies = name not in features and accepts.presence(name) == "required"
                after = features | {name}
            else:
                present = features.intersection(lowering.features)
                applies = any(accepts.presence(name) == "forbidden" for name in present)
                after = features - present
            if applies:
                chosen.append(lowering)
                features = after | frozenset(lowering.adds)
        return tuple(chosen), features

    def digest(self) -> str:
        """Hash of everything that has meaning; prose does not count."""
        data = asdict(self)
        for prose in ("equation", "source", "revision", "public", "aliases", "given", "brought"):
            del data[prose]
        for spec in (*data["inputs"], *data["outputs"]):
            del spec["meaning"]
        text = json.dumps(data, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
