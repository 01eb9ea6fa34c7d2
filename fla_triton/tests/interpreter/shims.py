"""What Triton's interpreter gets wrong, does not look at or does too often, for tests.

It multiplies the raw bits of bfloat16 operands and truncates where it should round; and a load or
store outside every tensor of a launch goes wherever the address points to. ``correct_bfloat16``
computes in float32 and rounds to nearest even; ``watch_bounds`` raises instead. Whenever a kernel
calls a function it replaces all of its language anew; ``replace_once`` leaves it at once a launch.
Of every value it makes a type and a shape; ``share_types`` makes those of a block once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from fla_triton.kernels import common

BUILDER = interpreter.InterpreterBuilder
ARITHMETIC = [
    "fadd",
    "fsub",
    "fmul",
    "fdiv",
    "frem",
    "precise_divf",
    "minimumf",
    "maximumf",
    "minnumf",
    "maxnumf",
    "fma",
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "precise_sqrt",
    "rsqrt",
    "fabs",
    "floor",
    "ceil",
    "clampf",
    "fneg",
]
COMPARISONS = [f"fcmp{o}{c}" for o in "OU" for c in ("LT", "GT", "LE", "GE", "EQ", "NE")]


def install() -> None:
    """All of what follows but what spoils kernels."""
    correct_bfloat16()
    watch_bounds()
    replace_once()
    share_types()


def _is_narrow(x: Any) -> bool:
    return isinstance(x, interpreter.TensorHandle) and x.dtype.scalar == tl.bfloat16


def _widened(x: Any) -> Any:
    if not _is_narrow(x):
        return x
    bits = np.ascontiguousarray(x.data).astype(np.uint32) << 16
    return interpreter.TensorHandle(bits.view(np.float32).reshape(x.data.shape), tl.float32)


def _rounded(x: Any) -> Any:
    flat = np.ascontiguousarray(x.data, dtype=np.float32)
    bits = flat.view(np.uint32)
    nearest = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    data = np.where(np.isnan(flat), np.uint16(0x7FC0), nearest)
    return interpreter.TensorHandle(data.reshape(x.data.shape), tl.bfloat16)


def _through_float32(name: str, narrow_result: bool) -> None:
    original = getattr(BUILDER, f"create_{name}", None)
    if original is None:
        return

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(map(_is_narrow, args)):
            return original(self, *args, **kwargs)
        answer = original(self, *map(_widened, args), **kwargs)
        return _rounded(answer) if narrow_result else answer

    setattr(BUILDER, f"create_{name}", wrapped)


def correct_bfloat16() -> None:
    """Make bfloat16 products, sums, comparisons and casts right."""
    for name in ARITHMETIC:
        _through_float32(name, narrow_result=True)
    for name in (*COMPARISONS, "dot"):
        _through_float32(name, narrow_result=False)

    def constant(self: Any, value: float) -> Any:
        return _rounded(interpreter.TensorHandle(np.array([value], np.float32), tl.float32))

    BUILDER.get_bf16 = constant
    original = BUILDER.cast_impl

    def cast(self: Any, source: Any, target: Any) -> Any:
        narrow_from, narrow_to = _is_narrow(source), target.scalar == tl.bfloat16
        if narrow_from and narrow_to:
            return source
        if narrow_from:
            wide = _widened(source)
            return wide if target.scalar == tl.float32 else original(self, wide, target)
        if narrow_to:
            single = source.dtype.scalar == tl.float32
            return _rounded(source if single else original(self, source, tl.float32))
        return original(self, source, target)

    BUILDER.cast_impl = cast
    plain = BUILDER.create_fp_to_fp

    def between_floats(self: Any, source: Any, target: Any, mode: Any) -> Any:
        if tl.bfloat16 in (source.dtype.scalar, target.scalar):
            return self.cast_impl(source, target)
        return plain(self, source, target, mode)

    BUILDER.create_fp_to_fp = between_floats


class OutOfBoundsError(IndexError):
    """An active lane of a load or store hit none of the launch's tensors."""


def _ranges_of(values: Any) -> list[tuple[int, int]]:
    found = []
    for value in values:
        if hasattr(value, "untyped_storage") and value.numel():
            extent = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) + 1
            begin = value.data_ptr()
            found.append((begin, begin + extent * value.element_size()))
    return found


