"""Who computes: import roots that offer the public operators under their names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fla_core import ops
from fla_core.cli.calls import measure
from fla_core.cli.calls.bench.recipes import Recipe
from fla_core.cli.calls.bench.workload import keywords, outputs_of
from fla_core.cli.calls.problem import Problem
from fla_core.errors import ContractError, FlaError
from fla_core.plugins.discover import CORE
from fla_core.plugins.installed import owners, version_of

OURS, ANCHOR = "ours", "sdpa"
ROOTS = {OURS: "fla_core.ops", "fla": "fla.ops", "flash-qla": "flash_qla"}
"""Short names of import roots."""


class NotOffered(FlaError):
    """A provider has no function of that name, or none that takes these arguments."""


@dataclass(frozen=True, slots=True)
class Provider:
    """An import root.

    Attributes:
        name: as the user knows it.
        root: the imported module.
        version: of its distribution, ``""`` when it belongs to none.
        backend: selection policy of its calls; ours alone has one.
    """

    name: str
    root: ModuleType
    version: str
    backend: str | None = None

    @property
    def ours(self) -> bool:
        """True for this project's own operators."""
        return self.root is ops

    def operator(self, name: str) -> Callable[..., Any]:
        """The function of that name, in the root or in the module of its family.

        Raises:
            NotOffered: it has none.
        """
        family = getattr(ops, name).__module__.rpartition(".")[2]
        for module in (self.root.__name__, f"{self.root.__name__}.{family}"):
            function = getattr(_imported(module), name, None)
            if callable(function):
                return function  # type: ignore[no-any-return]
        raise NotOffered(f"{self.root.__name__} has no {name}")

    def function(self, recipe: Recipe, problem: Problem) -> Callable[[Problem], dict[str, Any]]:
        """A function that calls the operator on the tensors of any such problem."""
        operator = self.operator(recipe.operator)
        names = [spec.name for spec in problem.contract.outputs_for(problem.flags)]
        return lambda given: outputs_of(operator(**self._given(recipe, given)), names)

    def bound(self, recipe: Recipe, problem: Problem) -> Callable[[], Any]:
        """The call on one problem and nothing else: what is timed."""
        operator, given = self.operator(recipe.operator), self._given(recipe, problem)
        return lambda: operator(**given)

    def _given(self, recipe: Recipe, problem: Problem) -> dict[str, Any]:
        """What the operator is told; a state that is not asked for is asked not to be returned."""
        given = keywords(recipe, problem)
        if self.ours:
            return {**given, "backend": self.backend}
        takes = inspect.signature(self.operator(recipe.operator)).parameters
        lacking = sorted(given.keys() - takes.keys())
        if lacking and all(one.kind != inspect.Parameter.VAR_KEYWORD for one in takes.values()):
            raise NotOffered(f"{self.shown(recipe)} takes no {', '.join(lacking)}")
        return {"output_final_state": False, **given} if "output_final_state" in takes else given

    def shown(self, recipe: Recipe) -> str:
        """What stands for the implementation where none was witnessed."""
        return f"{self.root.__name__}.{recipe.operator}"

    @property
    def definitions(self) -> tuple[measure.Evaluate, measure.Evaluate]:
        """What is right, of a small call and of a slice of a large one."""
        return measure.by_token, measure.by_chunks


@dataclass(frozen=True, slots=True)
class Absent:
    """A provider that cannot be imported: each of its calls has a row that says why.

    Attributes:
        name: as the user knows it.
        reason: what importing it raised.
    """

    name: str
    reason: Exception

    @property
    def version(self) -> str:
        """Of nothing."""
        return ""

    @property
    def status(self) -> str:
        """``missing`` where it is not installed, ``error`` where it is and fails."""
        return "missing" if isinstance(self.reason, ModuleNotFoundError) else "error"

    @property
    def text(self) -> str:
        """What importing it raised, in words."""
        return f"{type(self.reason).__name__}: {self.reason}"


def provider(name: str, backend: str | None = None) -> Provider:
    """Import a provider.

    Args:
        name: ``ours``, ``fla``, ``flash-qla``, or the path of a module.
        backend: selection policy of our own calls.

    Raises:
        ContractError: there is no such module, or importing it fails.
    """
    found = provider_or_absent(name, backend)
    if isinstance(found, Absent):
        expected = f"{', '.join(ROOTS)}, {ANCHOR} or a module that can be imported"
        raise ContractError("bench", "provider", expected, f"{name!r}: {found.text}")
    return found


def provider_or_absent(name: str, backend: str | None = None) -> Provider | Absent:
    """Import a provider, as :func:`provider` does; one that cannot be is told of."""
    try:
        root = importlib.import_module(ROOTS.get(name, name))
    except Exception as error:
        return Absent(name, error)
    return Provider(name, root, _version(root), backend)


def _imported(module: str) -> ModuleType | None:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def _version(root: ModuleType) -> str:
    if root is ops:
        return version_of(CORE)
    top = root.__name__.partition(".")[0]
    versions = [version_of(name) for name in owners(top)]
    return versions[0] if versions else str(getattr(root, "__version__", ""))
