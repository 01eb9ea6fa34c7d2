"""What the plugins in ``plugins/`` share: an honest backend, of which each changes one thing."""

from __future__ import annotations

from typing import Any

from fla_core.contracts import CONTRACTS
from fla_core.domain import FLOATS, Domain
from fla_core.plugins import Backend, Implementation, hookimpl

__all__ = ["DOMAIN", "honest_backward", "honest_forward", "hookimpl", "hooks"]

DOMAIN = Domain(
    dtypes=FLOATS,
    features=dict.fromkeys(("varlen", "initial_state", "final_state", "g"), "optional"),
)
_REFERENCE = "fla_core.reference.implementations:decay_chunk"
_CARD = {"name", "api", "priority"}


def hooks(module: str, **changes: Any) -> tuple[Any, Any]:
    """``fla_backend`` and ``fla_implementations`` of an honest backend but for ``changes``."""
    card: dict[str, Any] = {"name": module.removeprefix("hostile_"), "priority": 50}
    card |= {name: changes.pop(name) for name in _CARD & changes.keys()}
    honest: dict[str, Any] = {
        "contract": "simple_gla",
        "revision": CONTRACTS["simple_gla"].revision,
        "variant": "chunk",
        "forward": f"{_REFERENCE}_forward",
        "backward": f"{_REFERENCE}_backward",
        "domain": DOMAIN,
        "strided": True,
    }

    @hookimpl
    def fla_backend() -> Backend:
        return Backend(targets=("cpu",), toolchain="torch", **card)

    @hookimpl
    def fla_implementations() -> tuple[Implementation, ...]:
        return (Implementation(**honest | changes),)

    return fla_backend, fla_implementations


def honest_forward(call: Any, save: bool) -> Any:
    """The right outputs."""
    from fla_core.reference.implementations import decay_chunk_forward

    return decay_chunk_forward(call, save)


def honest_backward(call: Any, residuals: Any, grads: Any, needs: Any) -> Any:
    """The right gradients."""
    from fla_core.reference.implementations import decay_chunk_backward

    return decay_chunk_backward(call, (), grads, needs)
