"""``fla-kernels explain``: which implementation a call would get, and why.

JSON: the keys of :meth:`fla_core.dispatch.decision.Decision.to_json` (``operator``, ``contract``,
``device``, ``axes``, ``features``, ``gradients``, ``policy``, ``chosen``, ``plan``, ``considered``,
``not_asked``), ``install``, a list of steps that would bring a backend that the policy lets in
for the device and architecture; it is empty when an installed plugin can serve them, and ``note``,
that the device is not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fla_core.cli import _view

if TYPE_CHECKING:
    from fla_core.dispatch.decision import Decision
    from fla_core.verify import Verdict


@_view.command
def explain(
    operator: Annotated[str, typer.Argument(help="kda, chunk_kda or kda.chunk_kda.")],
    b: Annotated[int | None, typer.Option("--B", help="Batch size.")] = None,
    t: Annotated[int | None, typer.Option("--T", help="Tokens.")] = None,
    h: Annotated[int | None, typer.Option("--H", help="Heads of q and k.")] = None,
    hv: Annotated[int | None, typer.Option("--HV", help="Heads of v; as --H by default.")] = None,
    k: Annotated[int | None, typer.Option("--K", help="Size of a key.")] = None,
    v: Annotated[int | None, typer.Option("--V", help="Size of a value.")] = None,
    n: Annotated[int | None, typer.Option("--N", help="Packed sequences.")] = None,
    dtype: Annotated[str, typer.Option(help="Of q, k and v: bf16, fp16, fp32, fp64.")] = "bf16",
    device: Annotated[
        str, typer.Option(help="cuda, cuda:1, cpu, ...; that of --arch, if given.")
    ] = "",
    arch: Annotated[str, typer.Option(help="Architecture to suppose, such as sm90.")] = "",
    feature: Annotated[list[str] | None, typer.Option(help="l2norm, varlen, ...; repeats.")] = None,
    grad: Annotated[
        bool, typer.Option("--grad", help="Gradients of all inputs are wanted.")
    ] = False,
    backend: Annotated[str | None, typer.Option(help="Policy, as in FLA_BACKEND.")] = None,
    as_json: _view.Json = False,
) -> None:
    """Say which implementation a call would get, and why not the others.

    Nothing is computed, and the device need not be here. Exit code 1 when nobody would serve the
    call.
    """
    from fla_core.cli._hints import for_call
    from fla_core.dispatch.explain import device_note
    from fla_core.dispatch.explain import explain as decide

    sizes: dict[str, Any] = {"B": b, "T": t, "H": h, "HV": hv, "K": k, "V": v, "N": n}
    with _view.stdout_to_stderr():
        decision = decide(
            operator,
            device=device,
            arch=arch,
            dtype=dtype,
            features=feature or (),
            gradients=grad,
            backend=backend,
            **{axis: size for axis, size in sizes.items() if size is not None},
        )
        install = for_call(decision, arch)
        note = "" if arch else device_note(device)
    if as_json:
        _view.emit({**decision.to_json(), "install": install, "note": note})
    else:
        _show(decision, install, note)
    if decision.chosen is None:
        raise typer.Exit(1)


def _show(decision: Decision, install: list[str], note: str) -> None:
    from fla_core.dispatch.decision import describe

    to = _view.console()
    supposed = " if there were such a device" if note else ""
    plan = decision.plan or "no implementation"
    to.print(f"{decision.operator}: {plan}{supposed}", style="bold")
    facts = [("call", describe(decision.view))]
    facts.append(("policy", f"{decision.policy} (from {decision.origin})"))
    facts.append(("note", note))
    if decision.view.device != "cpu" and (decision.chosen or "").startswith("reference:"):
        facts.append(("note", "only the slow reference would serve it; nothing else accepts"))
    facts += [("install" if i == 0 else "", line) for i, line in enumerate(install)]
    _view.pairs(to, facts)
    _view.heading(to, "Candidates, in the order in which they are asked")
    _view.table(to, ("candidate", "answer", "why", "stage"), list(_rows(decision)))


def _rows(decision: Decision) -> list[tuple[str, str, str, str]]:
    rows = []
    for candidate, stage, verdict in decision.considered:
        answer, why = _answer(stage, verdict)
        rows.append((candidate, answer, why, "" if stage == answer else stage))
    rows += [(name, "not asked", why, "") for name, why in decision.not_asked]
    return rows


def _answer(stage: str, verdict: Verdict) -> tuple[str, str]:
    """A verdict as the state it puts the candidate in, and the reason."""
    from fla_core.verify import Reason

    if verdict.ok:
        return ("accepted" if stage == "accepted" else "condition"), verdict.subject
    if verdict.code is Reason.STATE:
        state, _, why = verdict.subject.partition(": ")
        return state, why
    if verdict.code is Reason.POLICY:
        return "excluded", verdict.subject
    why = (
        f"{verdict.subject}={verdict.got}, wants {verdict.want}"
        if verdict.want
        else verdict.subject
    )
    return ("faulty" if verdict.code is Reason.INTERNAL else "refused"), why
