"""The entrance for ``torch.compile``: one functional torch operator per contract and direction.

Eager calls never come here. While tracing, the public operator puts one node into the graph; the
choice of an implementation is made inside its body from the policy text, so a policy that changes
outside the graph needs a new trace, and nothing else breaks it. Fake and body resolve from the same
facts. Where a gradient is wanted both ignore B, T and N, which may be symbols while tracing: an
implementation limited in them is not eligible there, and residual shapes agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fla_core.autograd import without_autocast
from fla_core.call import Call, Hints
from fla_core.check import check_scale
from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS
from fla_core.dispatch import on_reset, policy_text
from fla_core.errors import ImplementationError, UnsupportedError
from fla_core.execute import run_backward, run_forward
from fla_core.lower import lower
from fla_core.outputs import expected_outputs
from fla_core.prepare import OPERATORS, Operator, Prepared, packed_sequences, prepare
from fla_core.seqlens import SeqLens

NAMESPACE = "fla_core"
_library = torch.library.Library(NAMESPACE, "DEF")
_SEPARATOR = "|"


@dataclass(frozen=True, slots=True)
class _Request:
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

    def prepared(self) -> Prepared:
        """Check and plan."""
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


def _arguments(contract: Contract) -> str:
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
    return frozenset(text.split(_SEPARATOR)) if text else frozenset()


def _request(contract: Contract, args: Sequence[Any]) -> _Request:
    count, options = len(contract.inputs), len(contract.options)
    tensors, rest = args[:count], list(args[count:])
    cu_seqlens, cu_seqlens_cpu, name, scale = rest[:4]
    values = rest[4 : 4 + options]
    flags, needs, policy, chunk_size, recompute, safe_gate = rest[4 + options :]
    return _Request(
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


_MEMO_SIZE = 1024
_memo: dict[tuple[Any, ...], Prepared] = {}
on_reset(_memo.clear)


def _prepared(request: _Request, args: Sequence[Any]) -> Prepared:
    """Check and plan a real call, once a signature; fake ones have symbols for sizes."""
    key = tuple(
        (arg.shape, arg.dtype, arg.device) if isinstance(arg, Tensor) else arg for arg in args
    )
    prepared = _memo.get(key)
    if prepared is None:
        prepared = request.prepared()
        if len(_memo) >= _MEMO_SIZE:
            _memo.clear()
        _memo[key] = prepared
    return prepared


def _saved_base_count(prepared: Prepared, contract: Contract) -> int:
    """How many of the implementation's own outputs travel to backward for the lifts."""
    plan = prepared.plan
    if not any(lowering.lift_reads_outputs for lowering in plan.lowerings):
        return 0
    return len(contract.outputs_for(plan.features))


def _forward(contract: Contract, args: Sequence[Any]) -> list[Tensor]:
    request = _request(contract, args)
    prepared = _prepared(request, args)
    call = request.real_call(prepared)
    with torch.no_grad(), without_autocast(call.q.device.type):
        outputs, residuals, base = run_forward(
            prepared.plan, call, None, bool(request.needs), prepared.first
        )
    prepared.first = False
    return [*outputs, *residuals, *base]


def _fake_forward(contract: Contract, args: Sequence[Any]) -> list[Tensor]:
    request = _request(contract, args)
    prepared = request.prepared()
    call = request.fake_call(prepared)
    if not request.needs:
        return _empty(call)
    base_call = lower(call, prepared.plan.lowerings)[-1]
    residuals = prepared.plan.residuals
    announced = () if residuals is None else residuals(base_call)
    kept = [call.q.new_empty(shape, dtype=dtype) for shape, dtype in announced]
    base = _empty(base_call) if _saved_base_count(prepared, contract) else []
    return [*_empty(call), *kept, *base]


def _empty(call: Call) -> list[Tensor]:
    expected = expected_outputs(call)
    return [
        call.q.new_empty(shape, dtype=dtype)
        for shape, dtype in zip(expected.shapes, expected.dtypes, strict=True)
    ]


def _backward(contract: Contract, args: Sequence[Any]) -> list[Tensor]:
    *args, implementation, saved, grads = args
    request = _request(contract, args)
    prepared = _prepared(request, args)
    if prepared.plan.id != implementation:
        raise ImplementationError(
            prepared.plan.id, "backward was planned anew", f"the forward's {implementation}"
        )
    call = request.real_call(prepared)
    kept = len(saved) - _saved_base_count(prepared, contract)
    with torch.no_grad(), without_autocast(call.q.device.type), _recording():
        found = run_backward(
            prepared.plan, call, tuple(saved[:kept]), tuple(saved[kept:]), grads, request.needs
        )
    return [_own(found[name], call) for name in sorted(request.needs)]


_AUTOGRAD_KEYS = (
    torch._C.DispatchKey.AutogradFunctionality,
    torch._C.DispatchKey.AutogradOther,
    torch._C.DispatchKey.AutogradNestedTensor,
    torch._C.DispatchKey.ADInplaceOrView,
)


