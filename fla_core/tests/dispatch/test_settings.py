"""The environment variables: what they take, and what is left alone."""

from __future__ import annotations

import pytest

from fla_core.dispatch.settings import PEERS, Settings, edit_distance, read_settings
from fla_core.errors import PolicyError, UnknownBackendError


def test_an_empty_environment() -> None:
    assert read_settings({}) == Settings()
    assert read_settings({"FLA_BACKEND": "", "FLA_PLUGINS": " ", "FLA_TRACE": ""}) == Settings()


def test_foreign_variables_are_left_alone() -> None:
    foreign = dict.fromkeys((*PEERS, "FLA_NO_CACHE", "PATH", "FLA_CONV_BACKEND"), "1")
    assert read_settings(foreign) == Settings()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("FLA_BACKENDS", "FLA_BACKEND"),
        ("FLA_BAKCEND", "FLA_BACKEND"),
        ("FLA_PLUGIN", "FLA_PLUGINS"),
        ("FLA_TRACES", "FLA_TRACE"),
    ],
)
def test_near_misses_are_errors(name: str, ours: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_settings({name: "x"})
    assert f"{name} is not a variable of fla-kernels" in str(caught.value)
    assert f"did you mean {ours}?" in str(caught.value)


def test_disable_is_the_reference() -> None:
    settings = read_settings({"FLA_DISABLE_BACKEND_DISPATCH": "1"})
    assert (settings.backend, settings.backend_variable) == (
        "reference",
        "FLA_DISABLE_BACKEND_DISPATCH",
    )
    assert read_settings({"FLA_DISABLE_BACKEND_DISPATCH": "0"}) == Settings()


def test_disable_takes_only_digits_and_does_not_contradict() -> None:
    with pytest.raises(PolicyError, match="must be 0 or 1, got 'true'"):
        read_settings({"FLA_DISABLE_BACKEND_DISPATCH": "true"})
    with pytest.raises(PolicyError, match="the two contradict each other"):
        read_settings({"FLA_DISABLE_BACKEND_DISPATCH": "1", "FLA_BACKEND": "cuda"})


@pytest.mark.parametrize(
    ("text", "excluded"),
    [("none", {"acme", "cuda"}), ("cuda", {"acme"}), ("-cuda", {"cuda"}), ("acme, cuda", set())],
)
def test_plugin_filter(text: str, excluded: set[str]) -> None:
    plugins = read_settings({"FLA_PLUGINS": text}).plugins
    assert {name for name in ("acme", "cuda") if plugins.rule_for(name)} == excluded


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cuda,-acme", "cannot be mixed"),
        ("cuda,", "an item is empty"),
        ("-", "an item is empty"),
        ("none,cuda", "'none' stands alone"),
        ("-reference", "the built-in reference is always there"),
    ],
)
def test_plugin_filter_errors(text: str, problem: str) -> None:
    with pytest.raises(PolicyError, match=problem):
        read_settings({"FLA_PLUGINS": text})


def test_plugin_filter_knows_misspellings() -> None:
    for text in ("cdua", "-cdua"):
        with pytest.raises(UnknownBackendError, match="did you mean 'cuda'"):
            read_settings({"FLA_PLUGINS": text}).plugins.check(["cuda", "reference"])
    with pytest.raises(UnknownBackendError, match="installed: cuda, reference"):
        read_settings({"FLA_PLUGINS": "ascend"}).plugins.check(["cuda", "reference"])
    read_settings({"FLA_PLUGINS": "-ascend"}).plugins.check(["cuda", "reference"])


def test_trace() -> None:
    settings = read_settings({"FLA_TRACE": "calls:/tmp/a:b.jsonl"})
    assert (settings.trace, settings.trace_path) == ("calls", "/tmp/a:b.jsonl")
    with pytest.raises(PolicyError, match="must be one of off, decisions, calls, got 'all'"):
        read_settings({"FLA_TRACE": "all"})
    for text in (":/tmp/a.jsonl", ":x"):
        with pytest.raises(PolicyError, match="a level is missing before the colon"):
            read_settings({"FLA_TRACE": text})


@pytest.mark.parametrize(
    ("a", "b", "distance"), [("", "ab", 2), ("kitten", "sitting", 3), ("abc", "abc", 0)]
)
def test_edit_distance(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == edit_distance(b, a) == distance
