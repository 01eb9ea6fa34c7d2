"""Where the policy text of a call comes from: the call, the context, the environment."""

from __future__ import annotations

import threading

from fla_core.dispatch.policy import parse

ORIGIN = "fla_core.use()"


class _Context(threading.local):
    """The innermost policy of this thread. A ContextVar would break ``fullgraph`` compilation."""

    # Set on the instance: torch.compile (2.13) puts no guard on a default that lives on the class,
    # and a graph traced under one policy would then serve another.
    def __init__(self) -> None:
        self.text: str | None = None


innermost = _Context()

# The policy of the environment stands for "" until reload_env() gives it a text: reading the
# environment while tracing would change this global under the guard that has just been built on it.
environment_text = ""


def policy_text(backend: str | None) -> str:
    """Return the policy that governs a call made now; ``""`` means that of the environment.

    Traceable by torch.compile: one attribute of a ``threading.local`` and one global are read.
    """
    if backend is not None:
        return backend
    text = innermost.text
    return environment_text if text is None else text


class use:  # a context manager that reads like a verb
    """Select backends within a ``with`` block, in this thread.

    The policy is that of ``FLA_BACKEND`` (see :mod:`fla_core.dispatch.policy`) and stands above it;
    a call's own ``backend=`` stands above both. A nested block replaces the outer one.

    Raises:
        PolicyError: the policy cannot be read.

    Example:
        >>> with fla_core.use("reference"):
        ...     o, state = chunk_kda(q, k, v, g, beta)
    """

    __slots__ = ("_outer", "policy")

    def __init__(self, policy: str) -> None:
        parse(policy, ORIGIN)
        self.policy = policy
        self._outer: list[str | None] = []

    def __enter__(self) -> use:
        self._outer.append(innermost.text)
        innermost.text = self.policy
        return self

    def __exit__(self, *exc_info: object) -> None:
        innermost.text = self._outer.pop()

    def __repr__(self) -> str:
        return f"use({self.policy!r})"
