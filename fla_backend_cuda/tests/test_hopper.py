"""Host code around the kernels for Hopper, where no kernel runs."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from fla_core.call import Call
from fla_core.contracts import CONTRACTS

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@pytest.mark.parametrize("offset", [0, 1])
def test_what_copies_cannot_read_is_moved_and_nothing_else(offset: int) -> None:
    from fla_backend_cuda.hopper.delta import placed

    contract = CONTRACTS["delta_rule"]
    memory = torch.arange(136, dtype=torch.bfloat16)
    given = {
        **dict.fromkeys(spec.name for spec in contract.inputs),
        "q": memory[offset : offset + 64].view(1, 1, 1, 64),
        "k": memory[72:136].view(1, 1, 1, 64),
    }
    call = Call(contract, "chunk", given, 1.0, frozenset())
    found = placed(call)
    assert (found is call) == (offset == 0)
    assert found.q.data_ptr() % 16 == 0
    assert found.q.equal(given["q"])
    assert found.k is given["k"]
