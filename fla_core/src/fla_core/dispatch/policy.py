"""The selection policy: a small language, and where its text comes from.

::

    policy = rule *(";" rule)        rule = [operators "="] item *("," item)
    item   = plugin ["/" toolchain]  only these, in this order: the list is closed
           | "auto"                  everything else that is installed; opens the list
           | "reference"             the core's own mathematics
           | "-" plugin              not this one (only beside "auto")

``operators`` is a glob over contracts and public names, optionally with a family before a dot:
``kda``, ``chunk_kda``, ``kda.*``, ``kda.chunk_kda``. The most specific glob that matches an
operator wins. An operator that no rule of a policy matches is left to the next level: from
``backend=`` to the innermost ``use()``, to those around it, to ``FLA_BACKEND`` and beyond that to
automatic selection.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

from fla_core.contracts import CONTRACTS, public_names
from fla_core.errors import PolicyError, UnknownBackendError

_NAME = r"[a-z][a-z0-9_]*(?:-[a-z0-9_]+)*"
_ITEM = re.compile(rf"(?P<minus>-?)(?P<name>{_NAME})(?:/(?P<toolchain>{_NAME}))?")
_WILD = re.compile(r"[*?\[]")
_FORMS = re.compile(r"^(fused_)?(chunk|recurrent|parallel)_")

Kind = Literal["plugin", "auto", "reference", "exclude"]


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of a rule."""

    kind: Kind
    name: str
    toolchain: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """Items in order of preference, for the operators that ``glob`` matches."""

    glob: str
    items: tuple[Item, ...]

    @property
    def open(self) -> bool:
        """True when ``auto`` lets every installed plugin in."""
        return any(item.kind == "auto" for item in self.items)

    @property
    def excluded(self) -> frozenset[str]:
        """Names that ``-name`` keeps out."""
        return frozenset(item.name for item in self.items if item.kind == "exclude")

    def specificity(self) -> tuple[bool, int]:
        """Order among globs that match the same operator; larger wins."""
        return not _WILD.search(self.glob), len(_WILD.sub("", self.glob))


AUTOMATIC = Rule("*", (Item("auto", "auto"),))


@dataclass(frozen=True, slots=True)
class Policy:
    """A parsed policy."""

    text: str
    rules: tuple[Rule, ...]

    @property
    def has_rule_for_all(self) -> bool:
        """True when no operator is left to another policy."""
        return any(rule.glob == "*" for rule in self.rules)

    def rule_for(self, contract: str, operator: str, origin: str = "policy") -> Rule | None:
        """The most specific rule for an operator, or None.

        Raises:
            PolicyError: two globs match the operator and are equally specific.
        """
        names = operator_names(contract, operator)
        matching = [r for r in self.rules if any(fnmatchcase(name, r.glob) for name in names)]
        if not matching:
            return None
        best = max(matching, key=Rule.specificity)
        rivals = [r.glob for r in matching if r.specificity() == best.specificity()]
        if len(rivals) > 1:
            problem = f"{' and '.join(map(repr, rivals))} match {operator} equally well"
            raise PolicyError(
                self.text, origin, problem, "name the operator in full in one of them"
            )
        return best


def operator_names(contract: str, operator: str) -> tuple[str, ...]:
    """Everything a glob may call an operator, also under its second name."""
    names = dict.fromkeys((operator, contract))
    for spelling in (operator, *_second_names(contract, operator)):
        for family in dict.fromkeys((contract, _FORMS.sub("", spelling))):
            names.update(dict.fromkeys((spelling, family, f"{family}.{spelling}")))
    return tuple(names)


def _second_names(contract: str, operator: str) -> list[str]:
    pairs = CONTRACTS[contract].aliases if contract in CONTRACTS else ()
    return [other for pair in pairs if operator in pair for other in pair if other != operator]


@lru_cache(maxsize=256)
def parse(text: str, origin: str = "policy") -> Policy:
    """Read a policy.

    Raises:
        PolicyError: it breaks the grammar; says where.
        UnknownBackendError: a glob matches no operator.
    """
    rules, position = [], 0
    for part in text.split(";"):
        rules.append(_Reader(text, origin).rule(part, position))
        position += len(part) + 1
    seen: set[str] = set()
    for rule in rules:
        if rule.glob in seen:
            subject = "the rule for all operators" if rule.glob == "*" else f"{rule.glob!r}"
            raise PolicyError(text, origin, f"{subject} is given twice", "keep one of them")
        seen.add(rule.glob)
    return Policy(text, tuple(rules))


class _Reader:
    """Reads rules of one policy; knows the whole text, so that errors can point into it."""

    def __init__(self, text: str, origin: str) -> None:
        self.text, self.origin = text, origin

    def rule(self, part: str, position: int) -> Rule:
        glob, equals, rest = part.partition("=")
        start = position + len(glob) + 1 if equals else position
        glob = glob.strip() if equals else "*"
        if equals:
            self._check_glob(glob, position)
        items = []
        for piece in (rest if equals else part).split(","):
            items.append(self._item(piece, start))
            start += len(piece) + 1
        rule = Rule(glob, tuple(items))
        self._check_items(rule, position)
        return rule

    def _item(self, piece: str, position: int) -> Item:
        word = piece.strip()
        position += len(piece) - len(piece.lstrip())
        if not word:
            raise self._error("a name is missing", position, "write auto, reference or a plugin")
        match = _ITEM.fullmatch(word)
        if match is None:
            raise self._error(f"{word!r} is not a name", position, "names are lower case")
        name, toolchain = match["name"], match["toolchain"] or ""
        minus = bool(match["minus"])
        if name == "none":
            raise self._error("'none' belongs to FLA_PLUGINS", position, "write reference instead")
        if toolchain and (minus or name in ("auto", "reference")):
            raise self._error(f"{word!r}: only a plugin takes a toolchain", position)
        if minus:
            return self._exclusion(name, position)
        return Item(name if name in ("auto", "reference") else "plugin", name, toolchain)  # type: ignore[arg-type]

    def _exclusion(self, name: str, position: int) -> Item:
        if name == "auto":
            raise self._error("'-auto' means nothing", position, "a list without auto is closed")
        return Item("exclude", name)

    def _check_items(self, rule: Rule, position: int) -> None:
        names = [item.name + item.toolchain for item in rule.items]
        if double := next((name for name in names if names.count(name) > 1), ""):
            raise self._error(f"{double!r} is named twice in one rule", position)
        if rule.excluded and not rule.open:
            hint = f"write auto,-{min(rule.excluded)}"
            raise self._error("'-' is only meaningful beside 'auto'", position, hint)

    def _check_glob(self, glob: str, position: int) -> None:
        known = _operators()
        if any(fnmatchcase(name, glob) for name in known):
            return
        close = difflib.get_close_matches(glob.rpartition(".")[2] or glob, known, n=3)
        hint = (
            f"did you mean {', '.join(close)}?" if close else f"contracts: {', '.join(CONTRACTS)}"
        )
        problem = f"{glob!r} (at column {position + 1}) matches no operator"
        raise UnknownBackendError(self.text, self.origin, problem, hint)

    def _error(self, problem: str, position: int, hint: str = "") -> PolicyError:
        return PolicyError(self.text, self.origin, f"{problem} (at column {position + 1})", hint)


@lru_cache(maxsize=1)
def _operators() -> tuple[str, ...]:
    pairs = [(contract, contract) for contract in CONTRACTS]
    pairs += [(contract.name, name) for name, (contract, _) in public_names().items()]
    return tuple(dict.fromkeys(n for pair in pairs for n in operator_names(*pair)))