@contextmanager
def _recording() -> Iterator[None]:
    """Let torch record graphs again inside an operator's body, which runs below autograd.

    Backward differentiates lowerings, and plugins may differentiate whole functions.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (
        "AutogradFunctionality",
        "AutogradOther",
        "AutogradNestedTensor",
        "ADInplaceOrView",
    ):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        yield


def _own(gradient: Tensor, call: Call) -> Tensor:
    """A gradient that shares no memory with anything: functional operators return nothing else."""
    return gradient.contiguous() if gradient._base is None else gradient.clone()


def _fake_backward(contract: Contract, args: Sequence[Any]) -> list[Tensor]:
    request = _request(contract, args[:-3])
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for name in sorted(request.needs)
        if (tensor := request.tensors[name]) is not None
    ]


def _setup_context(contract: Contract, ctx: Any, args: Sequence[Any], outputs: Any) -> None:
    request = _request(contract, args)
    prepared = request.prepared()
    ctx.set_materialize_grads(False)
    ctx.others = [None if isinstance(arg, Tensor) else arg for arg in args]
    ctx.places = [index for index, arg in enumerate(args) if isinstance(arg, Tensor)]
    ctx.outputs = len(contract.outputs_for(prepared.features))
    ctx.implementation, ctx.needs = prepared.plan.id, sorted(request.needs)
    ctx.save_for_backward(*(args[place] for place in ctx.places), *outputs[ctx.outputs :])


def _autograd(contract: Contract, ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    tensors, saved = ctx.saved_tensors[: len(ctx.places)], ctx.saved_tensors[len(ctx.places) :]
    args = list(ctx.others)
    for place, tensor in zip(ctx.places, tensors, strict=True):
        args[place] = tensor
    backward = getattr(torch.ops.fla_core, f"{contract.name}_backward").default
    found = backward(*args, ctx.implementation, list(saved), list(grads[: ctx.outputs]))
    gradients: list[Tensor | None] = [None] * len(args)
    for name, gradient in zip(ctx.needs, found, strict=True):
        gradients[contract.input_names.index(name)] = gradient
    return tuple(gradients)


def _refuse_second_order(contract: Contract, ctx: Any, grads: Sequence[Tensor]) -> Any:
    raise UnsupportedError(contract.name, "differentiating a gradient again (second order)")


def _define(contract: Contract) -> None:
    name, arguments = contract.name, _arguments(contract)
    extra = "str implementation, Tensor[] saved, Tensor?[] grads"
    qualified = f"{NAMESPACE}::{name}"
    for target, schema in ((name, arguments), (f"{name}_backward", f"{arguments}, {extra}")):
        _library.define(f"{target}({schema}) -> Tensor[]")
    bodies = {
        name: (_forward, _fake_forward),
        f"{name}_backward": (_backward, _fake_backward),
    }
    for target, (body, fake) in bodies.items():
        _library.impl(target, _bound(body, contract), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{target}", _bound(fake, contract), lib=_library)
    torch.library.register_autograd(
        qualified,
        lambda ctx, grads: _autograd(contract, ctx, grads),
        setup_context=lambda ctx, inputs, output: _setup_context(contract, ctx, inputs, output),
        lib=_library,
    )
    torch.library.register_autograd(
        f"{qualified}_backward",
        lambda ctx, grads: _refuse_second_order(contract, ctx, grads),
        setup_context=lambda ctx, inputs, output: None,
        lib=_library,
    )


def _bound(body: Any, contract: Contract) -> Any:
    return lambda *args: body(contract, args)


for _contract in CONTRACTS.values():
    _define(_contract)

_OVERLOADS = {name: getattr(torch.ops.fla_core, name).default for name in CONTRACTS}


def invoke_traced(
    op: Operator,
    tensors: tuple[Tensor | None, ...],
    flags: tuple[bool, ...],
    scale: float | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    backend: str | None,
    options: tuple[float | None, ...],
    hints: Hints,
) -> tuple[Tensor, ...]:
    """Put one operator into the graph that is being traced; arguments as for eager calls."""
    contract = op.contract
    on = [name for name, flag in zip(contract.flags, flags, strict=True) if flag]
    if "states" in on:
        raise UnsupportedError(op.title, "return_intermediate_states under torch.compile")
    needs = [
        name
        for name, tensor in zip(op.inputs, tensors, strict=True)
        if tensor is not None and torch.is_grad_enabled() and tensor.requires_grad
    ]
    outputs = _OVERLOADS[contract.name](
        *tensors,
        cu_seqlens,
        cu_seqlens_cpu,
        op.name,
        scale,
        *options,
        _SEPARATOR.join(on),
        _SEPARATOR.join(needs),
        policy_text(backend),
        hints.chunk_size,
        hints.recompute,
        hints.safe_gate,
    )
    return tuple(outputs[: len(contract.outputs_for(frozenset(on)))])
