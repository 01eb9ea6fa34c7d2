"""The command as a whole: help, speed of starting, colour."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
from command_line import STUB, Invoke, Site

from fla_core.cli import _view


def test_help_names_every_command(invoke: Invoke) -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for name in ("doctor", "backends", "explain", "selfcheck", "warmup", "new-plugin"):
        assert name in result.stdout
        assert "--json" in invoke(name, "--help").stdout


def test_help_cuts_no_sentence_of_a_command_short(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = " ".join(invoke("--help").stdout.partition("Commands:")[2].split())
    assert "..." not in page
    assert "Say which implementation a call would get, and why not the others." in page


def test_only_of_numpy_may_torch_not_warn(site: Site) -> None:
    warn = "\nimport warnings\nfor text in ('Failed to initialize NumPy: none', 'old driver'):"
    site.stub_torch(STUB + warn + "\n    warnings.warn(text)\n")
    done = site.run("explain", "chunk_kda")
    assert done.code == 0
    assert "old driver" in done.err
    assert "NumPy" not in done.err


def test_a_toolkit_without_a_gpu_is_not_worth_a_word(site: Site) -> None:
    logged = "\nimport logging\nlog = logging.getLogger('torch.utils.cpp_extension').warning"
    texts = "log('No CUDA runtime is found, using CUDA_HOME=%r', 'x')\nlog('no compiler')"
    site.stub_torch(f"{STUB}{logged}\n{texts}\n")
    done = site.run("explain", "chunk_kda")
    assert done.code == 0
    assert "no compiler" in done.err
    assert "CUDA" not in done.err


def test_the_version_is_that_of_the_package(invoke: Invoke) -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.stdout == f"fla-kernels {version('fla-kernels-core')}\n"
    help_page = invoke("--help").stdout
    assert "--version" in help_page
    assert "Linear attention kernels: what is installed" in help_page


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("explain kda --K many --json", "'--K'"),
        ("explain --json", "argument"),
        ("explain kda --nonsense --json", "--nonsense"),
        ("nonsense --json", "nonsense"),
        ("--json", "--json"),
        ("selfcheck --K 0 --json", "'--K'"),
    ],
)
def test_usage_errors_are_json_too(invoke: Invoke, words: str, text: str) -> None:
    result = invoke(*words.split())
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert text in error["message"]
    assert error["type"].isidentifier()
    plain = invoke(*words.replace("--json", "").split())
    assert plain.stdout == "" or "Usage: " in plain.stdout


def test_starting_loads_nothing_heavy() -> None:
    heavy = ("torch", "triton", "numpy", "rich", "pluggy", "importlib_metadata")
    code = f"import sys, fla_core.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_colour_when_piped_or_unwanted(site: Site) -> None:
    assert "\x1b" not in site.run("backends").out
    coloured = site.run("backends", FORCE_COLOR="1").out
    assert "\x1b[2m" in coloured
    assert "\x1b[3" not in site.run("backends", FORCE_COLOR="1", NO_COLOR="1").out


def test_states_have_colours(capsys: pytest.CaptureFixture[str]) -> None:
    assert _view.styled("broken").style == "bold red"
    assert _view.styled("loaded").style == "green"
    assert _view.styled("kda").style == ""
