"""The character model learns, its two forms agree, and a run that goes wrong says so."""

from __future__ import annotations

import io
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

import char_lm
from char_model import MIXERS, CharModel, MixerState
from char_report import decisions_table, explained
from fla_core.dispatch import Decision
from fla_core.dispatch.runtime import RUNTIME

SENTENCE = "The quick brown fox jumps over the lazy dog, and so does the next one.\n"


def model(mixer: str, kind: type[CharModel] = CharModel) -> CharModel:
    torch.manual_seed(0)
    return kind(40, mixer, width=32, heads=2, blocks=2)


def tokens(count: int) -> Tensor:
    return torch.randint(40, (2, count), generator=torch.Generator().manual_seed(1))


class Forgetful(CharModel):
    """Its recurrent steps lose what the operator carried."""

    def forward(
        self, tokens: Tensor, states: list[MixerState] | None = None, recurrent: bool = False
    ) -> tuple[Tensor, list[MixerState]]:
        lost = states and [MixerState(recent, 0 * memory) for recent, memory in states]
        return super().forward(tokens, lost, recurrent)


@pytest.mark.parametrize("mixer", MIXERS)
def test_recurrent_steps_continue_a_prefill(mixer: str) -> None:
    for prompt in (1, 2, 50, 69):
        assert char_lm.recurrent_error(model(mixer), tokens(70), prompt) < char_lm.ROUNDING


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_lost_state_fails_the_run(mixer: str) -> None:
    error = char_lm.recurrent_error(model(mixer, Forgetful), tokens(70), prompt=50)
    assert error > 10 * char_lm.ROUNDING
    with pytest.raises(char_lm.Failed, match="differ from the chunk form"):
        char_lm.check(loss=1.0, entropy=3.0, error=error)


@pytest.mark.parametrize("mixer", MIXERS)
def test_no_character_sees_those_after_it(mixer: str) -> None:
    early, late = tokens(70), tokens(70)
    late[:, 40:] = (late[:, 40:] + 1) % 40
    same, changed = (model(mixer)(x)[0] for x in (early, late))
    assert torch.equal(same[:, :40], changed[:, :40])
    assert not torch.equal(same[:, 40:], changed[:, 40:])


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_loss_falls(mixer: str) -> None:
    corpus = char_lm.Corpus.of("a text", SENTENCE * 300)
    torch.manual_seed(0)
    small = CharModel(len(corpus.characters), mixer, width=32, heads=2, blocks=1)
    losses = list(char_lm.train(small, corpus.train, steps=30, seed=0))
    assert losses[-1] < 0.75 * corpus.entropy() < losses[0]
    assert char_lm.mean_loss(small, corpus.held_out) < 0.75 * corpus.entropy()


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_explained_plans_are_those_that_ran(mixer: str) -> None:
    small = model(mixer)
    RUNTIME.forget_plans()
    char_lm.next_character_loss(small, tokens(20)).backward()
    char_lm.recurrent_error(small, tokens(20), prompt=10)
    ran = [facts(plan.decision) for plan in RUNTIME.plans.values()]
    for use, decision in explained(small, torch.device("cpu")).items():
        assert facts(decision) in ran, use


def test_why_others_do_not_serve_is_said_once() -> None:
    decisions = explained(model("gla"), torch.device("cpu"))
    first, *_ = decisions
    decisions[first] = replace(decisions[first], origin="a test")
    said = io.StringIO()
    Console(file=said, width=80).print(decisions_table(decisions))
    lines = [line.rstrip() for line in said.getvalue().splitlines()]
    others = {name for decision in decisions.values() for name, *_ in decision.considered}
    others -= {decision.chosen for decision in decisions.values()}
    for name in (*decisions, *others):
        assert sum(line.startswith(f"{name} ") for line in lines) == 1, name
    policies = [line for line in lines if line.startswith("policy ")]
    assert len(policies) == 2
    assert policies[0].endswith(f"from a test ({first})")


def facts(decision: Decision) -> tuple[object, ...]:
    view = decision.view
    return decision.operator, view.form, view.features, bool(view.gradients), decision.plan


def test_nothing_learned_fails_the_run() -> None:
    with pytest.raises(char_lm.Failed, match=r"held-out loss 2\.900"):
        char_lm.check(loss=2.9, entropy=3.0, error=0.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_number_fails_the_run(value: float) -> None:
    with pytest.raises(char_lm.Failed):
        char_lm.check(loss=value, entropy=3.0, error=0.0)
    with pytest.raises(char_lm.Failed):
        char_lm.check(loss=1.0, entropy=3.0, error=value)


def test_entropy_of_known_texts() -> None:
    corpus = char_lm.Corpus.of("a text", "ab" * 10_000)
    assert corpus.entropy(1) == pytest.approx(0.6931, abs=1e-3)
    assert corpus.entropy(2) == pytest.approx(0.0, abs=1e-3)


def test_the_manual_is_english() -> None:
    _, text = char_lm.read_text(None)
    assert len(text) > 100_000
    assert " the " in text
    assert ">>>" not in text


@pytest.fixture(autouse=True)
def _wide_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(SENTENCE * 300, encoding="utf-8")
    return path


def run(*arguments: object) -> int:
    return char_lm.main([str(argument) for argument in arguments])


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_whole_run(
    mixer: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ("--steps", 20, "--write", 30, "--backend", "reference", "--out", out)
    assert run("--mixer", mixer, "--text", text, *options) == 0
    shown = capsys.readouterr().out
    for expected in ("unigram entropy", "held-out loss", "tokens/s", "reference:", "prefill"):
        assert expected in shown
    assert re.search(r"^policy +'reference', from fla_core.use\(\)", shown, re.MULTILINE)
    assert (out / f"{mixer}-loss.png").read_bytes().startswith(b"\x89PNG")
    prompt = (SENTENCE * 2)[: char_lm.PROMPT]
    sample = (out / f"{mixer}-sample.txt").read_text(encoding="utf-8")
    assert sample.startswith(prompt)
    assert len(sample) == len(prompt) + 30


def test_a_run_that_cannot_learn_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = tmp_path / "noise.txt"
    noise.write_text("".join(random.Random(0).choices("abcdefghijklmnop", k=30_000)))
    options = ("--steps", 8, "--write", 1, "--out", tmp_path)
    assert run("--text", noise, *options) == 1
    assert "failed: too little learned" in capsys.readouterr().out
    assert (tmp_path / "gdn-loss.png").exists()


def test_a_run_repeats_itself() -> None:
    corpus = char_lm.Corpus.of("a text", SENTENCE * 300)
    first, again, other = (
        list(char_lm.train(model("gdn"), corpus.train, steps=2, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mixer", "lstm"), "invalid choice: 'lstm'"),
        (("--steps", 0), "must be at least 1, got 0"),
        (("--steps", "many"), "invalid positive value: 'many'"),
        (("--device", "nowhere"), "cannot use 'nowhere'"),
    ],
)
def test_bad_options(
    options: tuple[object, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(*options)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read a text"),
        (b"too little", "is too short: need at least 20,000 characters, got 10"),
        (b"\xff" * 30_000, "cannot read a text"),
    ],
)
def test_bad_texts(
    content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    assert run("--text", path) == 1
    assert message in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["nosuchbackend", "reference,,auto"])
def test_a_bad_policy(policy: str, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--text", text, "--backend", policy) == 1
    assert f"cannot use policy '{policy}'" in capsys.readouterr().out
