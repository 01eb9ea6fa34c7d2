"""The arguments of a case, seeded, and the call made of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

import fla_core.ops  # noqa: F401  (fills OPERATORS)
from fla_conformance.case import Case
from fla_conformance.draw import Draw, values
from fla_conformance.sense import contradiction, dtype_of, features_of, is_present, sizes_of
from fla_core.call import Call, Hints
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
    def wanted(self) -> tuple[str, ...]:
        """Inputs whose gradient is wanted; those of the whole case, where it is a backward one."""
        asked = self.case.gradients
        return tuple(name for name in self.present if asked is None or name in asked)

    @property
    def leaves(self) -> dict[str, Tensor]:
        """Fresh leaves, one for each tensor; those whose gradient is wanted require it."""
        wanted = self.wanted
        return {n: t.detach().requires_grad_(n in wanted) for n, t in self.present.items()}

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


def make_inputs(case: Case, device: torch.device | str = "cpu") -> Inputs:
    """Draw the inputs of a case; the same values on every device and in every process.

    Raises:
        ValueError: the case contradicts itself; see :mod:`fla_conformance.sense`.
    """
    if problem := contradiction(case):
        raise ValueError(f"{case.id}: {problem}")
    contract, features = case.definition, features_of(case)
    tensors = {
        spec.name: _tensor(spec, case, features).to(device) if is_present(spec, features) else None
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
        hints=Hints(case.chunk_size, case.recompute, case.safe_gate),
    )


def _letters(spec: TensorSpec, features: frozenset[str]) -> tuple[str, ...]:
    letters = spec.axes
    if spec.alternative and f"{spec.name}_v" in features:
        letters = tuple(spec.alternative.split())
    if "state_v_first" in features and letters[-2:] == ("K", "V"):
        letters = (*letters[:-2], "V", "K")
    return letters


def _tensor(spec: TensorSpec, case: Case, features: frozenset[str]) -> Tensor:
    sizes = sizes_of(case)
    shape = tuple(_size(letter, sizes) for letter in _letters(spec, features))
    draw = Draw(case.contract, case.regime, features, _generator(case, spec.name), _bound(case))
    dtype: torch.dtype = getattr(torch, dtype_of(spec, case, features))
    return values(spec.name, shape, draw).to(dtype)


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


def _boundaries(case: Case, device: torch.device | str) -> tuple[Tensor | None, Tensor | None]:
    if case.lengths is None:
        return None, None
    dtype = torch.int64 if case.key & 2 else torch.int32
    bounds = torch.tensor([0, *accumulate(case.lengths)], dtype=dtype)
    return bounds.to(device), bounds if case.key & 1 else None


def _incoming(case: Case, features: frozenset[str], q: Tensor) -> dict[str, Tensor]:
    if case.direction == "fwd":
        return {}
    outputs = outputs_of(case.definition, features, sizes_of(case), q)
    found = {}
    for name, shape, dtype in zip(outputs.names, outputs.shapes, outputs.dtypes, strict=True):
        drawn = torch.randn(shape, generator=_generator(case, f"d{name}"), dtype=torch.float64)
        found[name] = drawn.to(dtype).to(q.device)
    return found
