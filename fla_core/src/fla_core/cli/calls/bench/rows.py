"""What a bench found, as data: rows, the machine they were taken on, the document of both."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fla_core.cli.calls.bench.recipes import sizes_text
from fla_core.errors import ContractError
from fla_core.plugins.installed import version_of

SCHEMA = "fla-bench/1"
DIRECTIONS = ("fwd", "both", "decode")
STATUSES = ("ok", "wrong", "missing", "refused", "error")


@dataclass(slots=True)
class Row:
    """One provider's call in one direction.

    Attributes:
        operator, variant: how it was called.
        provider, version: by whom; the distribution's version.
        shape: sizes by axis.
        lengths: of packed sequences, None for a dense batch.
        dtype: of q, k and v.
        direction: ``fwd``, ``both`` (forward and backward) or ``decode`` (one token, a state in and
            out).
        status: ``ok``; ``wrong`` when the gate is red, and no speed is told; ``missing`` when the
            provider has no such operator; ``refused`` when it does not take the call; ``error``.
        text: what went wrong.
        implementation: what ran, as the witness saw it.
        errors, bound: what the gate measured, in units; see :mod:`.gate`.
        ms: median milliseconds of a call.
        graph_ms: the same of a captured graph, free of host time.
        host_us: microseconds the host is busy with a call.
        peak_mib: memory a call allocates above its inputs.
        first_s: seconds of the first call of a fresh process with empty compile caches.
    """

    operator: str
    variant: str
    provider: str
    version: str
    shape: Mapping[str, int]
    lengths: tuple[int, ...] | None
    dtype: str
    direction: str
    status: str = "error"
    text: str = ""
    implementation: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)
    bound: float | None = None
    ms: float | None = None
    graph_ms: float | None = None
    host_us: float | None = None
    peak_mib: float | None = None
    first_s: float | None = None

    @property
    def title(self) -> str:
        """``chunk_kda:gate``."""
        return f"{self.operator}:{self.variant}" if self.variant else self.operator

    @property
    def shape_text(self) -> str:
        """``B2 T8192 H16 K128 V128``."""
        return sizes_text(self.shape, self.lengths)

    @property
    def key(self) -> tuple[Any, ...]:
        """What two rows share that may be compared."""
        lengths = None if self.lengths is None else tuple(self.lengths)
        shape = tuple(sorted(self.shape.items()))
        return (self.operator, self.variant, shape, lengths, self.dtype, self.direction)

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data; an infinite error becomes a string."""
        finite = {n: e if e < float("inf") else "infinite" for n, e in self.errors.items()}
        return {**asdict(self), "errors": finite}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Row:
        """Read what :meth:`to_json` wrote."""
        errors = {n: float("inf") if e == "infinite" else e for n, e in data["errors"].items()}
        lengths = data["lengths"]
        packed = None if lengths is None else tuple(lengths)
        return cls(**{**data, "errors": errors, "lengths": packed})


def machine(device: torch.device) -> dict[str, str]:
    """The device and the versions that a figure depends on."""
    module = torch.get_device_module(device) if device.type != "cpu" else None
    name = module.get_device_name(device) if module is not None else _processor()
    names = ("torch", "triton", "fla-kernels-core", "fla-kernels-triton", "tilelang")
    versions = {one: version_of(one) for one in names}
    return {
        "device": str(name),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{one: version for one, version in versions.items() if version},
        "torch": torch.__version__,
    }


def described(host: Mapping[str, str]) -> str:
    """``NVIDIA H200, torch 2.11.0, triton 3.6.0``."""
    named = (f"{name} {host[name]}" for name in ("torch", "triton") if name in host)
    return ", ".join((host.get("device", "unknown device"), *named))


def text(data: Mapping[str, Any]) -> str:
    """A document as it is written into files."""
    return json.dumps(data, indent=1) + "\n"


def document(rows: Sequence[Row], host: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """Everything as one JSON document."""
    return {
        "schema": SCHEMA,
        "taken": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "host": dict(host),
        "rows": [row.to_json() for row in rows],
        **more,
    }


@dataclass(frozen=True, slots=True)
class Stored:
    """A document that was written before."""

    name: str
    taken: str
    host: Mapping[str, str]
    rows: tuple[Row, ...]

    @property
    def environment(self) -> str:
        """Where they were taken."""
        return described(self.host)

    def renamed(self) -> list[Row]:
        """The rows, their provider told apart from those that are timed now."""
        return [replace(row, provider=f"{row.provider} (stored)") for row in self.rows]


def parse(name: str, data: Mapping[str, Any]) -> Stored:
    """Read a document that is at hand."""
    return Stored(name, data["taken"], dict(data["host"]), tuple(map(Row.of, data["rows"])))


def read(path: Path, option: str = "file") -> Stored:
    """Read a document, which an option may have named.

    Raises:
        ContractError: the file is not there or is no such document.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}")
        return parse(path.name, data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        expected = f"a file that bench wrote ({SCHEMA})"
        got = f"{path}: {type(error).__name__}: {error}"
        raise ContractError("bench", option, expected, got) from None


def _processor() -> str:
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
