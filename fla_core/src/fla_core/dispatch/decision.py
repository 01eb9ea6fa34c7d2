"""What was decided for a call and why, as one object for logs, errors and ``explain``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from fla_core.domain import SHORT_DTYPES
from fla_core.errors import layout
from fla_core.verify import CallView, Reason, Verdict

Considered = tuple[str, str, Verdict]
"""Candidate (an implementation's id, or a plugin's name), stage reached, verdict there."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one selection.

    Attributes:
        operator: name the call was made under.
        contract: contract name.
        revision: revision of the contract.
        view: metadata the decision rests on.
        policy: text of the policy in force, ``"auto"`` when there is none.
        origin: who set the policy: ``backend=``, ``fla_core.use()``, a variable, ``automatic``.
        chosen: id of the implementation, None when nobody accepts.
        considered: every candidate that was looked at, in order.
        plan: the id with its lowerings, ``"acme:kda#chunk (lowered: l2norm)"``; ``""`` if none.
        not_asked: plugins that were not looked at, each with the reason.
    """

    operator: str
    contract: str
    revision: int
    view: CallView
    policy: str
    origin: str
    chosen: str | None
    considered: tuple[Considered, ...]
    plan: str = ""
    not_asked: tuple[tuple[str, str], ...] = ()

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line of an error or of an explanation."""
        rows = [("call", describe(self.view))]
        rows += [(candidate, _outcome(stage, v)) for candidate, stage, v in self.considered]
        rows += [(name, f"not asked  {why}") for name, why in self.not_asked]
        rows.append(("policy", f"{self.policy!r}, from {self.origin}"))
        if self.chosen is None:
            rows.append(("next", self._next()))
        return rows

    def _next(self) -> str:
        """The command that comes to the same decision."""
        facts = [f"--{axis} {size}" for axis, size in self.view.axes.items() if size is not None]
        dtype = SHORT_DTYPES.get(self.view.dtype, self.view.dtype)
        facts += [f"--dtype {dtype}", f"--device {self.view.device}"]
        facts += [f"--arch {self.view.arch}"] if self.view.arch else []
        facts += [f"--feature {name}" for name in sorted(self.view.features)]
        facts += ["--grad"] if self.view.gradients else []
        facts += [f"--backend {shlex.quote(self.policy)}"] if self.policy != "auto" else []
        return f"fla-kernels explain {self.operator} {' '.join(facts)}"

    def render(self) -> str:
        """The decision for a person."""
        headline = f"{self.operator}: {self.plan or 'no implementation'}"
        return layout(headline, self.rows())

    def to_json(self) -> dict[str, Any]:
        """The decision as plain data."""
        view = self.view
        return {
            "operator": self.operator,
            "contract": f"{self.contract}@{self.revision}",
            "form": view.form,
            "device": view.device,
            "arch": view.arch,
            "dtypes": dict(view.dtypes),
            "axes": dict(view.axes),
            "features": sorted(view.features),
            "gradients": sorted(view.gradients),
            "traced": view.traced,
            "policy": {"text": self.policy, "origin": self.origin},
            "chosen": self.chosen,
            "plan": self.plan,
            "considered": [
                {
                    "candidate": candidate,
                    "stage": stage,
                    "code": verdict.code.value,
                    "subject": verdict.subject,
                    "want": verdict.want,
                    "got": verdict.got,
                }
                for candidate, stage, verdict in self.considered
            ],
            "not_asked": [{"plugin": name, "reason": why} for name, why in self.not_asked],
        }


def describe(view: CallView) -> str:
    """The call in one line: ``chunk K=192 bf16 cuda sm90 | varlen, grad``."""
    sizes = [f"{axis}={'?' if size is None else size}" for axis, size in view.axes.items()]
    dtype = SHORT_DTYPES.get(view.dtype, view.dtype)
    words = filter(None, (view.form, *sizes, dtype, view.device, view.arch))
    notes = sorted(view.features)
    notes += ["grad"] if view.gradients else []
    notes += ["traced"] if view.traced else []
    return " | ".join(filter(None, (" ".join(words), ", ".join(notes))))


def _outcome(stage: str, verdict: Verdict) -> str:
    if verdict.ok:
        return verdict.subject or "accepted"
    if verdict.code is Reason.STATE:
        return verdict.subject
    if verdict.code is Reason.POLICY:
        return f"excluded  {verdict.subject}"
    word = "faulty" if verdict.code is Reason.INTERNAL else "refused"
    return f"{word}  {verdict} [{stage}]"
