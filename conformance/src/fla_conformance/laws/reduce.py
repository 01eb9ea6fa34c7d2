"""reduce: an operator in a special case is another operator.

The other one is run on an implementation of the same plugin, or where it has none on core's
reference: delta rules without decay, with one decay for all channels, with one strength for erasing
and writing, or that write nothing; gated linear attention with one decay for all channels, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.cut import with_tensors
from fla_conformance.laws.law import Law, NotExecutedError
from fla_conformance.laws.runner import Ran, Runner
from fla_conformance.reach import forms_of
from fla_core.contracts import CONTRACTS

Named = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Identity:
    """A special case of an operator, and the operator it then is.

    Attributes:
        when: the special case, in words.
        contract: name of the other operator.
        special: changes the call into the special case.
        arguments: the other operator's, made of those of the special call.
        gradients: pairs of a gradient of the special call and what it equals, made of the other's.
    """

    when: str
    contract: str
    special: Callable[[Inputs], Inputs]
    arguments: Callable[[Inputs], dict[str, Tensor]]
    gradients: Callable[[Ran], dict[str, Tensor]]


def _check(case: Case, runner: Runner) -> str | None:
    inputs = runner.inputs(case)
    for identity in IDENTITIES[case.contract]:
        if found := _compare(identity, inputs, runner):
            return f"{identity.when} it is not {identity.contract}: {found}"
    return None


def _compare(identity: Identity, inputs: Inputs, runner: Runner) -> str | None:
    special = identity.special(inputs)
    other = _other(identity, special)
    implementation = runner.sibling(identity.contract, other.case)
    if implementation is None:
        raise NotExecutedError(f"nobody computes {other.case.id}")
    want = runner.run_sibling(implementation, other)
    expected = dict(want.outputs)
    if special.grads:
        expected.update(identity.gradients(want))
    got = runner.run(special).named
    expected = {name: value.to(got[name].dtype) for name, value in expected.items()}
    found = disagreement(got, expected, inputs.case.dtype)
    return found and f"{found} (by {implementation})"


def _other(identity: Identity, special: Inputs) -> Inputs:
    contract, case = CONTRACTS[identity.contract], special.case
    given = {**_common(special), **identity.arguments(special)}
    kept = special.features & {"varlen", "final_state"}
    features = kept | {
        spec.name for spec in contract.inputs if spec.optional and spec.name in given
    }
    forms = forms_of(contract.name)
    wanted = case.gradients
    same = case.but(
        contract=contract.name,
        gradients=None if wanted is None else wanted & given.keys(),
        form=case.form if case.form in forms else forms[0],
        features=features - {"varlen"},
    )
    return Inputs(
        case=same,
        tensors={name: given.get(name) for name in contract.input_names},
        features=features,
        grads=special.grads,
        cu_seqlens=special.cu_seqlens,
        cu_seqlens_cpu=special.cu_seqlens_cpu,
        scale=special.scale,
        options=(None,) * len(contract.options),
        hints=special.hints,
    )


def _common(inputs: Inputs) -> dict[str, Tensor]:
    names = ("q", "k", "v", "initial_state")
    return {name: tensor for name in names if (tensor := inputs.tensors[name]) is not None}


def _gates(inputs: Inputs) -> dict[str, Tensor]:
    return {name: t for name in ("g", "gk") if (t := inputs.present.get(name)) is not None}


def _ungated(inputs: Inputs) -> Inputs:
    return inputs.but(**{name: torch.zeros_like(gate) for name, gate in _gates(inputs).items()})


def _equal_channels(name: str) -> Callable[[Inputs], Inputs]:
    def special(inputs: Inputs) -> Inputs:
        gate = inputs.present[name]
        return inputs.but(**{name: gate[..., :1].expand_as(gate).contiguous()})

    return special


def _beta(inputs: Inputs) -> dict[str, Tensor]:
    beta = inputs.tensors["beta"]
    return {} if beta is None else {"beta": beta}


def _one_strength(inputs: Inputs) -> Inputs:
    """What is erased of the first channel serves for erasing and writing all of them."""
    b, w = inputs.present["b"], inputs.present["w"]
    one = b[..., :1]
    return inputs.but(b=one.expand_as(b).contiguous(), w=one.expand_as(w).contiguous())


def _no_strength(inputs: Inputs) -> Inputs:
    return inputs.but(**{name: torch.zeros_like(inputs.present[name]) for name in ("b", "w")})


def _writing_nothing(inputs: Inputs) -> Inputs:
    beta, v = inputs.tensors["beta"], inputs.present["v"]
    like = v.new_ones(v.shape[:3], dtype=torch.float32) if beta is None else beta
    return with_tensors(inputs, beta=torch.zeros_like(like))


def _decay_only(inputs: Inputs) -> dict[str, Tensor]:
    """The call without values, its gates added up for each channel."""
    gates = [g.unsqueeze(-1) if g.dim() == 3 else g for g in _gates(inputs).values()]
    found = {"v": torch.zeros_like(inputs.present["v"])}
    if gates:
        shape = inputs.present["k"].shape
        found["gk"] = torch.stack([gate.expand(shape) for gate in gates]).sum(0)
    return found


def _same(*names: str) -> Callable[[Ran], dict[str, Tensor]]:
    def gradients(ran: Ran) -> dict[str, Tensor]:
        return {f"d{name}": ran.gradients[name] for name in names if name in ran.gradients}

    return gradients


def _state_and_query(ran: Ran) -> dict[str, Tensor]:
    return _same("q", "initial_state")(ran)


_WRITES_NOTHING = Identity("with beta = 0", "gla", _writing_nothing, _decay_only, _state_and_query)

IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    "delta_rule": (
        Identity("with beta = 0", "linear_attn", _writing_nothing, _decay_only, _state_and_query),
    ),
    "gated_delta_rule": (
        Identity(
            "without decay",
            "delta_rule",
            _ungated,
            _beta,
            _same("q", "k", "v", "beta", "initial_state"),
        ),
        _WRITES_NOTHING,
    ),
    "kda": (
        Identity(
            "with one decay for all channels",
            "gated_delta_rule",
            _equal_channels("g"),
            lambda inputs: {"g": inputs.present["g"][..., 0].contiguous(), **_beta(inputs)},
            _same("q", "k", "v", "beta", "initial_state"),
        ),
        _WRITES_NOTHING,
    ),
    "gdn2": (
        Identity(
            "with one strength for all",
            "kda",
            _one_strength,
            lambda inputs: {
                "g": inputs.present["g"],
                "beta": inputs.present["b"][..., 0].contiguous(),
            },
            _same("q", "k", "v", "g", "initial_state"),
        ),
        Identity("with b = w = 0", "gla", _no_strength, _decay_only, _state_and_query),
    ),
    "gla": (
        Identity(
            "with one decay for all channels",
            "simple_gla",
            _equal_channels("gk"),
            lambda inputs: {"g": inputs.present["gk"][..., 0].contiguous()},
            _same("q", "k", "v", "initial_state"),
        ),
    ),
    "simple_gla": (
        Identity(
            "without decay",
            "linear_attn",
            _ungated,
            lambda inputs: {},
            _same("q", "k", "v", "initial_state"),
        ),
    ),
}

REDUCE = Law(
    "reduce",
    "an operator in a special case is another operator",
    _check,
    avoids=frozenset(
        {
            *("gv", "beta_v", "gate", "A_log", "dt_bias", "beta_sigmoid", "neg_eigval", "l2norm"),
            *("g_gamma", "gva", "state_v_first", "reverse", "states", "lower_bound"),
        }
    ),
)
