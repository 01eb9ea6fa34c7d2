"""fla-kernels: contracts, reference mathematics, dispatch and plugins for linear attention.

Importing this package imports neither torch nor any plugin; the operators are in
``fla_core.ops`` and load torch.

Attributes:
    CONTRACTS: every operator contract by name.
    backends: the records of all plugins.
    errors: the exceptions of this package.
    explain: which implementation a call would get, and why.
    reload_env: read the ``FLA_*`` variables again.
    use: select backends within a ``with`` block.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # that of typing, whose import would take longer than all the rest

if TYPE_CHECKING:
    from typing import Any

    from fla_core import errors
    from fla_core.contracts import CONTRACTS
    from fla_core.dispatch.context import use
    from fla_core.dispatch.explain import explain
    from fla_core.dispatch.runtime import backends, reload_env

    __version__: str

__all__ = ["CONTRACTS", "__version__", "backends", "errors", "explain", "reload_env", "use"]

# Resolved on first use, so that importing the package costs next to nothing.
_HOMES = {
    "CONTRACTS": "fla_core.contracts",
    "backends": "fla_core.dispatch.runtime",
    "explain": "fla_core.dispatch.explain",
    "reload_env": "fla_core.dispatch.runtime",
    "use": "fla_core.dispatch.context",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name == "errors":
        value = import_module("fla_core.errors")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'fla_core' has no attribute {name!r}")
    globals()[name] = value
    return value


def _version() -> str:
    from importlib_metadata import PackageNotFoundError, version

    try:
        return version("fla-kernels-core")
    except PackageNotFoundError:
        return "0+unknown"  # run from a source tree that was never installed


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