def watch_bounds() -> None:
    """Raise ``OutOfBoundsError`` where an active lane leaves every tensor of its launch."""
    ranges: list[tuple[int, int]] = []

    def check(pointer: Any, mask: Any, what: str) -> None:
        size = max(1, pointer.get_element_ty().primitive_bitwidth // 8)
        places = pointer.data.reshape(-1)
        if mask is not None:
            places = pointer.data[np.broadcast_to(mask.data, pointer.data.shape).astype(bool)]
        fine = np.zeros(places.shape, dtype=bool)
        for begin, end in ranges:
            fine |= (places >= begin) & (places + size <= end)
        if not fine.all():
            where = interpreter.interpreter_builder.grid_idx
            raise OutOfBoundsError(f"{what}: {int((~fine).sum())} lanes of program {where}")

    def guarded(name: str, mask_at: int) -> Callable[..., Any]:
        original = getattr(BUILDER, name)

        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            check(args[0], args[mask_at] if len(args) > mask_at else kwargs.get("mask"), name)
            return original(self, *args, **kwargs)

        return wrapped

    BUILDER.create_masked_load = guarded("create_masked_load", 1)
    BUILDER.create_masked_store = guarded("create_masked_store", 2)
    start = interpreter.GridExecutor._init_args_hst

    def remembering(self: Any, args: Any, kwargs: Any) -> Any:
        on_host = start(self, args, kwargs)
        ranges[:] = _ranges_of([*on_host[0], *on_host[1].values()])
        return on_host

    interpreter.GridExecutor._init_args_hst = remembering


def replace_once() -> None:
    """Replace the language once a launch, whose end restores it.

    Once a call takes half of the time of delta rules whose channels decay.
    """
    replace, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    replaced: set[int] = set()

    def where_needed(function: Any) -> Any:
        named = {id(x) for x in function.__globals__.values() if x is tl or x is tl.core}
        if named <= replaced:
            return interpreter._LangPatchScope()
        replaced.update(named)
        return replace(function)

    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        replaced.clear()
        return launch(self, *args, **kwargs)

    interpreter._patch_lang = where_needed
    interpreter.GridExecutor.__call__ = launched


def share_types() -> None:
    """Make the type of a block once, and the shape that values of it have.

    Nothing changes them. Most of an operation's time goes into them and into comparing them, while
    numpy takes a tenth of it: with this, cases take half of the time.
    """
    block, tensor, semantic = tl.core.block_type, tl.core.tensor, interpreter.TritonSemantic
    check, broadcast = block.__init__, semantic.broadcast_impl_value
    types: dict[tuple[Any, ...], Any] = {}

    def shared(cls: Any, element: Any, shape: Any) -> Any:
        key = element.name, *[tl.core._unwrap_if_constexpr(size) for size in shape]
        if key not in types:
            made = object.__new__(cls)
            check(made, element, shape)
            shape = tl.core.tuple([tl.core.constexpr(size) for size in made.shape])
            made.of_values = shape, tl.core.constexpr(made.numel)
            types[key] = made
        return types[key]

    of_scalars = tl.core.tuple([]), tl.core.constexpr(1)

    def started(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.shape, self.numel = kind.of_values if kind.is_block() else of_scalars

    def alike(self: Any, left: Any, right: Any) -> Any:
        one, other = left.type, right.type
        blocks = one.is_block() and other.is_block()
        if one is other or (blocks and one.shape.values == other.shape.values):
            return left, right
        return broadcast(self, left, right)

    def numpy_type(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in numpy_types:
            numpy_types[name] = of_numpy(kind)
        return numpy_types[name]

    of_numpy = interpreter._get_np_dtype
    numpy_types: dict[str, Any] = {}
    interpreter._get_np_dtype = numpy_type
    block.__new__ = shared
    block.__init__ = lambda self, element, shape: None
    tensor.__init__ = started
    semantic.broadcast_impl_value = alike


def spoil(function: Any, right: str, wrong: str) -> None:
    """Replace a part of a function that kernels call.

    Raises:
        LookupError: the function has no such part.
    """
    text = inspect.getsource(function.fn)
    source = text[text.index("def ") :]
    if right not in source:
        raise LookupError(f"{function.__name__} has no {right!r} to spoil")
    names: dict[str, Any] = {}
    exec(source.replace(right, wrong), function.fn.__globals__, names)
    function.rewritten_fn[function.fn] = names[function.__name__]


def mend(function: Any) -> None:
    """Undo ``spoil``."""
    del function.rewritten_fn[function.fn]


def spoil_masks() -> None:
    """Let kernels read rows of other sequences, or of none: no result may then be right."""
    spoil(common.load_rows, "live[:, None]", "(rows >= 0)[:, None]")
