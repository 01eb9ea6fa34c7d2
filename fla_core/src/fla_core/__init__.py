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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        from importlib_metadata import version

        value: Any = version("fla-kernels-core")
    elif name == "errors":
        value = import_module("fla_core.errors")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'fla_core' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
