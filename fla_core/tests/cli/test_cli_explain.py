"""``fla-kernels explain``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Invoke, Site, card, kernels, leftover

from fakes import domain, implementation, plugin
from fla_core.dispatch.runtime import sandbox
from fla_core.domain import AxisRange
from fla_core.plugins.record import PluginRecord

FROM_A_CHECKOUT = (
    "pip install --no-deps -e ./fla_triton -e ./fla_backend_cuda  # NVIDIA, from a checkout"
)
ON_AMD = FROM_A_CHECKOUT.replace("cuda", "rocm").replace("NVIDIA", "AMD")


@pytest.fixture
def plugins() -> list[PluginRecord]:
    narrow = domain("gk", K=AxisRange(choices=(64, 128)))
    return [
        plugin("acme", implementation(domain=narrow)),
        plugin("bolt", implementation(backward=None), priority=200),
    ]


def test_a_device_that_is_not_here(invoke: Invoke) -> None:
    result = invoke("explain", "gla.chunk_gla", "--K", "128", "--dtype", "bf16", "--device", "cuda")
    assert result.exit_code == 0, result.output
    for text in (
        "chunk_gla: acme:gla#chunk if there were such a device",
        "note    no cuda device",
        "would be asked; not probed here (no cuda device)",
        "accepted",
        "bolt",
        "not asked",
        "auto (from automatic selection)",
    ):
        assert text in result.output
    assert "pip install" not in result.output


def test_json_has_every_refusal(invoke: Invoke) -> None:
    line = "explain chunk_gla --K 192 --device cuda --grad --feature gk --feature varlen --json"
    result = invoke(*line.split())
    data = json.loads(result.stdout)
    assert result.exit_code == 0
    assert data["chosen"] == "reference:gla#chunk"
    assert data["install"] == []
    assert data["features"] == ["gk", "varlen"]
    refusals = {c["candidate"]: c for c in data["considered"] if c["code"] != "OK"}
    assert refusals["acme:gla#chunk"]["code"] == "AXIS"
    assert refusals["acme:gla#chunk"]["want"] == "64 | 128"
    assert refusals["bolt:gla#chunk"]["code"] == "GRAD"


def test_sizes_that_are_not_given_become_conditions(invoke: Invoke) -> None:
    result = invoke("explain", "gla", "--device", "cuda")
    assert "only if K is 64 | 128" in result.output


def test_an_arch_tells_the_device(invoke: Invoke) -> None:
    result = invoke("explain", "gla", "--arch", "gfx942")
    assert result.exit_code == 0
    assert "bf16 cuda gfx942" in result.output


def test_nobody_accepts(invoke: Invoke) -> None:
    result = invoke("explain", "chunk_gla", "--K", "96", "--device", "cuda", "--backend", "acme")
    assert result.exit_code == 1
    assert "no implementation" in result.output
    assert "K=96, wants 64 | 128" in result.output
    assert "acme (from backend=)" in result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("chunk_kdx",), "chunk_kda"),
        (("kda", "--K", "0"), ">= 1"),
        (("kda", "--dtype", "int8"), "int8"),
        (("kda", "--feature", "l2nrm"), "did you mean l2norm?"),
        (("kda", "--feature", "lower_bound"), "gate beside lower_bound"),
        (("kda", "--feature", "gate"), "A_log or lower_bound beside gate"),
        (("kda", "--device", "cuda:x"), "a device such as cuda or cuda:1"),
        (("kda", "--device", "nonsense"), "one of cpu, cuda, xpu, npu"),
        (("kda", "--device", "cdua:1"), "'cdua:1' (did you mean cuda"),
        (("kda", "--backend", "acne"), "did you mean 'acme'?"),
        (("kda", "--arch", "nonsense"), "one that somebody installed knows: sm[0-9]*, gfx[0-9]*"),
        (
            ("kda", "--arch", "sm90", "--device", "npu"),
            "nobody installed tells architectures of npu",
        ),
    ],
)
def test_questions_that_cannot_be_understood(
    invoke: Invoke, arguments: tuple[str, ...], text: str
) -> None:
    result = invoke("explain", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stdout == ""
    as_json = invoke("explain", *arguments, "--json")
    assert as_json.exit_code == 2
    assert text in json.loads(as_json.stdout)["error"]["message"]


def test_a_device_that_only_a_plugin_knows(invoke: Invoke) -> None:
    assert invoke("explain", "kda", "--device", "quark").exit_code == 2
    with sandbox(plugin("acme", targets=("quark",))):
        result = invoke("explain", "gla", "--device", "quark")
    assert result.exit_code == 0
    assert "gla: acme:gla#chunk" in result.stdout


@pytest.mark.parametrize(
    ("device", "note"),
    [
        ("cpu", ""),
        ("cpu:0", ""),
        ("cpu:7", "there is one cpu, no cpu:7"),
        ("mps:3", "no mps:3 dev"),
        ("xpu", "no xpu device"),
    ],
)
def test_a_device_beyond_what_is_here_is_noted(invoke: Invoke, device: str, note: str) -> None:
    result = invoke("explain", "gla", "--device", device)
    assert result.exit_code == 0
    assert note in result.stdout
    headline = result.stdout.partition("\n")[0]
    assert headline.endswith("if there were such a device") is bool(note)
    said = json.loads(invoke("explain", "gla", "--device", device, "--json").stdout)["note"]
    assert said.startswith(note)
    assert bool(said) is bool(note)


def test_nothing_installed_for_the_device(site: Site) -> None:
    """In a process of its own, where no plugin is: what would run, and what to install."""
    line = ["explain", "kda.chunk_kda", "--K", "128", "--dtype", "bf16", "--device", "cuda"]
    site.stub_torch()
    done = site.run(*line)
    assert done.code == 0
    assert "chunk_kda: reference:kda#chunk" in done.out
    assert "slow reference" in done.out
    assert FROM_A_CHECKOUT in done.out
    assert ON_AMD in done.out
    commands = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8").splitlines()
    assert any(command.startswith(FROM_A_CHECKOUT.partition("  #")[0]) for command in commands)
    for arch, what in (("sm90", "NVIDIA"), ("gfx942", "AMD")):
        (hint,) = site.run(*line, "--arch", arch, "--json").json["install"]
        assert hint.endswith(f"# {what}, from a checkout")


@pytest.mark.parametrize(
    ("words", "install"),
    [
        ((), ["pip install 'no-such-triton'  # for cuda"]),
        (("--arch", "sm90"), ["pip install 'no-such-triton'  # for cuda"]),
        (("--arch", "gfx942"), [ON_AMD]),
        (("--arch", "sm87"), ["pip install 'no-such-triton'  # for cuda"]),
        (("--backend", "other"), []),
        (("--backend", "reference"), []),
        (("--backend", "auto,-cuda"), [ON_AMD]),
        (("--backend", "auto,-cuda,-rocm"), []),
        (("--backend", "cuda"), ["pip install 'no-such-triton'  # for cuda"]),
    ],
)
def test_what_to_install_is_what_would_be_asked(
    site: Site, words: tuple[str, ...], install: list[str]
) -> None:
    site.stub_torch()
    site.plant("cuda", card("cuda", ("no-such-triton",), ("cuda",)) + kernels("sm8*", "sm90"))
    site.plant("other", card("other", (), ("cpu",)))
    done = site.run("explain", "kda", "--device", "cuda", *words, "--json")
    assert done.json["install"] == install


@pytest.mark.parametrize("package", ["foreign", "triton"])
def test_a_leftover_without_metadata_provides_nothing(site: Site, package: str) -> None:
    leftover(site.folder, package)
    site.plant("needs", card("needs", ("triton>=3.4",), ("cuda",)) + kernels())
    site.stub_torch()
    done = site.run("explain", "kda", "--device", "cuda", "--json")
    assert done.code == 0, done.err
    assert done.json["install"] == ["pip install 'triton>=3.4'  # for needs"]
