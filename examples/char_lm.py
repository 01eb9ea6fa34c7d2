"""Train a small character language model on English text, then let it write.

    python examples/char_lm.py --mixer kda

It learns from Python's own reference manual, or from ``--text FILE``; shows which backend serves
each operator and why; and fails unless the loss ends well below the entropy of single characters
and one-token steps from a carried state agree with the chunk form. The model is `char_model.py`.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from torch import Tensor

import fla_core
from char_model import MIXERS, CharModel
from fla_core.errors import FlaError

BATCH, LENGTH, PROMPT = 8, 128, 50
SHORTEST_TEXT = 20_000
SENTENCES = re.compile(r"[A-Z\"](?!.*(::=|>>>|\|)).{40,}[.:]")  # neither grammar, code nor table
LEARNED = 0.75  # of the unigram entropy; a model that has learned nothing stays above all of it
ROUNDING = 1e-5  # relative; float32 rounds at 6e-8, and hundreds of sums lie behind each logit
PLAIN = {"highlight": False, "soft_wrap": True}


class Failed(Exception):
    """The run cannot start, or its result is not what it has to be."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text as numbers; its last part is held out of training."""

    source: str
    text: str
    characters: str
    train: Tensor
    held_out: Tensor

    @classmethod
    def of(cls, source: str, text: str) -> Corpus:
        """Number the characters of a text; ``source`` is its name in messages."""
        if len(text) < SHORTEST_TEXT:
            need = f"need at least {SHORTEST_TEXT:,} characters, got {len(text):,}"
            raise Failed(f"{source} is too short: {need}")
        characters = "".join(sorted(set(text)))
        number = {character: i for i, character in enumerate(characters)}
        tokens = torch.tensor([number[character] for character in text])
        size = min(len(text) // 20, 32_768)
        newline = text.rfind("\n", len(text) - 2 * size, len(text) - size)
        cut = newline + 1 or len(text) - size
        return cls(source, text, characters, tokens[:cut], tokens[cut:])

    def decode(self, tokens: Tensor) -> str:
        """Return tokens as text."""
        return "".join(self.characters[i] for i in tokens.flatten().tolist())

    def entropy(self, order: int = 1) -> float:
        """Nats per character for one who knows how often each string of ``order`` occurs."""

        def joint(length: int) -> float:
            if not length:
                return 0.0
            starts = range(len(self.text) - length + 1)
            counts = Counter(self.text[start : start + length] for start in starts)
            return -sum(n / len(starts) * math.log(n / len(starts)) for n in counts.values())

        return joint(order) - joint(order - 1)


def read_text(path: Path | None) -> tuple[str, str]:
    """Name and text of a file, or of the sentences in Python's reference manual."""
    if path is not None:
        try:
            return str(path), path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Failed(f"cannot read a text: {path}: {error}") from error
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise Failed("this Python comes without its manual; give a text with --text") from error
    paragraphs = "\n\n".join(topics.values()).replace("*", "").split("\n\n")
    once = dict.fromkeys(" ".join(paragraph.split()) for paragraph in paragraphs)
    prose = [paragraph for paragraph in once if SENTENCES.fullmatch(paragraph)]
    return "Python's reference manual", "\n".join(prose)


def next_character_loss(model: CharModel, windows: Tensor) -> Tensor:
    """Mean cross entropy of the characters of ``windows [B, T + 1]`` given those before each."""
    logits, _ = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def train(model: CharModel, tokens: Tensor, steps: int, seed: int) -> Iterator[float]:
    """Yield the loss of each step: AdamW, a short warm-up, then half a cosine down to 5 %."""
    warmup = min(30, 1 + steps // 5)

    def rate(step: int) -> float:
        cosine = 0.5 + 0.5 * math.cos(math.pi * step / steps)
        return min(1.0, (step + 1) / warmup) * (0.05 + 0.95 * cosine)

    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    windows = tokens.unfold(0, LENGTH + 1, 1)
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = windows[torch.randint(len(windows), (BATCH,), generator=random)]
        loss = next_character_loss(model, batch.to(model.device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()


@torch.no_grad()
def mean_loss(model: CharModel, tokens: Tensor) -> float:
    """Loss over all of a text, cut into windows."""
    windows = tokens.unfold(0, LENGTH + 1, LENGTH).to(model.device)
    total = sum(len(part) * next_character_loss(model, part) for part in windows.split(4 * BATCH))
    return float(total) / len(windows)


@torch.no_grad()
def write(model: CharModel, prompt: Tensor, count: int, seed: int, heat: float = 0.6) -> Tensor:
    """Continue ``prompt [1, T]`` by ``[1, count]``: one prefill, then one step a character."""
    random = torch.Generator().manual_seed(seed)
    logits, states = model(prompt)
    written = []
    for _ in range(count):
        chances = F.softmax(logits[:, -1].cpu() / heat, dim=-1)
        written.append(torch.multinomial(chances, 1, generator=random).to(prompt.device))
        logits, states = model(written[-1], states, recurrent=True)
    return torch.cat(written, dim=1)


@torch.no_grad()
def recurrent_error(model: CharModel, tokens: Tensor, prompt: int) -> float:
    """How far a prefill and one-token steps after it are from one chunk run over ``[B, T]``.

    Returns:
        norm of the difference of all logits, relative to that of the logits.
    """
    whole, _ = model(tokens)
    logits, states = model(tokens[:, :prompt])
    parts = [logits]
    for token in tokens[:, prompt:].split(1, dim=1):
        logits, states = model(token, states, recurrent=True)
        parts.append(logits)
    return float((torch.cat(parts, dim=1) - whole).norm() / whole.norm())


def check(loss: float, entropy: float, error: float) -> None:
    """Raise Failed unless the model learned and the operator's two forms agree."""
    if not error <= ROUNDING:
        problem = "one-token steps after a prefill differ from the chunk form"
        raise Failed(f"{problem}: relative error {error:.1e}, rounding is below {ROUNDING:.0e}")
    if not loss < LEARNED * entropy:
        need = f"below {LEARNED:.0%} of the unigram entropy, {LEARNED * entropy:.3f}"
        raise Failed(f"too little learned: held-out loss {loss:.3f} nats, needed {need} (--steps)")


def run(args: argparse.Namespace, console: Console) -> None:
    """Read, explain, train, write, draw, check."""
    try:
        from char_report import (
            decisions_table,
            explained,
            per_character,
            plot_losses,
            show_progress,
        )
    except ImportError as error:
        raise Failed(f"{error}; the loss curve needs it: pip install matplotlib") from error
    corpus = Corpus.of(*read_text(args.text))
    torch.manual_seed(args.seed)
    model = CharModel(len(corpus.characters), args.mixer).to(args.device)
    size = f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"
    console.print(f"model  {args.mixer}, {size}, on {args.device}", **PLAIN)
    alphabet = f"{len(corpus.text):,} characters of {len(corpus.characters)} kinds"
    console.print(f"text   {corpus.source}, {alphabet}", **PLAIN)
    console.print(decisions_table(explained(model, args.device)))

    losses = train(model, corpus.train, args.steps, args.seed)
    losses, speed = show_progress(console, losses, args.steps, BATCH * LENGTH)
    loss = mean_loss(model, corpus.held_out)
    start = corpus.held_out[None, :LENGTH].to(args.device)
    error = recurrent_error(model, start, PROMPT)
    prompt = start[:, :PROMPT]
    sample = corpus.decode(prompt), corpus.decode(write(model, prompt, args.write, args.seed))
    console.print(Panel(Text.assemble((sample[0], "dim"), sample[1]), title="Sample"))

    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{args.mixer}-sample.txt").write_text("".join(sample), encoding="utf-8")
    entropies = {"unigram": corpus.entropy(1), "bigram": corpus.entropy(2)}
    title = f"{args.mixer}, {size}, {speed:,.0f} tokens/s on {args.device}"
    plot_losses(args.out / f"{args.mixer}-loss.png", losses, loss, entropies, title)
    for name, value in (
        ("unigram entropy", per_character(entropies["unigram"])),
        ("held-out loss", f"[bold]{per_character(loss)}[/]"),
        ("recurrent steps", f"differ from the chunk form by {error:.1e}, relative"),
        ("speed", f"{speed:,.0f} tokens/s in training"),
        ("written to", f"{args.out}/{args.mixer}-loss.png, {args.mixer}-sample.txt"),
    ):
        console.print(f"{name:<16} {value}", **PLAIN)
    check(loss, entropies["unigram"], error)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mixer", choices=MIXERS, default="gdn", help="token mixer (%(default)s)")
    parser.add_argument("--steps", type=positive, default=300, help="of training (%(default)s)")
    parser.add_argument("--write", type=positive, default=400, help="characters (%(default)s)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="text to learn, UTF-8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("char_lm_out"), metavar="DIR")
    parser.add_argument("--backend", metavar="POLICY", help="as in FLA_BACKEND, such as reference")
    # Waiting threads spin: two of them on two busy cores were not through after 590 s.
    parser.add_argument("--threads", type=positive, default=1, help="on a CPU (%(default)s)")
    parser.add_argument("--device", type=device, default=device(None), help="(%(default)s)")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def device(name: str | None) -> torch.device:
    """The device of that name, if it can be used; the accelerator, or else the CPU, for None."""
    if name is None:
        available = torch.accelerator.is_available()
        return torch.accelerator.current_accelerator() if available else torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise argparse.ArgumentTypeError(f"cannot use {name!r}: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    args, console = parse(argv), Console()
    torch.set_num_threads(args.threads)
    try:
        with nullcontext() if args.backend is None else fla_core.use(args.backend):
            run(args, console)
    except (Failed, FlaError) as error:
        console.print(Text(f"failed: {error}", style="bold red"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
