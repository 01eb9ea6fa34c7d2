"""The arguments of a case, seeded, and the call made of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

import fla_core.ops  # noqa: F401  (fills OPERATORS)
from fla_conformance.case import REGIMES, Case
from fla_conformance.draw import Draw, values
from fla_core.call import NO_HINTS, Call, Hints
from fla_core.contract import TensorSpec
from fla_core.invoke import invoke
from fla_core.outputs import outputs_of
from fla_core.prepare import OPERATORS, Operator
from fla_core.seqlens import SeqLens

Named = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arguments of one call, and what comes back into it in backward.

    Attributes:
        case: what they were made for.
        tensors: tensor arguments in contract order, None where absent.
        features: features in use, those that follow from shapes included.
        grads: incoming gradient of each output, in its dtype.
        cu_seqlens: boundaries ``[N + 1]`` of packed sequences, int32 or int64.
        cu_seqlens_cpu: the same on the host, in every second packed case.
        scale: factor on q, None for the default.
        options: further float arguments in contract order.
        hints: wishes.
    """

    case: Case
    tensors: Mapping[str, Tensor | None]
    features: frozenset[str]
    grads: Named
    cu_seqlens: Tensor | None
    cu_seqlens_cpu: Tensor | None
    scale: float | None
    options: tuple[float | None, ...]
    hints: Hints

    @property
    def present(self) -> dict[str, Tensor]:
        """The tensors that are there."""
        return {name: tensor for name, tensor in self.tensors.items() if tensor is not None}

    @property
    def leaves(self) -> dict[str, Tensor]:
        """Fresh leaves, one for each tensor; all of them have a gradient."""
        return {name: t.detach().requires_grad_() for name, t in self.present.items()}

    @property
    def flags(self) -> frozenset[str]:
        """The features that a caller switches on."""
        return self.features.intersection(self.case.definition.flags)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs the call returns, in order."""
        return tuple(out.name for out in self.case.definition.outputs_for(self.features))

    def letters(self, name: str) -> tuple[str, ...]:
        """Axis letters of an output, or of a gradient ``dNAME``."""
        contract = self.case.definition
        outputs = {spec.name: spec for spec in contract.outputs}
        spec = outputs[name] if name in outputs else contract.input(name.removeprefix("d"))
        return _letters(spec, self.features)

    def but(self, **tensors: Tensor | None) -> Inputs:
        """A copy with some tensors replaced, by contract name."""
        return replace(self, tensors={**self.tensors, **tensors})

    def call(self, dtype: torch.dtype | None = None) -> Call:
        """The call as implementations and the oracle see it; float64 for gold."""
        tensors = {n: t if t is None else t.to(dtype or t.dtype) for n, t in self.tensors.items()}
        return self.call_with(tensors)

    def call_with(self, tensors: Mapping[str, Tensor | None]) -> Call:
        """The call with other tensors."""
        case, packed = self.case, None
        if self.cu_seqlens is not None:
            packed = SeqLens(self.cu_seqlens, tuple(self.cu_seqlens.tolist()))
        options = dict(zip(case.definition.options, self.options, strict=True))
        scale = case.sizes["K"] ** -0.5 if self.scale is None else self.scale
        return Call(
            case.definition, case.form, tensors, scale, self.features, packed, options, self.hints
        )

    def run(self, tensors: Named | None = None, backend: str | None = None) -> dict[str, Tensor]:
        """Call the operator as a user does, through dispatch.

        Args:
            tensors: replace those of the same name (leaves, for gradients).
            backend: selection policy of the call.

        Returns:
            outputs by name.
        """
        contract, given = self.case.definition, {**self.tensors, **(tensors or {})}
        outputs = invoke(
            operator_of(self.case),
            tuple(given[name] for name in contract.input_names),
            tuple(name in self.flags for name in contract.flags),
            self.scale,
            self.cu_seqlens,
            self.cu_seqlens_cpu,
            backend,
            self.options,
            self.hints,
        )
        return dict(zip(self.output_names, outputs, strict=True))


def operator_of(case: Case) -> Operator:
    """The first public name of the case's contract and form.

    Raises:
        ValueError: the contract has no public name of that form.
    """
    public = case.definition.public
    for name, form in public:
        if form == case.form:
            return OPERATORS[name]
    forms = " | ".join(dict.fromkeys(form for _, form in public))
    raise ValueError(f"{case.id}: form must be {forms}, got {case.form!r}")


def features_of(case: Case) -> frozenset[str]:
    """The features in use: those of the case, and those that follow from lengths and sizes."""
    found = set(case.features)
    if case.lengths is not None:
        found.add("varlen")
    if case.sizes.get("HV", case.sizes["H"]) != case.sizes["H"]:
        found.add("gva")
    return frozenset(found)


def make_inputs(case: Case, device: torch.device | str = "cpu") -> Inputs:
    """Draw the inputs of a case; the same values on every device and in every process.

    Raises:
        ValueError: the case contradicts itself; see :func:`contradiction`.
    """
    if problem := contradiction(case):
        raise ValueError(f"{case.id}: {problem}")
    contract, features = case.definition, features_of(case)
    tensors = {
        spec.name: _tensor(spec, case, features).to(device) if _present(spec, features) else None
        for spec in contract.inputs
    }
    options = dict(case.options or {})
    scale = options.pop("scale", None)
    packed, on_host = _boundaries(case, device)
    q = tensors["q"]
    assert q is not None
    return Inputs(
        case=case,
        tensors=tensors,
        features=features,
        grads=_incoming(case, features, q),
        cu_seqlens=packed,
        cu_seqlens_cpu=on_host,
        scale=scale,
        options=tuple(options.get(name) for name in contract.options),
        hints=NO_HINTS if case.chunk_size is None else Hints(chunk_size=case.chunk_size),
    )


def contradiction(case: Case) -> str:
    """Why nobody could make this call, whatever the implementation; ``""`` when it can be made."""
    contract, features, options = case.definition, features_of(case), case.options or {}
    sizes = _sizes(case)
    if unknown := sorted(features.difference(contract.features)):
        return f"{contract.name} has no feature {unknown[0]!r}"
    if unknown := sorted(set(options).difference(contract.options, {"scale"})):
        return f"{contract.name} has no option {unknown[0]!r}"
    if case.regime not in REGIMES:
        return f"regime must be {' | '.join(REGIMES)}, got {case.regime!r}"
    for feature, needed in NEEDS.items():
        known = needed in contract.features
        if feature in features and known and needed not in features:
            return f"feature {feature!r} needs {needed!r}"
    if "gate" in features and not features & {"A_log", "lower_bound"}:
        return "feature 'gate' needs 'A_log' (or 'lower_bound')"
    if "lower_bound" in contract.options and ("lower_bound" in features) != (
        "lower_bound" in options
    ):
        return "feature 'lower_bound' and option lower_bound go together"
    if "states" in features and case.direction == "bwd":
        return "feature 'states' is inference only"
    for derived in ("varlen", "gva"):
        if derived in case.features and derived not in features_of(case.but(features=frozenset())):
            return f"feature {derived!r} follows from lengths and sizes, which do not have it"
    if case.lengths is not None and (sizes["B"], sizes["T"]) != (1, sum(case.lengths)):
        return "packed sequences lie in one row: B must be 1 and T the sum of the lengths"
    return _form_contradiction(case, features)


def _form_contradiction(case: Case, features: frozenset[str]) -> str:
    # The chunked names of GDN take g and beta as required arguments.
    if case.contract == "gated_delta_rule" and case.form == "chunk":
        for name in ("g", "beta"):
            if name not in features:
                return f"the chunk form needs {name!r}"
    return ""


NEEDS = {
    "neg_eigval": "beta_sigmoid",
    "beta_sigmoid": "beta",
    "beta_v": "beta",
    "gate": "g",
    "A_log": "gate",
    "dt_bias": "gate",
    "lower_bound": "gate",
    "initial_z": "normalize",
    "narrow_state": "initial_state",
}


def _sizes(case: Case) -> dict[str, int]:
    sizes = dict(case.sizes)
    sizes.setdefault("HV", sizes["H"])
    sizes["N"] = sizes["B"] if case.lengths is None else len(case.lengths)
    return sizes


def _present(spec: TensorSpec, features: frozenset[str]) -> bool:
    return not spec.optional or spec.name in features


def _letters(spec: TensorSpec, features: frozenset[str]) -> tuple[str, ...]:
    letters = spec.axes
    if spec.alternative and f"{spec.name}_v" in features:
        letters = tuple(spec.alternative.split())
    if "state_v_first" in features and letters[-2:] == ("K", "V"):
        letters = (*letters[:-2], "V", "K")
    return letters


def _tensor(spec: TensorSpec, case: Case, features: frozenset[str]) -> Tensor:
    sizes = _sizes(case)
    shape = tuple(_size(letter, sizes) for letter in _letters(spec, features))
    draw = Draw(case.contract, case.regime, features, _generator(case, spec.name), _bound(case))
    return values(spec.name, shape, draw).to(_dtype(spec, case, features))


def _size(letter: str, sizes: Mapping[str, int]) -> int:
    first, star, second = letter.partition("*")
    if star:
        return sizes[first] * sizes[second]
    return 1 if letter == "1" else sizes[letter]


def _bound(case: Case) -> float | None:
    return (case.options or {}).get("lower_bound")


def _generator(case: Case, name: str) -> torch.Generator:
    """One for each tensor, so that a further argument leaves the others as they are."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode(), case.key))


