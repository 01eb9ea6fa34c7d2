"""``explain``: the decision for a call that nobody makes, also for hardware that is not here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS, public_names
from fla_core.dispatch import chips
from fla_core.dispatch.context import policy_text
from fla_core.dispatch.decision import Decision
from fla_core.dispatch.policy import operator_names
from fla_core.dispatch.resolve import Request, search
from fla_core.dispatch.runtime import RUNTIME, backends
from fla_core.domain import AXES, SHORT_DTYPES
from fla_core.errors import ContractError, UnknownOperatorError
from fla_core.plugins.api import Device
from fla_core.verify import CallView

DEVICE_TYPES = (
    "cpu",
    "cuda",
    "xpu",
    "npu",
    "mps",
    "hpu",
    "mtia",
    "meta",
    "privateuseone",
    "hip",
    "ipu",
    "maia",
    "mlu",
    "musa",
    "sdaa",
    "vulkan",
    "xla",
)
"""Names that torch, or a package that adds a device to it, has for types of devices."""

_LONG_DTYPES = {short: name for name, short in SHORT_DTYPES.items()}


def explain(
    operator: str,
    *,
    device: str = "",
    arch: str = "",
    dtype: str = "bfloat16",
    form: str = "",
    features: Iterable[str] = (),
    gradients: bool | Iterable[str] = False,
    backend: str | None = None,
    **sizes: int,
) -> Decision:
    """Say which implementation a call would get and why, without tensors and without computing.

    Facts that are not given become conditions in the answer (``only if K is 64 | 128``).

    Args:
        operator: public name or contract, optionally with its family: ``"kda.chunk_kda"``.
        device: ``"cuda"``, ``"cuda:1"``; by default that of ``arch``, else the machine's
            accelerator, else the CPU. For a device that this machine does not have, plugins are
            taken at their word.
        arch: architecture that an installed plugin knows, ``"sm90"``; giving it keeps plugins from
            being probed.
        dtype: of q, k and v: ``"bf16"`` or ``"bfloat16"``.
        form: ``"chunk"``, ``"recurrent"``, ``"parallel"``; that of the public name by default.
        features: names of optional features in use, besides those that every call of the public
            name has.
        gradients: True for the gradients of all inputs, or their names.
        backend: selection policy, as on a call.
        **sizes: axis sizes by letter (``K=128``).

    Returns:
        the decision; ``print(decision.render())`` shows it.

    Raises:
        UnknownOperatorError: there is no such operator.
        ContractError: a fact does not fit the operator.
        PolicyError: the policy cannot be understood.

    Example:
        >>> explain("chunk_kda", K=128, dtype="bf16", device="cuda").chosen
    """
    contract, name, own_form = find_operator(operator)
    facts = _Facts(contract, name)
    if arch and not device:
        device = chips.device_type(name, arch)
    target = parse_device(name, device or _default_device())
    if arch:
        chips.check(name, arch, target.type)
    sizes, active = facts.sizes(sizes), facts.features(features)
    facts.check_rows(sizes, active)
    if "HV" in sizes and sizes["HV"] != sizes.get("H", sizes["HV"]):
        active |= {"gva"}
    dtypes = facts.dtypes(facts.dtype(dtype), active)
    wanted = facts.gradients(gradients, dtypes)
    facts.check_together(active, wanted)
    view = CallView(
        contract=contract.name,
        form=form or own_form,
        device=target.type,
        arch=arch,
        dtype=dtypes["q"],
        dtypes=dtypes,
        axes=RUNTIME.contract(contract).axes(tuple(sizes.get(axis) for axis in AXES)),
        features=active,
        gradients=wanted,
    )
    absent = f"arch {arch} is given" if arch else _absence(target)
    policy = policy_text(backend)
    return explain_request(Request(contract, name, target, view, policy, True, absent))


def explain_request(request: Request) -> Decision:
    """The decision for a request made by hand; nothing is raised when nobody accepts."""
    return search(RUNTIME, request).decision()


def find_operator(text: str) -> tuple[Contract, str, str]:
    """Contract, name and form for a public name or a contract, with or without family.

    Raises:
        UnknownOperatorError: there is none; close names are suggested.
    """
    known: dict[str, tuple[Contract, str, str]] = {}
    for name, (contract, form) in public_names().items():
        known.update(dict.fromkeys(_spellings(contract.name, name), (contract, name, form)))
    for contract in CONTRACTS.values():
        known[contract.name] = (contract, contract.name, "chunk")
    if text not in known:
        close = difflib.get_close_matches(text.rpartition(".")[2], known, n=3)
        raise UnknownOperatorError(text, tuple(close), tuple(CONTRACTS))
    return known[text]


def _spellings(contract: str, name: str) -> list[str]:
    return [spelling for spelling in operator_names(contract, name) if spelling.endswith(name)]


@dataclass(frozen=True, slots=True)
class _Facts:
    """Checks facts against a contract and fills in what follows from it."""

    contract: Contract
    operator: str

    @property
    def _brought(self) -> frozenset[str]:
        return frozenset(dict(self.contract.brought).get(self.operator, ()))

    def sizes(self, given: Mapping[str, int]) -> dict[str, int]:
        ranges = self.contract.domain.axes
        for axis, size in given.items():
            if axis not in ranges:
                raise self._error(axis, f"one of the axes {', '.join(ranges)}", f"{axis}={size}")
            if size not in ranges[axis]:
                raise self._error(axis, str(ranges[axis]), str(size))
        sizes = dict(given)
        if "H" in given and "HV" in ranges:
            sizes.setdefault("HV", given["H"])
        for relation in self.contract.domain.relations:
            if sizes.keys() >= set(relation.axes) and not relation.holds(sizes):
                got = ", ".join(f"{axis}={sizes[axis]}" for axis in relation.axes)
                raise self._error(relation.axes[-1], str(relation), got)
        return sizes

    def check_rows(self, sizes: Mapping[str, int], active: frozenset[str]) -> None:
        """Check how many sequences lie in how many rows."""
        rows, sequences = sizes.get("B"), sizes.get("N")
        if "varlen" in active and rows not in (1, None):
            raise self._error("B", "1: packed sequences lie in one row (varlen)", str(rows))
        if "varlen" not in active and None not in (rows, sequences) and rows != sequences:
            expected = f"{rows}, the rows of a dense batch, or the feature varlen"
            raise self._error("N", expected, str(sequences))

    def check_together(self, active: frozenset[str], gradients: frozenset[str]) -> None:
        """Check that some call could have these features, as the public operators do.

        What a lowering takes along is of no effect without its first feature; and that changes an
        argument, which then has to be there.
        """
        for lowering in self.contract.lowerings:
            first, *further = lowering.features
            for name in further:
                if name in active and first not in active:
                    expected = f"{first} beside {name}, which has no effect without it"
                    raise self._error("features", expected, f"{name} without {first}")
            changed = lowering.widens[0][0] if lowering.widens else ""
            optional = changed in self.contract.features and changed not in lowering.adds
            if first in active and optional and changed not in active:
                expected = f"{changed} beside {first}, which changes it"
                raise self._error("features", expected, f"{first} without {changed}")
        rates = [name for name in ("A_log", "lower_bound") if name in self.contract.features]
        if "gate" in active and not active.intersection(rates):
            got = f"gate without {' or '.join(rates)}"
            raise self._error("features", f"{' or '.join(rates)} beside gate", got)
        if "states" in active and gradients:
            raise self._error("gradients", "none beside states", ", ".join(sorted(gradients)))

    def features(self, given: Iterable[str]) -> frozenset[str]:
        names, known = frozenset(given), self.contract.features
        for name in sorted(names.difference(known)):
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise self._error("features", f"some of {', '.join(known)}", f"{name!r}{hint}")
        domain = self.contract.domain
        names |= {name for name in known if domain.presence(name) == "required"}
        names |= frozenset(dict(self.contract.given).get(self.operator, ()))
        names |= self._brought
        shaped = {one.name for one in self.contract.inputs if f"{one.name}_v" in names}
        return names | shaped.intersection(known)

    def dtype(self, given: str) -> str:
        dtype = _LONG_DTYPES.get(given, given.removeprefix("torch."))
        if (refusal := self.contract.domain.check_dtype(dtype)) is not None:
            raise self._error("dtype", refusal.want, given)
        return dtype

    def dtypes(self, dtype: str, active: frozenset[str]) -> dict[str, str]:
        wide = "float64" if dtype == "float64" else "float32"
        return {
            spec.name: dtype if spec.dtype == "activation" else wide
            for spec in self.contract.inputs
            if not spec.optional or spec.name in active
        }

    def gradients(self, given: bool | Iterable[str], dtypes: Mapping[str, str]) -> frozenset[str]:
        if isinstance(given, bool):
            return frozenset(dtypes) - self._brought if given else frozenset()
        names = frozenset(given)
        if unknown := sorted(names.difference(dtypes)):
            raise self._error("gradients", f"some of {', '.join(dtypes)}", unknown[0])
        return names

    def _error(self, argument: str, expected: str, got: str) -> ContractError:
        return ContractError(self.operator, argument, expected, got)


def parse_device(operator: str, text: str) -> Device:
    """Read ``"cuda"`` or ``"cuda:1"`` without torch; the type is one that somebody knows."""
    kind, colon, index = text.partition(":")
    if not kind.isidentifier() or (colon and not index.isdecimal()):
        raise ContractError(operator, "device", "a device such as cuda or cuda:1", text)
    cards = [record.backend for record in backends() if record.backend is not None]
    targets = [target for card in cards for target in card.targets if target.isidentifier()]
    known = dict.fromkeys((*DEVICE_TYPES, *targets))
    if kind not in known:
        close = difflib.get_close_matches(kind, known, n=3)
        expected = f"one of {', '.join(known)}"
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise ContractError(operator, "device", expected, f"{text!r}{hint}")
    return Device(kind, int(index) if index else None)


def device_note(text: str) -> str:
    """What is to be said of a device that this machine does not have."""
    kind, _, index = text.partition(":")
    if kind in ("", "cpu"):
        return f"there is one cpu, no {text}" if int(index or 0) else ""
    return _absence(Device(kind, int(index) if index else None))


def _default_device() -> str:
    try:
        import torch
    except ImportError:
        return "cpu"
    found = torch.accelerator.current_accelerator()
    return "cpu" if found is None or not torch.accelerator.is_available() else found.type


def _absence(device: Device) -> str:
    """Why nothing can be probed on a device; ``""`` when it is there."""
    if device.type == "cpu":
        return ""
    try:
        import torch

        count = torch.get_device_module(device.type).device_count()
    except (ImportError, RuntimeError, AttributeError):
        count = 0
    return "" if count > (device.index or 0) else f"no {device} device"
