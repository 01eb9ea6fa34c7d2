"""``fla-kernels selfcheck``: passes what is right, and fails each planted fault."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import wrong
from command_line import Invoke, Site, card

from fakes import domain, implementation, plugin
from fla_core.cli._select import public_matching
from fla_core.cli.calls.check import CASES, Check, _judge
from fla_core.cli.selfcheck import _show
from fla_core.contracts import CONTRACTS, public_names
from fla_core.dispatch.policy import parse
from fla_core.plugins.record import PluginRecord

FAULTS = {
    "scaled": (wrong.scaled, wrong.backward),
    "not-finite": (wrong.not_finite, wrong.backward),
    "leaking": (wrong.leaking, wrong.backward),
    "raising": (wrong.raising, wrong.backward),
    "no-gradient": (wrong.right, wrong.without_decay_gradient),
    "forward-only": (wrong.right, None),
    "right": (wrong.right, wrong.backward),
}


@pytest.fixture
def plugins() -> list[PluginRecord]:
    return [
        plugin(
            name,
            implementation(domain=domain("gk"), forward=forward, backward=backward, strided=True),
            targets=("cpu",),
        )
        for name, (forward, backward) in FAULTS.items()
    ]


def checks(invoke: Invoke, code: int, *arguments: str) -> dict[str, Any]:
    """Checks of chunk_gla by case."""
    result = invoke("selfcheck", "--op", "chunk_gla", "--K", "16", "--json", *arguments)
    data = json.loads(result.stdout)
    assert result.exit_code == code, result.output
    assert data["ok"] is (code == 0)
    return {check["case"]: check for check in data["checks"]}


def test_every_operator_is_right_on_this_machine(invoke: Invoke) -> None:
    result = invoke("selfcheck", "--backend", "reference", "--json", "--device", "cpu", "--K", "16")
    data = json.loads(result.stdout)
    assert result.exit_code == 0, result.output
    seconds = {second for c in CONTRACTS.values() for second, _ in c.aliases}
    assert {check["operator"] for check in data["checks"]} == public_names().keys() - seconds
    assert len(data["checks"]) == len(CASES) * (len(public_names()) - len(seconds))
    for check in data["checks"]:
        assert check["status"] == "pass"
        assert check["ran"] == check["planned"] != ""
        assert check["gradients"] is True
        assert {"o", "final_state", "d q", "d k", "d v"} <= set(check["errors"])
        assert 0 < check["errors"][check["worst"]] <= check["bound"]


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_other_dtypes(invoke: Invoke, dtype: str) -> None:
    found = checks(invoke, 0, "--backend", "reference", "--dtype", dtype)
    assert {check["status"] for check in found.values()} == {"pass"}


def test_a_plugin_that_is_right(invoke: Invoke) -> None:
    found = checks(invoke, 0, "--backend", "right")
    assert {check["ran"] for check in found.values()} == {"right:gla#chunk"}


def test_a_wrong_output(invoke: Invoke) -> None:
    found = checks(invoke, 1, "--backend", "scaled")
    for check in found.values():
        assert check["status"] == "fail"
        assert check["worst"] == "o"
        assert check["errors"]["o"] > check["bound"]
        assert check["errors"]["d q"] <= check["bound"]
        assert "scaled:gla#chunk: off by more than 4 units: o " in check["text"]


def test_a_value_that_is_not_finite(invoke: Invoke) -> None:
    found = checks(invoke, 1, "--backend", "not-finite")
    assert found["dense"]["errors"]["o"] == "infinite"
    assert found["dense"]["status"] == "fail"


def test_packed_sequences_that_leak(invoke: Invoke) -> None:
    found = checks(invoke, 1, "--backend", "leaking")
    assert found["dense"]["status"] == "pass"
    assert found["varlen"]["status"] == "fail"


def test_a_gradient_that_is_missing(invoke: Invoke) -> None:
    found = checks(invoke, 1, "--backend", "no-gradient")
    assert found["dense"]["worst"] == "d gk"
    assert found["dense"]["status"] == "fail"


def test_a_kernel_that_raises(invoke: Invoke) -> None:
    found = checks(invoke, 1, "--backend", "raising")
    assert found["dense"]["status"] == "error"
    assert "RuntimeError: launch failed" in found["dense"]["text"]


def test_forward_only_is_checked_forwards(invoke: Invoke) -> None:
    found = checks(invoke, 0, "--backend", "forward-only")
    assert found["dense"]["status"] == "pass"
    assert found["dense"]["gradients"] is False
    assert set(found["dense"]["errors"]) == {"o", "final_state"}


def test_refused_everywhere_is_not_a_pass(invoke: Invoke) -> None:
    result = invoke("selfcheck", "--op", "kda", "--backend", "right", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert {check["status"] for check in data["checks"]} == {"refused"}
    assert "no implementation of kda" in data["checks"][0]["text"]


def test_the_command_to_go_on_with_can_be_pasted(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = invoke("selfcheck", "--op", "kda", "--backend", "right").stdout.splitlines()
    commands = [line for line in lines if "fla-kernels explain" in line]
    assert commands
    assert all(line.endswith("--backend right") for line in commands)


def test_what_ran_must_be_what_was_planned() -> None:
    planned = "acme:gla#chunk"
    check = Check("chunk_gla", "dense", planned=planned, gradients=True, errors={"o": 0.5}, bound=4)
    forward = {"event": "call", "direction": "forward", "plan": planned}
    backward = {"event": "call", "direction": "backward", "plan": "reference:gla#chunk"}
    _judge(check, [forward, {**backward, "plan": planned}])
    assert check.status == "pass"
    _judge(check, [forward, backward])
    assert check.status == "fail"
    assert "what ran was forward of acme:gla#chunk, backward of reference:gla#chunk" in check.text
    _judge(check, [])
    assert "what ran was nothing" in check.text


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("retention.*", ["chunk_retention", "fused_chunk_retention"]),
        ("gdn.*", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"]),
        ("gdn", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"]),
        ("chunk_gdn", ["chunk_gated_delta_rule"]),
        ("kda.chunk_*", ["chunk_kda"]),
        ("kda", ["chunk_kda", "fused_recurrent_kda"]),
    ],
)
def test_globs_are_those_of_policies(glob: str, names: list[str]) -> None:
    assert public_matching(glob)[: len(names)] == names
    policy = parse(f"{glob}=reference")
    matched = {
        dict(contract.aliases).get(name, name)
        for name, (contract, _) in public_names().items()
        if policy.rule_for(contract.name, name)
    }
    assert sorted(public_matching(glob)) == sorted(matched)


def test_text(invoke: Invoke) -> None:
    result = invoke("selfcheck", "--op", "chunk_gla", "--K", "16", "--backend", "scaled")
    assert result.exit_code == 1
    for text in ("Self-check on cpu bf16", "scaled:gla#chunk", " of 4 ", "2 fail"):
        assert text in result.stdout


def shown(capsys: pytest.CaptureFixture[str], checks: list[Check]) -> list[str]:
    """Lines of the text."""
    _show(checks, "cpu bf16")
    return capsys.readouterr().out.splitlines()


def check_of(name: str, case: str, **fields: Any) -> Check:
    """A check that passed, with the longest names of what may be off."""
    ran = f"reference:{public_names()[name][0].name}#chunk (lowered: g_gamma, gva)"
    defaults: dict[str, Any] = {
        "status": "pass",
        "planned": ran,
        "ran": ran,
        "gradients": True,
        "errors": {"o": 0.5, "d initial_state": 0.75},
        "bound": 4.0,
        "seconds": 12.5,
    }
    return Check(name, case, **defaults | fields)


@pytest.mark.parametrize("columns", [80, 200])
def test_a_check_is_one_line_below_its_implementation(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    checks = [check_of(name, case) for name in public_names() for case in CASES]
    checks[0].status, checks[0].text = "fail", "off by " + "far " * 50
    checks[1] = Check(checks[1].operator, "varlen", "refused", text="no plugin")
    lines = shown(capsys, checks)
    assert all(len(line) <= columns for line in lines if line != checks[0].text)
    assert not any(line.endswith(" ") for line in lines if line.startswith(" "))
    below = dict[str, list[list[str]]]()
    for line in lines:
        if line and not line.startswith(" "):
            rows = below.setdefault(line, [])
        elif line:
            rows.append(re.split("  +", line.strip()))
    last = ["0.75 of 4", "d initial_state", *["12.50"] * (columns == 200)]
    for check in checks:
        row = [check.operator, check.case, check.status, *(last if check.errors else [])]
        assert row in below[check.ran or "no implementation"]
    assert sum(map(len, below.values())) == 1 + len(checks)  # the headers
    assert lines[lines.index(f"fail {checks[0].operator} dense") + 1] == checks[0].text
    assert lines[lines.index(f"refused {checks[1].operator} varlen") + 1] == "no plugin"


def test_a_narrow_terminal_gets_a_block_for_each_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    name = "fused_recurrent_gla"
    lines = shown(capsys, [check_of(name, "dense", ran="acme:gla#loop")])
    assert all(len(line) <= 30 for line in lines)
    first = lines.index("acme:gla#loop")
    found = [line.split(maxsplit=1) for line in lines[first + 2 : first + 7]]
    assert lines[first + 1] == f"  {name}"
    assert [[label, text.strip()] for label, text in found] == [
        ["case", "dense"],
        ["result", "pass"],
        ["error", "0.75 of 4"],
        ["worst", "d initial_state"],
        ["seconds", "12.50"],
    ]


def test_forward_only_is_said_with_the_implementation(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [
        check_of("chunk_gla", "dense", ran="a:gla#x"),
        check_of("chunk_gla", "varlen", ran="a:gla#x", gradients=False),
        Check("chunk_kda", "dense", "error", planned="a:kda#x", text="RuntimeError: no"),
    ]
    lines = shown(capsys, checks)
    names = [line for line in lines if line.startswith("a:")]
    assert names == ["a:gla#x", "a:gla#x, forward only", "a:kda#x"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--op", "nothing_like_it"), "there is no operator"),
        (("--device", "cuda:99"), "a device of this machine"),
        (("--dtype", "int8"), "bf16"),
        (("--backend", "a,,b", "--op", "gla"), "a name is missing"),
    ],
)
def test_bad_questions(invoke: Invoke, arguments: tuple[str, ...], text: str) -> None:
    result = invoke("selfcheck", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr


def test_an_installed_wrong_plugin(site: Site) -> None:
    """End to end: a distribution on the path, automatic selection, an exit code."""
    code = """
from fla_core.contracts import CONTRACTS
from fla_core.domain import Domain

print("plugins may print")

@hookimpl
def fla_implementations():
    takes = dict.fromkeys(("varlen", "initial_state", "final_state", "gk"), "optional")
    yield Implementation(
        contract="gla", revision=CONTRACTS["gla"].revision, variant="chunk",
        forward="planted_crooked:forward", backward="planted_crooked:backward",
        domain=Domain(features=takes), strided=True,
    )

def forward(call, save):
    from fla_core.reference.implementations import decay_chunk_forward
    (o, *rest), residuals = decay_chunk_forward(call, save)
    return (o * 1.02, *rest), residuals

def backward(*args):
    from fla_core.reference.implementations import decay_chunk_backward
    return decay_chunk_backward(*args)
"""
    site.plant("crooked", card("crooked") + code)
    done = site.run("selfcheck", "--op", "chunk_gla", "--K", "16", "--device", "cpu", "--json")
    assert done.code == 1
    assert {check["status"] for check in done.json["checks"]} == {"fail"}
    assert {check["ran"] for check in done.json["checks"]} == {"crooked:gla#chunk"}
    assert "plugins may print" in done.err
