"""Where the policy of a call comes from: the call, the blocks around it, the environment.

They are *levels*: the first that has a rule for an operator governs it. One string holds those of a
call, ``"BACKEND|INNER|OUTER"``: the text of ``backend=``, empty without one, then a ``|`` and a
text for each enclosing ``use()``, innermost first. The environment's level is the last for every
call and is left out. A single string is what torch.compile can guard and a graph can hold.
"""

from __future__ import annotations

import threading

from fla_core.dispatch.policy import parse
from fla_core.errors import PolicyError

CALL, BLOCK = "backend=", "fla_core.use()"
_BAR = "|"


class _Context(threading.local):
    """The levels of this thread's blocks. A ContextVar would break ``fullgraph`` compilation."""

    # Set on the instance: torch.compile (2.13) puts no guard on a default that lives on the class,
    # and a graph traced under one policy would then serve another.
    def __init__(self) -> None:
        self.levels = ""


blocks = _Context()

# The policy of the environment stands for "" until reload_env() gives it a text: reading the
# environment while tracing would change this global under the guard that has just been built on it.
environment_text = ""


def policy_text(backend: str | None) -> str:
    """Return the levels that govern a call made now; ``""`` means that of the environment only.

    Traceable by torch.compile: one attribute of a ``threading.local`` and one global are read.

    Raises:
        PolicyError: ``backend`` holds the sign that stands between levels.
    """
    levels = blocks.levels
    if backend is None:
        return levels or environment_text
    if not isinstance(backend, str):
        return backend
    if _BAR in backend:
        raise PolicyError(backend, CALL, f"{_BAR!r} is no part of a policy")
    return backend + levels


def levels_of(policy: str) -> list[tuple[str, str]]:
    """Text and origin of each level that :func:`policy_text` has put into ``policy``."""
    call, *around = policy.split(_BAR)
    return [*([(call, CALL)] if call else []), *((text, BLOCK) for text in around)]


class use:  # a context manager that reads like a verb
    """Select backends within a ``with`` block, in this thread.

    The policy is that of ``FLA_BACKEND`` (see :mod:`fla_core.dispatch.policy`) and stands above it;
    a call's own ``backend=`` stands above both. In a nested block the inner policy comes first; an
    operator for which it has no rule is left to the outer one.

    Raises:
        PolicyError: the policy cannot be read.

    Example:
        >>> with fla_core.use("reference"):
        ...     o, state = chunk_kda(q, k, v, g, beta)
    """

    __slots__ = ("_everything", "_outer", "policy")

    def __init__(self, policy: str) -> None:
        self._everything = parse(policy, BLOCK).has_rule_for_all
        self.policy = policy
        self._outer: list[str] = []

    def __enter__(self) -> use:
        outer = blocks.levels
        self._outer.append(outer)
        # What can never be asked would only make more plans and graphs.
        blocks.levels = _BAR + self.policy + ("" if self._everything else outer)
        return self

    def __exit__(self, *exc_info: object) -> None:
        blocks.levels = self._outer.pop()

    def __repr__(self) -> str:
        return f"use({self.policy!r})"
