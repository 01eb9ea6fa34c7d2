"""Expected failures are strict: each error of the file and each mismatch has its words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from fla_conformance.case import Case
from fla_conformance.expect import (
    ExpectationError,
    Expectations,
    draft,
    load,
)
from fla_conformance.result import Outcome, Result
from fla_conformance.selectors import Surroundings
from rows import case, row

HERE = Surroundings("gfx942", "cuda:0", {"triton": "3.4.0", "torch": "2.8.0+rocm"})
REST = 'outcome = "fail.numeric"\nkind = "bug"\nreason = "known"\nexpires = 2999-01-31\n'


def written(folder: Path, select: str, more: str = REST) -> Expectations:
    path = folder / "conformance-expect.toml"
    path.write_text(f"[[expect]]\nselect = {select}\n{more}")
    return load(path, HERE)


@dataclass(frozen=True)
class Known:
    """A check as far as expectations look at one."""

    result: Result

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.result, name)
        return Case.from_json(value) if name == "case" else value


WIDE = case(sizes={"B": 1, "T": 16, "H": 2, "HV": 2, "K": 256, "V": 8})
PACKED = case(features=frozenset({"varlen", "initial_state"}), lengths=(7, 9))


def test_no_file_expects_nothing(tmp_path: Path) -> None:
    assert load(tmp_path / "absent.toml", HERE) == Expectations()


@pytest.mark.parametrize(
    ("select", "matches"),
    [
        ('{ op = "gla" }', True),
        ('{ op = "kda" }', False),
        ('{ op = ["kda", "gla"] }', True),
        ('{ dtype = "bf16" }', True),
        ('{ dtype = "bfloat16" }', True),
        ('{ dtype = ["fp16", "fp32"] }', False),
        ('{ K = ">=256" }', True),
        ('{ K = "< 256" }', False),
        ("{ K = 256 }", True),
        ("{ K = [64, 128] }", False),
        ('{ direction = "fwd", form = "chunk", regime = "plain", level = "L1" }', True),
        ('{ direction = "bwd" }', False),
        ('{ variant = "chunk", implementation = "acme:gla#chunk" }', True),
        ('{ law = "pack" }', False),
        ('{ law = "" }', True),
        ('{ features = ["varlen"] }', False),
        ("{ N = 2 }", False),
        ("{ revision = 99 }", False),
        (f'{{ id = "{WIDE.id}" }}', True),
        (f'{{ id = "{WIDE.id[:-1]}" }}', False),
    ],
)
def test_selectors(tmp_path: Path, select: str, matches: bool) -> None:
    judged = written(tmp_path, select).judge(row("L1", Outcome.FAIL_NUMERIC, of=WIDE))
    assert judged.outcome is (Outcome.XFAIL if matches else Outcome.FAIL_NUMERIC)


@pytest.mark.parametrize("select", ['{ features = ["varlen", "initial_state"] }', "{ N = 2 }"])
def test_selectors_of_packed_cases(tmp_path: Path, select: str) -> None:
    judged = written(tmp_path, select).judge(row("L1", Outcome.FAIL_NUMERIC, of=PACKED))
    assert judged.outcome is Outcome.XFAIL
    assert judged.expected == "known"


def test_a_pass_is_an_error(tmp_path: Path) -> None:
    judged = written(tmp_path, '{ op = "gla" }').judge(row())
    assert judged.outcome is Outcome.XPASS
    assert "passed although expectation 1 (op = 'gla') expects fail.numeric" in judged.detail


def test_another_outcome_stays_what_it_is(tmp_path: Path) -> None:
    judged = written(tmp_path, '{ op = "gla" }').judge(row("L1", Outcome.CRASH))
    assert judged.outcome is Outcome.CRASH
    assert judged.detail.endswith("expectation 1 (op = 'gla') expects fail.numeric")


@pytest.mark.parametrize(
    ("where", "applies"),
    [
        ('{ arch = ["gfx942"] }', True),
        ('{ arch = "sm90" }', False),
        ('{ device = "cuda" }', True),
        ('{ "dist.triton" = "<3.5" }', True),
        ('{ "dist.triton" = ">=3.5" }', False),
        ('{ "dist.torch" = ">=2.8" }', True),
        ('{ "dist.absent" = ">=1" }', False),
        ('{ arch = "gfx942", "dist.triton" = ">=3.5" }', False),
    ],
)
def test_where(tmp_path: Path, where: str, applies: bool) -> None:
    entries = written(tmp_path, '{ op = "gla" }', f"{REST}where = {where}\n").entries
    assert bool(entries) is applies


def test_an_entry_without_a_match_has_expired_or_lost_its_witness(tmp_path: Path) -> None:
    checks = [Known(row("L1"))]
    day = date(2026, 1, 1)
    assert written(tmp_path, '{ op = "gla" }').problems(day, checks) == []
    assert written(tmp_path, '{ op = "kda" }').problems(day, checks) == [
        "expectation 1 (op = 'kda') selects no check"
    ]
    late = written(tmp_path, '{ op = "gla" }').problems(date(3000, 1, 1), checks)
    assert late == ["expectation 1 (op = 'gla') expired on 2999-01-31"]
    lost = written(tmp_path, '{ op = "gla" }', REST + 'witness = "gla@1/gone"\n')
    assert "does not select its witness gla@1/gone" in lost.problems(day, checks)[0]


@pytest.mark.parametrize(
    ("select", "more", "problem"),
    [
        ('{ op = "gla" }', REST.replace('"known"', '" "'), "reason is missing"),
        ('{ op = "gla" }', REST.replace('reason = "known"\n', ""), "reason is missing"),
        ('{ op = "gla" }', REST.replace("2999-01-31", '"soon"'), "expires must be a date"),
        ('{ op = "gla" }', REST.replace("fail.numeric", "pass"), "outcome must be one of"),
        ('{ op = "gla" }', REST.replace("fail.numeric", "refused.undeclared"), "outcome must be"),
        ('{ op = "gla" }', REST.replace("bug", "unsupported"), "kind must be one of bug"),
        ('{ op = "gla" }', REST + "colour = 1\n", "unknown key 'colour'"),
        ('{ op = "gla" }', REST + "issue = 7\n", "issue must be a string, got 7"),
        ('{ op = "gla" }', REST + "where = { sun = 1 }\n", "where.sun is not known"),
        ('{ op = "gla" }', REST + "where = { arch = 1 }\n", "where.arch must be a name"),
        ('{ op = "gla" }', REST + 'where = { "dist.x" = "new" }\n', "must be a version range"),
        ("{}", REST, "select must be a table with at least one selector"),
        ('{ op = "gal" }', REST, "select.op must be one of linear_attn"),
        ('{ sort = "gla" }', REST, "select.sort is not a selector"),
        ('{ K = "many" }', REST, "select.K must be a size"),
        ("{ K = true }", REST, "select.K must be a size"),
        ('{ features = "varlen" }', REST, "select.features must be a list"),
        ("{ op = 3 }", REST, "got 3"),
    ],
)
def test_errors_of_the_file(tmp_path: Path, select: str, more: str, problem: str) -> None:
    with pytest.raises(ExpectationError) as caught:
        written(tmp_path, select, more)
    assert "conformance-expect.toml is not valid" in str(caught.value)
    assert any(text.startswith("entry 1: ") and problem in text for text in caught.value.problems)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[expect]", "Expected ']]'"),
        ("[expected]\n", "unknown key 'expected'"),
        ("expect = 3\n", "expect must be an array of tables"),
    ],
)
def test_errors_of_its_form(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "conformance-expect.toml"
    path.write_text(text)
    with pytest.raises(ExpectationError) as caught:
        load(path, HERE)
    assert problem in str(caught.value)


def test_drafted_entries_are_refused_until_they_have_a_reason(tmp_path: Path) -> None:
    text = draft([row(), row("L1", Outcome.FAIL_NUMERIC, of=WIDE)])
    assert text.count("[[expect]]") == 1
    path = tmp_path / "conformance-expect.toml"
    path.write_text(text)
    with pytest.raises(ExpectationError) as caught:
        load(path, HERE)
    assert [problem.split(" ")[2] for problem in caught.value.problems] == ["reason", "expires"]
    done = text.replace('reason  = ""', 'reason  = "known"').replace('""', "2999-01-31")
    path.write_text(done)
    judged = load(path, HERE).judge(row("L1", Outcome.FAIL_NUMERIC, of=WIDE))
    assert judged.outcome is Outcome.XFAIL
