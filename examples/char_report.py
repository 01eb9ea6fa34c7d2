"""What a training run shows: progress, the backends in use, the loss curve."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import fla_core
from char_model import CharModel
from fla_core.dispatch import Decision

BITS = 1 / math.log(2)
"""Bits in a nat."""


def per_character(nats: float) -> str:
    """An entropy or a loss in both units."""
    return f"{nats:.3f} nats ({nats * BITS:.3f} bits) per character"


def explained(model: CharModel, device: torch.device) -> dict[str, Decision]:
    """Which implementation serves each use of the mixer's operators."""
    mixer = model.blocks[0].mixer
    chunk, recurrent = mixer.operators
    facts = {"device": str(device), "dtype": "float32", **mixer.axes}
    carried = (*mixer.features, "initial_state")
    return {
        "training": fla_core.explain(chunk, features=mixer.features, gradients=True, **facts),
        "prefill": fla_core.explain(chunk, features=mixer.features, **facts),
        "generation": fla_core.explain(recurrent, features=carried, **facts),
    }


def decisions_table(decisions: dict[str, Decision]) -> Table:
    """What serves each use, and once for all of them why the others do not."""
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for use, decision in decisions.items():
        served = decision.plan or "nobody"
        table.add_row(use, Text.assemble((decision.operator, "bold"), f": {served}"))
    for (who, what), uses in reasons(decisions).items():
        only = "" if len(uses) == len(decisions) else f" ({', '.join(uses)})"
        table.add_row(Text(who, style="dim"), Text(f"{what}{only}", style="dim"))
    return table


def reasons(decisions: dict[str, Decision]) -> dict[tuple[str, str], list[str]]:
    """Candidates and what became of them, and which policy was in force, each with its uses."""
    found: dict[tuple[str, str], list[str]] = {}
    for use, decision in decisions.items():
        for row in decision.rows():
            if row[0] != "call" and row != (decision.chosen, "accepted"):
                found.setdefault(row, []).append(use)
    return found


def show_progress(
    console: Console, losses: Iterable[float], steps: int, tokens_per_step: int
) -> tuple[list[float], float]:
    """Consume the losses of a training run; return them, and the tokens trained on in a second."""
    seen: list[float] = []
    speed, started = 0.0, time.perf_counter()
    columns = ("training", BarColumn(None), MofNCompleteColumn(), "{task.fields[now]}")
    with Progress(*columns, TimeElapsedColumn(), console=console, expand=True) as progress:
        task = progress.add_task("", total=steps, now="")
        for loss in losses:
            seen.append(loss)
            speed = len(seen) * tokens_per_step / (time.perf_counter() - started)
            now = f"loss [bold]{smoothed(seen[-50:])[-1]:.3f}[/]  {speed:,.0f} tokens/s"
            progress.update(task, advance=1, now=now)
    return seen, speed


def smoothed(losses: Iterable[float], keep: float = 0.9) -> list[float]:
    """Running mean of losses; the weight of each falls by ``keep`` a step."""
    means, total, weight = [], 0.0, 0.0
    for loss in losses:
        total, weight = keep * total + loss, keep * weight + 1
        means.append(total / weight)
    return means


def plot_losses(
    path: Path, losses: list[float], held_out: float, entropies: dict[str, float], title: str
) -> None:
    """Draw the loss of each step with entropies of the text as levels."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    steps = range(1, len(losses) + 1)
    axes.plot(steps, losses, color="#a9cbe8", linewidth=0.8, label="each batch")
    axes.plot(steps, smoothed(losses), color="#1f5f99", linewidth=2, label="smoothed")
    axes.plot(len(losses), held_out, "o", color="#c0392b", label=f"held-out text: {held_out:.2f}")
    for (name, entropy), style in zip(entropies.items(), ("--", ":"), strict=True):
        axes.axhline(entropy, color="#555555", linestyle=style, linewidth=1.2)
        axes.annotate(
            f"{name} entropy: {entropy:.2f}",
            (len(losses), entropy),
            xytext=(0, 4),
            textcoords="offset points",
            horizontalalignment="right",
            color="#555555",
        )
    axes.set(title=title, xlabel="step", ylabel="loss, nats per character")
    axes.set_ylim(0, 1.1 * max(*losses, *entropies.values()))
    in_bits = (lambda nats: nats * BITS, lambda bits: bits / BITS)
    axes.secondary_yaxis("right", functions=in_bits).set_ylabel("bits per character")
    axes.spines["top"].set_visible(False)
    axes.legend(loc="lower left", frameon=False)
    figure.savefig(path, dpi=150)