def _dtype(spec: TensorSpec, case: Case, features: frozenset[str]) -> torch.dtype:
    activation: torch.dtype = getattr(torch, case.dtype)
    if spec.dtype == "activation":
        return activation
    widest = torch.float64 if activation == torch.float64 else torch.float32
    if spec.name == "initial_state" and "narrow_state" in features:
        narrow = torch.float32 if widest == torch.float64 else torch.bfloat16
        return activation if activation.itemsize == 2 else narrow
    return widest


def _boundaries(case: Case, device: torch.device | str) -> tuple[Tensor | None, Tensor | None]:
    if case.lengths is None:
        return None, None
    dtype = torch.int64 if case.key & 2 else torch.int32
    bounds = torch.tensor([0, *accumulate(case.lengths)], dtype=dtype)
    return bounds.to(device), bounds if case.key & 1 else None


def _incoming(case: Case, features: frozenset[str], q: Tensor) -> dict[str, Tensor]:
    if case.direction == "fwd":
        return {}
    outputs = outputs_of(case.definition, features, _sizes(case), q)
    found = {}
    for name, shape, dtype in zip(outputs.names, outputs.shapes, outputs.dtypes, strict=True):
        drawn = torch.randn(shape, generator=_generator(case, f"d{name}"), dtype=torch.float64)
        found[name] = drawn.to(dtype).to(q.device)
    return found
