"""The suite under pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from planted import RIGHT, Site

WRONG = (
    RIGHT
    + """
    right = forward
    def forward(call, save):
        outputs, residuals = right(call, save)
        if call.tensors["q"].shape[1] in (17, 130):
            outputs = (outputs[0] * 1.02, *outputs[1:])
        return outputs, residuals
"""
)

EXPECT = """
    [[expect]]
    select = { op = "linear_attn", T = 130, direction = "fwd", level = "L1" }
    outcome = "fail.numeric"
    kind = "bug"
    reason = "130 is an awkward number"
    expires = 2999-01-01

    [[expect]]
    select = { op = "linear_attn", T = 66, direction = "fwd", level = "L1" }
    outcome = "fail.numeric"
    kind = "bug"
    reason = "66 as well, they say"
    expires = 2999-01-01
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "site").mkdir()
    return Site(tmp_path / "site")


def pytest_on_suite(site: Site, *arguments: str) -> tuple[int, str]:
    options = ("-p", "no:cacheprovider", "-rA", "--tb=line")
    done = site.python("-m", "pytest", *options, "--pyargs", "fla_conformance", *arguments)
    return done.code, done.out + done.err


def test_each_check_is_an_item_and_expectations_are_strict(site: Site) -> None:
    site.plant("wrong", kernels=WRONG, expect=EXPECT)
    code, text = pytest_on_suite(site, "--fla-plugin", "wrong", "--fla-level", "L1")
    assert code == 1, text
    items = [line.split("::test_check[") for line in text.splitlines() if "::test_check[" in line]
    ids = {
        word: [item for start, item in items if start.startswith(word)]
        for word in ("PASSED", "FAILED", "XFAIL")
    }
    assert "wrong/L0/plugin/card]" in ids["PASSED"]
    (expected,) = ids["XFAIL"]
    assert expected.startswith("wrong:linear_attn#plain/L1/linear_attn@")
    assert ".T130." in expected
    assert expected.endswith("130 is an awkward number")
    unexpected, passed = sorted(ids["FAILED"], key=lambda item: ".T66." in item)
    assert ".T17." in unexpected
    assert ".T66." in passed
    assert "fail.numeric: o: " in text
    assert "Task(target=" not in text
    assert "xpass: passed although expectation 2" in text


def test_a_plugin_must_be_named(site: Site) -> None:
    code, text = pytest_on_suite(site)
    assert "which plugin? Give --fla-plugin NAME" in text
    assert "plugin.py" not in text
    assert code != 0


def test_errors_of_the_request_are_usage_errors(site: Site) -> None:
    code, text = pytest_on_suite(site, "--fla-plugin", "nobody")
    assert "there is no plugin 'nobody'" in text
    assert "Traceback" not in text
    assert "plugin.py" not in text
    assert code == pytest.ExitCode.USAGE_ERROR


def test_loading_it_costs_other_test_runs_nothing(site: Site) -> None:
    program = "import sys, fla_conformance.plugin; print('torch' in sys.modules)"
    assert site.python("-c", program).out.strip() == "False"
