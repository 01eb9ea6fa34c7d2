"""What judges kernels passes right answers, and names what is wrong, in the proof as well."""

from __future__ import annotations

from typing import Any

import pytest

from compile_only.cases import small_cases, subjects
from fla_conformance.gold import gold
from fla_conformance.inputs import Inputs
from judging import Tensors, chosen, judged, prove, spared

SUBJECT = next(one for one in subjects() if one.row.contract == "linear_attn")
CASE = small_cases(SUBJECT)[0]


def right(inputs: Inputs) -> Tensors:
    """What float64 gives, rounded."""
    return {name: value.float() for name, value in gold(inputs.case).values.items()}


def wrong(inputs: Inputs) -> Tensors:
    """Right but for one gradient, a hundredth too large."""
    found = right(inputs)
    return {**found, "dk": found["dk"] * 1.01}


def lost(inputs: Inputs) -> Tensors:
    """Right but for one output, which is not there."""
    found = right(inputs)
    del found["o"]
    return found


def broken(inputs: Inputs) -> Tensors:
    raise RuntimeError(f"no kernel\n  of {len(inputs.case.sizes)} sizes")


def test_right_answers_pass() -> None:
    failure, margins = judged(CASE, right)
    assert failure == ""
    assert {"o", "final_state", "dq", "dk", "dv", "dinitial_state"} == set(margins)
    assert max(margins.values()) < 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [(wrong, "dk"), (lost, "o: "), (broken, "RuntimeError: no kernel of 6 sizes")],
)
def test_what_is_wrong_is_named(answer: Any, said: str) -> None:
    failure, margins = judged(CASE, answer)
    assert failure.startswith(said)
    assert (margins.get("dk", 0) > 1) == (answer is wrong)


def test_a_proof_holds_every_fault_and_the_worst_margin(capsys: Any) -> None:
    good = prove(SUBJECT, [CASE], right, "here")
    assert (good["faults"], good["cases"], good["contract"]) == ([], 1, "linear_attn")
    assert 0 <= good["worst_margin"] < 1
    bad = prove(SUBJECT, [CASE, CASE], wrong, "there")
    assert [fault.partition(": ")[0] for fault in bad["faults"]] == [CASE.id, CASE.id]
    assert bad["worst_margin"] > 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "here",
        "there",
        "there",
    ]
    assert spared([("there", bad)]) == 0
    assert spared([("there", bad), ("here", good)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == ["spoiled kernels fail", "spoiled kernels pass: here linear_attn"]


def test_patterns_choose_contracts() -> None:
    assert {one.row.contract for one in chosen("*delta_rule")} == {
        "delta_rule",
        "gated_delta_rule",
    }
    with pytest.raises(SystemExit, match="got 'nothing'"):
        chosen("nothing")
