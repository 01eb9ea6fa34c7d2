"""The figures as a picture; matplotlib is asked for only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fla_core.cli.calls.bench.rows import Row
from fla_core.errors import FlaError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEXTS = {"fwd": "forward", "both": "forward and backward", "decode": "one token"}


class ChartError(FlaError, RuntimeError):
    """No picture can be drawn."""


def available(path: Path) -> None:
    """Check that there is something to draw such a file with.

    Raises:
        ChartError: there is not; it says what to install, or which files there are.
    """
    try:
        import matplotlib  # noqa: F401
        from matplotlib.figure import Figure
    except ImportError:
        raise ChartError("--png needs matplotlib: pip install matplotlib") from None
    known = sorted(Figure().canvas.get_supported_filetypes())
    if (suffix := path.suffix.lstrip(".").lower()) and suffix not in known:
        raise ChartError(f"--png {path}: expected a file that ends in {', '.join(known)}")


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """Draw a panel of bars for each shape and direction, shorter is better.

    Raises:
        ChartError: matplotlib is missing, or no row has a speed.
    """
    available(path)
    from matplotlib.figure import Figure

    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.ms is not None:
            panels.setdefault((row.shape_text, row.direction), []).append(row)
    if not panels:
        raise ChartError("there is nothing to draw: no operator has a speed")
    tall = [1 + 0.28 * len(panel) for panel in panels.values()]
    figure = Figure(figsize=(9, sum(tall) + 1), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=tall)[:, 0]
    for axis, ((shape, direction), panel) in zip(axes, panels.items(), strict=True):
        _panel(axis, panel, f"{shape} {panel[0].dtype}, {TEXTS[direction]}")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _panel(axis: Axes, rows: Sequence[Row], title: str) -> None:
    providers = list(dict.fromkeys(row.provider for row in rows))
    labels = [f"{row.title}  {row.provider}" for row in rows]
    colours = [f"C{providers.index(row.provider)}" for row in rows]
    bars = axis.barh(range(len(rows)), [row.ms or 0.0 for row in rows], color=colours)
    axis.bar_label(bars, fmt="%.3g", padding=2)
    axis.set_yticks(range(len(rows)), labels)
    axis.invert_yaxis()
    axis.set_xlabel("ms a call")
    axis.set_title(title, loc="left", fontsize="medium")
    axis.margins(x=0.1)
