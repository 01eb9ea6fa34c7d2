"""What counts as a difference."""

from __future__ import annotations

import math

import pytest
import torch

from fla_conformance.laws.compare import difference, disagreement, tolerance


def test_equal_tensors_agree() -> None:
    x = torch.randn(3, 4)
    assert difference(x, x.clone(), "float32", exact=True) == ""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rounding_is_tolerated_and_more_is_not(dtype: str) -> None:
    x = torch.randn(64, 16, dtype=torch.float64)
    allowed = tolerance(dtype)
    assert difference(x * (1 + 0.9 * allowed), x, dtype) == ""
    assert "RMS" in difference(x * (1 + 1.1 * allowed), x, dtype)
    assert difference(x * (1 + 1e-15), x, dtype, exact=True)


def test_one_wrong_row_among_many_is_found() -> None:
    x = torch.ones(1, 1000, 1, 8)
    wrong = x.clone()
    wrong[0, 500] *= 1.2
    assert difference(wrong, x, "bfloat16").startswith("is 1.2 at [0, 500, 0, 0] instead of 1")


def test_zero_tensors_of_either_sign_agree_exactly() -> None:
    assert difference(-torch.zeros(3), torch.zeros(3), "float32", exact=True) == ""


def test_dust_counts_as_zero_and_no_more() -> None:
    assert difference(torch.full((4,), 1e-12), torch.zeros(4), "float32") == ""
    assert difference(torch.full((4,), 1e-9), torch.zeros(4), "float32")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_where_it_should_be_is_a_difference(value: float) -> None:
    x = torch.ones(4)
    odd = x.clone()
    odd[2] = value
    assert "at [2] instead of 1" in difference(odd, x, "float32")
    assert difference(odd, odd.clone(), "float32", exact=True) == ""


def test_shape_and_dtype_count() -> None:
    x = torch.ones(2, 3)
    assert difference(x[:1], x, "float32") == "has shape [1, 3] instead of [2, 3]"
    assert difference(x.half(), x, "float32") == "has dtype float16 instead of float32"
    assert difference(x[:0], x[:0], "float32") == ""


def test_disagreement_names_what_differs() -> None:
    x = torch.ones(2)
    assert disagreement({"o": x}, {"o": x}, "float32") is None
    assert disagreement({}, {"o": x}, "float32") == "o is missing"
    assert (disagreement({"o": 2 * x}, {"o": x}, "float32") or "").startswith("o is 2 at [0]")
    assert disagreement({"o": 2 * x, "s": x}, {"o": x, "s": x}, "float32", names=["s"]) is None
