"""The arguments of a torch operator: its schema, and a call made of them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fla_core.call import Call, Hints
from fla_core.check import check_scale
from fla_core.contract import Contract
from fla_core.prepare import OPERATORS, Memo, Operator, Prepared, packed_sequences, prepare
from fla_core.seqlens import SeqLens

SEPARATOR = "|"
"""Between names in the string arguments ``flags`` and ``needs``."""


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a torch operator, taken apart."""

    operator: Operator
    tensors: Mapping[str, Tensor | None]
    cu_seqlens: Tensor | None
    cu_seqlens_cpu: Tensor | None
    scale: float | None
    options: Mapping[str, float | None]
    flags: frozenset[str]
    needs: frozenset[str]
    policy: str
    hints: Hints

    def prepared(self, bound: str = "") -> Prepared:
        """Check and plan; ``bound`` names the implementation that forward ran."""
        self.operator.check_modes(
            self.tensors, self.flags, tuple(self.options.values()), self.hints
        )
        return prepare(
            self.operator,
            self.tensors,
            self.flags,
            self.cu_seqlens,
            self.policy,
            self.needs,
            traced=True,
            bound=bound,
        )

    def call(self, prepared: Prepared, seqlens: SeqLens | None) -> Call:
        """The call as implementations see it."""
        scale = prepared.default_scale
        if self.scale is not None:
            scale = check_scale(self.operator.title, self.scale)
        return Call(
            self.operator.contract,
            self.operator.form,
            self.tensors,
            scale,
            prepared.features,
            seqlens,
            self.options,
            self.hints,
        )

    def fake_call(self, prepared: Prepared) -> Call:
        """The call with boundaries that nobody can read."""
        packed = None if self.cu_seqlens is None else SeqLens(self.cu_seqlens)
        return self.call(prepared, packed)

    def real_call(self, prepared: Prepared) -> Call:
        """The call with boundaries checked by value."""
        packed = None
        if self.cu_seqlens is not None or self.cu_seqlens_cpu is not None:
            packed = packed_sequences(
                self.operator.title, self.cu_seqlens, self.cu_seqlens_cpu, self.tensors["q"]
            )
        return self.call(prepared, packed)


def arguments_of(contract: Contract) -> str:
    tensors = [f"Tensor{'?' if spec.optional else ''} {spec.name}" for spec in contract.inputs]
    options = [f"float? {name}" for name in contract.options]
    return ", ".join(
        [
            *tensors,
            "Tensor? cu_seqlens",
            "Tensor? cu_seqlens_cpu",
            "str operator",
            "float? scale",
            *options,
            "str flags",
            "str needs",
            "str policy",
            "int? chunk_size",
            "bool recompute",
            "bool safe_gate",
        ]
    )


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split(SEPARATOR)) if text else frozenset()


def request_of(contract: Contract, args: Sequence[Any]) -> Request:
    count, options = len(contract.inputs), len(contract.options)
    tensors, rest = args[:count], list(args[count:])
    cu_seqlens, cu_seqlens_cpu, name, scale = rest[:4]
    values = rest[4 : 4 + options]
    flags, needs, policy, chunk_size, recompute, safe_gate = rest[4 + options :]
    return Request(
        operator=OPERATORS[name],
        tensors=dict(zip(contract.input_names, tensors, strict=True)),
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu,
        scale=scale,
        options=dict(zip(contract.options, values, strict=True)),
        flags=_split(flags),
        needs=_split(needs),
        policy=policy,
        hints=Hints(chunk_size, recompute, safe_gate),
    )


_memo = Memo(1024)


def prepared_once(request: Request, args: Sequence[Any], bound: str = "") -> Prepared:
    """Check and plan a real call, once a signature; fake ones have symbols for sizes."""
    key = tuple(
        (arg.shape, arg.dtype, arg.device) if isinstance(arg, Tensor) else arg for arg in args
    )
    key = (bound, *key)
    entries = _memo.entries
    prepared = entries.get(key)
    if prepared is None:
        prepared = request.prepared(bound)
        _memo.keep(entries, key, prepared)
    return prepared
