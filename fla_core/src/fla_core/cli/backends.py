"""``fla-kernels backends``: what each plugin offers.

JSON: ``backends``, a list with the keys of
:meth:`fla_core.plugins.record.PluginRecord.to_json` (``name``, ``state``, ``detail``, ``origin``,
``backend``, ``notes``, ...) and ``operators``, a list of ``id``, ``contract``, ``variant``,
``revision``, ``forms``, ``arch``, ``dtypes``, ``axes`` (only where narrower than the contract),
``relations``, ``raw`` (features accepted as they are), ``required``, ``lowered`` (features that
core computes around it), ``refused``, ``backward`` (true, false or names) and ``claims``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fla_core.cli import _view

if TYPE_CHECKING:
    from fla_core.contract import Contract
    from fla_core.plugins.api import Implementation
    from fla_core.plugins.record import PluginRecord


@_view.command
def backends(
    op: Annotated[str, typer.Option(help="Only operators that match this glob.")] = "*",
    as_json: _view.Json = False,
) -> None:
    """List what each plugin can compute: dtypes, sizes, features, gradients."""
    from fla_core.cli._select import contracts_matching
    from fla_core.dispatch.runtime import backends as records

    wanted = contracts_matching(op)
    with _view.stdout_to_stderr():
        found = [(record, _offers(record, wanted)) for record in records()]
    if as_json:
        _view.emit({"backends": [{**r.to_json(), "operators": offers} for r, offers in found]})
        return
    to = _view.console()
    for record, offers in found:
        _show(to, record, offers)
    to.print("\n[dim]lowered: computed by core around the implementation; *: required[/dim]")


def _offers(record: PluginRecord, wanted: dict[str, Contract]) -> list[dict[str, Any]]:
    return [
        _offer(record.name, implementation, wanted[implementation.contract])
        for implementation in record.implementations
        if implementation.contract in wanted
    ]


def _offer(plugin: str, offered: Implementation, contract: Contract) -> dict[str, Any]:
    domain, outer = offered.domain, contract.domain
    removable = {name for lowering in contract.lowerings for name in lowering.features}
    presence = {name: domain.presence(name) for name in contract.features}
    closed = [name for name in contract.features if presence[name] == "forbidden"]
    backward: Any = offered.backward is not None
    if backward and offered.gradients is not None:
        backward = sorted(offered.gradients)
    return {
        "id": f"{plugin}:{offered.contract}#{offered.variant}",
        "contract": offered.contract,
        "variant": offered.variant,
        "revision": offered.revision,
        "forms": list(offered.forms),
        "arch": list(offered.arch),
        "dtypes": list(domain.dtypes),
        "axes": {axis: str(r) for axis, r in domain.axes.items() if r != outer.axes.get(axis)},
        "relations": [str(r) for r in domain.relations if r not in outer.relations],
        "raw": [name for name in contract.features if name not in closed],
        "required": [name for name in contract.features if presence[name] == "required"],
        "lowered": [name for name in closed if name in removable],
        "refused": [name for name in closed if name not in removable],
        "backward": backward,
        "claims": sorted(offered.claims),
    }


_HEADERS = ("operator", "forms", "dtypes", "sizes", "features taken", "lowered", "backward")


def _show(to: Any, record: PluginRecord, offers: list[dict[str, Any]]) -> None:
    from fla_core.cli._view import block, heading, pairs

    heading(to, record.name)
    card = record.backend
    facts = [("state", record.summary()), ("from", str(record.origin))]
    if card is not None:
        facts += [("targets", ", ".join(card.targets)), ("toolchain", card.toolchain)]
        facts += [("priority", str(card.priority)), ("about", card.description)]
    pairs(to, facts)
    for offer in offers:
        # No table: its columns of features would be narrow, and its rows ten lines high.
        block(to, _HEADERS, _row(offer), indent=2)


def _row(offer: dict[str, Any]) -> tuple[str, ...]:
    from fla_core.domain import SHORT_DTYPES

    sizes = [f"{axis} {allowed}" for axis, allowed in offer["axes"].items()]
    sizes += offer["relations"] + [f"arch {' | '.join(offer['arch'])}"] * bool(offer["arch"])
    raw = [f"{name}*" if name in offer["required"] else name for name in offer["raw"]]
    backward = offer["backward"]
    return (
        f"{offer['contract']}#{offer['variant']}",
        ", ".join(offer["forms"]),
        ", ".join(SHORT_DTYPES.get(name, name) for name in offer["dtypes"]),
        "; ".join(sizes) or "any",
        ", ".join(raw),
        ", ".join(offer["lowered"]),
        ", ".join(backward) if isinstance(backward, list) else "yes" if backward else "no",
    )
