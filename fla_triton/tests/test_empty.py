"""Calls without a sequence or without a token: no kernel runs, and every family answers."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from fla_conformance.case import Case
from fla_conformance.inputs import make_inputs
from fla_core.outputs import expected_outputs
from fla_triton.declared import FORWARD_ONLY, ROWS, Row
from fla_triton.profiles import PROFILES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@pytest.mark.parametrize(("batch", "tokens"), [(0, 17), (0, 1), (0, 0), (2, 0)])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.contract)
def test_nothing_is_computed(row: Row, batch: int, tokens: int) -> None:
    gate = {"g"}.intersection(row.features)
    sizes = {"B": batch, "T": tokens, "H": 2, "HV": 2, "K": 16, "V": 8}
    features = frozenset({"initial_state", "final_state", *row.required, *gate})
    inputs = make_inputs(Case(row.contract, "bwd", "float32", "chunk", sizes, features))
    kernels = importlib.import_module(f"fla_triton.{row.family}").Kernels(PROFILES["sm90"])
    call = inputs.call()
    (o, last), residuals = kernels.forward(call, True)
    assert o.shape == (batch, tokens, 2, 8)
    assert last.equal(call.initial_state)
    grads = [inputs.grads[name] for name in inputs.output_names]
    found = kernels.backward(call, residuals, grads, frozenset(inputs.present))
    assert found["q"].shape == (batch, tokens, 2, 16)
    assert found["initial_state"].equal(grads[1])


@pytest.mark.parametrize(
    ("batch", "tokens", "lengths"),
    [(0, 100, None), (2, 0, None), (0, 0, None), (1, 0, (0, 0)), (1, 0, ())],
)
@pytest.mark.parametrize("row", FORWARD_ONLY, ids=lambda row: row.title)
def test_nothing_is_returned_in_the_shapes_of_the_contract(
    row: Row, batch: int, tokens: int, lengths: tuple[int, ...] | None
) -> None:
    sizes = {"B": batch, "T": tokens, "H": 2, "HV": 2, "K": 16, "V": 8}
    others = {"gk"}.intersection(row.features) | ({"varlen"} if lengths is not None else set())
    features = frozenset({"initial_state", "final_state", *row.required, *others})
    one = Case(row.contract, "fwd", "bfloat16", row.forms[0], sizes, features, lengths)
    call = make_inputs(one).call()
    kernels = importlib.import_module(f"fla_triton.{row.family}").Kernels(PROFILES["sm90"])
    outputs, residuals = kernels.forward(call, False)
    expected = expected_outputs(call)
    assert residuals == ()
    assert tuple(tuple(x.shape) for x in outputs) == expected.shapes
    assert tuple(x.dtype for x in outputs) == expected.dtypes
    assert outputs[1].equal(call.initial_state)
