"""What a plugin says about itself: plain frozen data, importable without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fla_core.domain import Domain
from fla_core.verify import Verifier

PLUGIN_API = 1
"""Version of the hooks and of the dataclasses in this module."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device by name, where torch need not be loaded; a ``torch.device`` serves just as well."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


Loadable = str | Callable[..., Any]
"""A callable, or ``"module:function"`` to be imported on first use."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A plugin's card.

    Attributes:
        name: what ``FLA_BACKEND`` calls it; lower case, unique among installed plugins.
        targets: device types it serves, as torch names them (``"cuda"``, ``"cpu"``, ``"xpu"``).
        toolchain: what its kernels are written with (``"triton"``, ``"tilelang"``, ``"torch"``).
        requires: requirement strings (``"triton>=3.4"``) that must be met by installed
            distributions; checked from metadata, nothing is imported.
        priority: order under automatic selection, lower first; ties go by name.
        api: the ``PLUGIN_API`` it was written for.
        description: one line for people.
    """

    name: str
    targets: tuple[str, ...]
    toolchain: str
    requires: tuple[str, ...] = ()
    priority: int = 100
    api: int = PLUGIN_API
    description: str = ""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute one contract.

    Attributes:
        contract: contract name.
        revision: contract revision it was written for.
        variant: tells several implementations of one plugin apart; ids read
            ``plugin:contract#variant``.
        forward: ``forward(call, save) -> (outputs, residuals)``.
        backward: ``backward(call, residuals, grads, needs) -> {name: gradient}``; None refuses
            calls that need gradients.
        residuals: ``residuals(call) -> ((shape, dtype), ...)`` of what forward returns with
            ``save=True``; pure, metadata only. None when there are none.
        domain: subset of the contract's domain that it accepts without help.
        forms: forms it serves best; others are served too, after implementations that match.
        gradients: inputs it can differentiate; None means all.
        arch: patterns of architectures (``"sm90"``, ``"gfx9*"``); empty for all.
        verifier: narrows the domain further.
        reads: axes its verifier looks at beyond those of the domain.
        strided: accepts any strides; otherwise core hands over contiguous tensors.
        claims: promises that the conformance suite proves (``"deterministic"``,
            ``"graph_capture"``, ``"batch_invariant"``).
        pooled: ``pooled(call, slots) -> outputs``, for calls whose states lie in the slots of a
            pool; see :class:`fla_core.slots.Slots`. The call has no initial state, and asks for a
            final one only where the pool is left as it is. None lets core copy states out of the
            pool, call ``forward`` and copy them back.
    """

    contract: str
    revision: int
    variant: str
    forward: Loadable
    backward: Loadable | None
    domain: Domain
    residuals: Loadable | None = None
    forms: tuple[str, ...] = ("chunk",)
    gradients: frozenset[str] | None = None
    arch: tuple[str, ...] = ()
    verifier: Verifier | str | None = None
    reads: tuple[str, ...] = ()
    strided: bool = False
    claims: frozenset[str] = frozenset()
    pooled: Loadable | None = None


@dataclass(frozen=True, slots=True)
class Validity:
    """One row of the validity table: a compiler and chip pair known to be good or bad.

    Attributes:
        implementation: id pattern, ``"cuda:kda#*"``.
        direction: ``"forward"``, ``"backward"`` or ``"*"``.
        arch: architecture pattern.
        toolchain: requirement string such as ``"triton>=3.4,<3.7.1"``.
        status: ``"ok"``, ``"denied"`` or ``"unverified"``.
        reason: why; shown to the user of a denied call.
    """

    implementation: str
    direction: str
    arch: str
    toolchain: str
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Answer of a plugin to «do you run on this device?».

    Attributes:
        ok: it compiled and ran a small kernel.
        reason: why not, for people.
        arch: architecture of the device, ``"sm90"``.
        versions: versions of what took part.
    """

    ok: bool
    reason: str = ""
    arch: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
