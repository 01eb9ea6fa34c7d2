"""Verdicts, and the metadata a verifier may look at.

A verifier sees a :class:`CallView` and nothing else: no tensor, no data, no environment. What it
can see is exactly what the plan's key is made of, so its answer may be cached with the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NoReturn


class Reason(str, Enum):
    """Why a candidate was or was not taken."""

    OK = "OK"
    DTYPE = "DTYPE"
    AXIS = "AXIS"
    FEATURE = "FEATURE"
    GRAD = "GRAD"
    DEVICE = "DEVICE"
    ARCH = "ARCH"
    TOOLCHAIN = "TOOLCHAIN"
    CONTRACT = "CONTRACT"
    VALIDITY = "VALIDITY"
    VERIFIER = "VERIFIER"
    INTERNAL = "INTERNAL"
    POLICY = "POLICY"
    STATE = "STATE"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to «may this candidate serve this call?»; refuses truth testing.

    A verdict is compared with ``OK`` through :attr:`ok`: a refusal that is truthy by accident is
    how a wrong backend gets chosen.
    """

    code: Reason
    subject: str = ""
    want: str = ""
    got: str = ""

    @property
    def ok(self) -> bool:
        """True when the candidate may serve the call."""
        return self.code is Reason.OK

    def __bool__(self) -> NoReturn:
        raise TypeError("a Verdict has no truth value; read its .ok")

    def __str__(self) -> str:
        if self.ok:
            return "accepted"
        if not self.want:
            return f"{self.code.value:<8} {self.subject}"
        return f"{self.code.value:<8} {self.subject}={self.got}, wants {self.want}"


OK = Verdict(Reason.OK)


@dataclass(frozen=True, slots=True)
class CallView:
    """Metadata of one call.

    Attributes:
        contract: contract name, ``"kda"``.
        form: ``"chunk"``, ``"recurrent"`` or ``"parallel"``, as the public name says.
        device: device type, ``"cuda"``.
        arch: architecture of the device, ``"sm90"``; ``""`` where there is none.
        dtype: dtype name of ``q``, ``"bfloat16"``.
        dtypes: dtype name of each tensor argument that is present.
        axes: sizes by letter; only those that candidates declare, None if unknown while tracing.
        features: names of the features the call uses.
        gradients: names of the inputs whose gradient is wanted; empty for inference.
        traced: True inside ``torch.compile``.
    """

    contract: str
    form: str
    device: str
    arch: str
    dtype: str
    dtypes: Mapping[str, str]
    axes: Mapping[str, int | None]
    features: frozenset[str]
    gradients: frozenset[str] = frozenset()
    traced: bool = False


Verifier = Callable[[CallView], tuple[bool, str | None]]


def run_verifier(verifier: Verifier, view: CallView) -> Verdict:
    """Wrap a plugin's ``(accepted, reason)`` into a verdict; anything else is INTERNAL."""
    # A copy, since whoever is asked next must see the same facts.
    shown = replace(view, dtypes=dict(view.dtypes), axes=dict(view.axes))
    try:
        answer = verifier(shown)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Verdict(Reason.INTERNAL, f"verifier raised {type(error).__name__}: {error}")
    match answer:
        case (True, None):
            return OK
        case (False, str() as reason):
            return Verdict(Reason.VERIFIER, reason)
    return Verdict(
        Reason.INTERNAL, f"verifier returned {answer!r}, not (True, None) or (False, reason)"
    )
