"""The grammar of policies, and which rule governs an operator."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fla_core.dispatch.policy import Item, parse
from fla_core.errors import PolicyError, UnknownBackendError


def _items(text: str, operator: str = "chunk_kda", contract: str = "kda") -> list[str] | None:
    rule = parse(text).rule_for(contract, operator)
    if rule is None:
        return None
    marks = {"exclude": "-"}
    return [marks.get(item.kind, "") + item.name for item in rule.items]


def test_items() -> None:
    (rule,) = parse(" cuda/triton , auto,-tilelang ").rules
    assert rule.items == (
        Item("plugin", "cuda", "triton"),
        Item("auto", "auto"),
        Item("exclude", "tilelang"),
    )
    assert rule.open
    assert rule.excluded == {"tilelang"}
    assert not parse("cuda,reference").rules[0].open


@pytest.mark.parametrize(
    "glob", ["kda", "chunk_kda", "kda.*", "kda.chunk_kda", "*_kda", "k*", "*", "chunk_*"]
)
def test_globs_that_mean_chunk_kda(glob: str) -> None:
    assert _items(f"{glob}=tilelang") == ["tilelang"]


@pytest.mark.parametrize("glob", ["gla", "gla.*", "fused_recurrent_kda", "delta_*"])
def test_globs_that_do_not(glob: str) -> None:
    assert _items(f"{glob}=tilelang") is None
    assert _items(f"{glob}=tilelang;cuda") == ["cuda"]


def test_public_families_that_share_a_contract() -> None:
    assert _items("retention.*=cuda;auto", "chunk_retention", "simple_gla") == ["cuda"]
    assert _items("retention.*=cuda;auto", "chunk_simple_gla", "simple_gla") == ["auto"]
    assert _items("simple_gla=cuda;auto", "chunk_retention", "simple_gla") == ["cuda"]


@pytest.mark.parametrize("glob", ["chunk_gdn", "gdn", "gdn.*", "gdn.chunk_gdn", "*_gdn"])
@pytest.mark.parametrize("operator", ["chunk_gdn", "chunk_gated_delta_rule"])
def test_a_second_name_governs_the_first_and_the_other_way_round(glob: str, operator: str) -> None:
    for spelling in (glob, "chunk_gated_delta_rule"):
        assert _items(f"{spelling}=cuda;auto", operator, "gated_delta_rule") == ["cuda"]
    assert _items("fused_recurrent_gdn=cuda;auto", operator, "gated_delta_rule") == ["auto"]


def test_the_most_specific_glob_wins_wherever_it_stands() -> None:
    text = "*_kda=a;auto;chunk_kda=b;k*=c"
    assert _items(text) == ["b"]
    assert _items(text, "fused_recurrent_kda") == ["a"]


def test_equal_specificity_is_an_error() -> None:
    with pytest.raises(PolicyError) as caught:
        _items("chunk_*=a;*nk_kda=b;auto")
    assert "'chunk_*' and '*nk_kda' match chunk_kda equally well" in str(caught.value)
    assert _items("chunk_*=a;*nk_kda=b;auto", "chunk_gla", "gla") == ["a"]


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("", "a name is missing (at column 1)", "write auto, reference or a plugin"),
        ("cuda,", "a name is missing (at column 6)", ""),
        ("cuda;;auto", "a name is missing (at column 6)", ""),
        ("kda=", "a name is missing (at column 5)", ""),
        ("Cuda", "'Cuda' is not a name (at column 1)", "names are lower case"),
        ("auto, cu da", "'cu da' is not a name (at column 7)", ""),
        ("!cuda", "'!cuda' is not a name (at column 1)", ""),
        ("none", "'none' belongs to FLA_PLUGINS (at column 1)", "write reference instead"),
        ("auto/triton", "'auto/triton': only a plugin takes a toolchain (at column 1)", ""),
        ("auto,-cuda/triton", "'-cuda/triton': only a plugin takes a toolchain", ""),
        ("auto,-auto", "'-auto' means nothing (at column 6)", "a list without auto is closed"),
        ("cuda,-acme", "'-' is only meaningful beside 'auto'", "write auto,-acme"),
        ("cuda,cuda", "'cuda' is named twice in one rule (at column 1)", ""),
        ("auto;kda=cuda,cuda", "'cuda' is named twice in one rule (at column 6)", ""),
        ("cuda;auto", "the rule for all operators is given twice", "keep one of them"),
        ("kda=a;auto;kda=b", "'kda' is given twice", ""),
    ],
)
def test_errors_say_where(text: str, problem: str, hint: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(text, "FLA_BACKEND")
    assert problem in str(caught.value)
    assert hint in str(caught.value)
    assert "from     FLA_BACKEND" in str(caught.value)


def test_unknown_operators_get_suggestions() -> None:
    with pytest.raises(UnknownBackendError) as caught:
        parse("cuda;chunk_kdaa=tilelang")
    assert "'chunk_kdaa' (at column 6) matches no operator" in str(caught.value)
    assert "did you mean chunk_kda" in str(caught.value)
    with pytest.raises(UnknownBackendError, match="contracts: linear_attn, simple_gla"):
        parse("xyz=cuda")


names = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True).filter(
    lambda name: name not in ("auto", "none", "reference")
)


@settings(max_examples=50, derandomize=True)
@given(st.lists(names, min_size=1, max_size=4, unique=True), st.booleans(), st.booleans())
def test_every_written_policy_reads_back(plugins: list[str], opened: bool, spaced: bool) -> None:
    comma = " , " if spaced else ","
    text = comma.join([*plugins, *(["auto"] if opened else [])])
    (rule,) = parse(text).rules
    assert [item.name for item in rule.items if item.kind == "plugin"] == plugins
    assert rule.open is opened


@settings(max_examples=200, derandomize=True)
@given(st.text(alphabet="ab,;=-*/ auto", max_size=12))
def test_any_text_is_a_policy_or_a_policy_error(text: str) -> None:
    with suppress(PolicyError):
        assert parse(text).rules
