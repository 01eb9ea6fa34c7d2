"""Global state of torch that loading a plugin must leave alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

Setter = Callable[[Any], object]

# Functions that a plugin could be tempted to replace, as (path below torch, attribute).
_IDENTITIES = (
    ("", "matmul"),
    ("", "bmm"),
    ("", "compile"),
    ("Tensor", "matmul"),
    ("Tensor", "__matmul__"),
    ("Tensor", "to"),
    ("nn.functional", "scaled_dot_product_attention"),
    ("nn.functional", "linear"),
    ("autograd.Function", "apply"),
)

_INHERITED = object()

# Values after `import torch`; the number of threads depends on the machine.
_FRESH = {
    "default device": "cpu",
    "grad mode": True,
    "deterministic algorithms": False,
    "float32 matmul precision": "highest",
}


@dataclass(frozen=True, slots=True)
class TorchState:
    """A snapshot of settings and of the identity of functions."""

    settings: dict[str, Any]
    functions: dict[tuple[str, str], Any]

    @classmethod
    def take(cls) -> TorchState | None:
        """Take a snapshot; None while torch is not loaded."""
        torch = _loaded_torch()
        if torch is None:
            return None
        settings = {name: read() for name, (read, _) in _settings(torch).items()}
        functions = {entry: _function(torch, entry) for entry in _IDENTITIES}
        return cls(settings, functions)

    @classmethod
    def fresh(cls) -> TorchState | None:
        """What a torch that has just been imported looks like; None while it is not loaded.

        For a plugin that loads torch itself. Functions cannot be compared: nobody saw the old ones.
        """
        torch = _loaded_torch()
        return None if torch is None else cls({**_FRESH, "default dtype": torch.float32}, {})

    def changes(self) -> list[str]:
        """Name what has changed since, and leave it."""
        return [text for text, _ in self._differences()]

    def restore(self) -> list[str]:
        """Put back what has changed and name it."""
        changed = []
        for text, put_back in self._differences():
            put_back()
            changed.append(text)
        return changed

    def _differences(self) -> Iterator[tuple[str, Callable[[], object]]]:
        torch = _loaded_torch()
        for name, (read, write) in _settings(torch).items():
            if (now := read()) != (old := self.settings.get(name, now)):
                yield f"{name} {old} -> {now}", partial(write, old)
        for entry, old in self.functions.items():
            if _function(torch, entry) is not old:
                text = ".".join(filter(None, ("torch", *entry))) + " replaced"
                yield text, partial(_put_back, _owner(torch, entry[0]), entry[1], old)


def _loaded_torch() -> Any:
    torch = sys.modules.get("torch")
    # A half-imported torch (a plugin loaded from within its import) has no state to compare.
    return torch if hasattr(torch, "get_default_dtype") else None


def _settings(torch: Any) -> dict[str, tuple[Callable[[], Any], Setter]]:
    return {
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "default device": (lambda: str(torch.get_default_device()), _device_setter(torch)),
        "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
        "deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
        ),
        "number of threads": (torch.get_num_threads, torch.set_num_threads),
        "float32 matmul precision": (partial(_products, torch), partial(_set_products, torch)),
    }


def _device_setter(torch: Any) -> Setter:
    # None, not "cpu", is the untouched state; "cpu" would leave a function mode behind.
    return lambda name: torch.set_default_device(None if name == "cpu" else name)


def _products(torch: Any) -> str | tuple[str, str]:
    """Torch's one setting, or that of each backend where it raises because they differ."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return tuple(each.fp32_precision for each in _backends(torch))


def _set_products(torch: Any, setting: str | tuple[str, str]) -> None:
    if isinstance(setting, str):
        torch.set_float32_matmul_precision(setting)
        return
    for backend, precision in zip(_backends(torch), setting, strict=True):
        backend.fp32_precision = precision


def _backends(torch: Any) -> tuple[Any, Any]:
    return torch.backends.cuda.matmul, torch.backends.mkldnn.matmul


def _owner(torch: Any, path: str) -> Any:
    owner = torch
    for name in filter(None, path.split(".")):
        owner = getattr(owner, name)
    return owner


def _function(torch: Any, entry: tuple[str, str]) -> Any:
    owner = _owner(torch, entry[0])
    # A class hands out a new bound method at each read; its dictionary holds the one object.
    return vars(owner).get(entry[1], _INHERITED)


def _put_back(owner: Any, name: str, old: Any) -> None:
    if old is _INHERITED:
        delattr(owner, name)
    else:
        setattr(owner, name, old)
