"""A lowered call names as features exactly the optional tensors that it has."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from fla_core.call import Call
from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS
from fla_core.domain import Domain, Presence
from fla_core.lower import lower

SIZES = {"B": 1, "T": 3, "H": 2, "HV": 2, "K": 4, "V": 5, "N": 1, "1": 1}
GATES = ("g", "gk", "beta")


def full_call(contract: Contract, given: tuple[str, ...]) -> Call:
    tensors, features = {}, set(given)
    for spec in contract.inputs:
        present = not spec.optional or spec.name in given
        shape = [
            SIZES[a] * SIZES[b] if b else SIZES[a]
            for a, _, b in (letter.partition("*") for letter in spec.axes)
        ]
        tensors[spec.name] = torch.rand(shape) if present else None
    return Call(contract, "chunk", tensors, 1.0, frozenset(features))


@pytest.mark.parametrize("name", CONTRACTS)
def test_features_of_a_lowered_call_are_its_tensors(name: str) -> None:
    contract = CONTRACTS[name]
    optional = [spec.name for spec in contract.inputs if spec.optional]
    removable = {n for x in contract.lowerings if not x.when_absent for n in x.features}
    kept = [n for n in contract.features if n not in removable]
    features: dict[str, Presence] = dict.fromkeys(kept, "optional")
    features.update({n: "required" for n in GATES if n in features})
    base = Domain(features=features)
    checked = 0
    for count in range(len(optional) + 1):
        for given in combinations(optional, count):
            flags = ("gate",) if {"A_log", "dt_bias"} & set(given) else ()
            if flags and ("A_log" not in given or ("g" in optional and "g" not in given)):
                continue  # no such call
            if "initial_z" in given:
                flags = (*flags, "normalize")
            call = full_call(contract, (*given, *flags))
            lowerings, planned = contract.lowerings_for(call.features, base)
            lowered = lower(call, lowerings)[-1]
            present = {n for n in optional if lowered.get(n) is not None}
            assert lowered.features == planned
            assert {n for n in optional if n in lowered.features} == present, given
            checked += 1
    assert checked > len(optional)


def test_a_fixed_decay_is_not_replaced_by_none() -> None:
    contract = CONTRACTS["simple_gla"]
    base = Domain(features={"g": "required"})
    lowerings, _ = contract.lowerings_for(frozenset({"g_gamma"}), base)
    assert [lowering.name for lowering in lowerings] == ["g_gamma"]
    call = full_call(contract, ("g_gamma",))
    lowered = lower(call, lowerings)[-1]
    torch.testing.assert_close(lowered.g, call.g_gamma.expand(1, 3, 2))
