"""Every public operator against the float64 token recurrence, outputs and all gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from op_cases import ALL_OPERATORS, Case, gold_call, make_inputs, public_call
from op_compare import assert_exact, assert_rounded, evaluate, make_weights

from fla_core import ops

STATE = ("initial_state",)
SIZES = {"B": 2, "T": 37, "H": 2, "K": 5, "V": 3}
GVA = {"H": 2, "HV": 6}
PACKED = (0, 3, 17, 0, 1, 20, 0)
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

#: One complete configuration a line, each for a risk of its own.
CASES = {
    # linear attention: tuples, missing members, reversed walks
    "linear plain": Case("chunk_linear_attn", STATE, **SIZES),
    "linear normalised": Case(
        "chunk_linear_attn", ("initial_state", "initial_z"), ("final_state", "normalize"), T=70
    ),
    "linear z without state": Case("fused_chunk_linear_attn", ("initial_z",), ("normalize",)),
    "linear state without z, packed": Case(
        "fused_chunk_linear_attn", STATE, ("final_state", "normalize"), lens=PACKED
    ),
    "linear neither": Case("fused_recurrent_linear_attn", (), ("normalize",), lens=(4, 0, 5)),
    "linear reversed, normalised, packed": Case(
        "fused_recurrent_linear_attn",
        ("initial_state", "initial_z"),
        ("final_state", "normalize", "reverse"),
        lens=PACKED,
    ),
    "linear reversed": Case("fused_recurrent_linear_attn", STATE, ("final_state", "reverse")),
    # simple_gla: two decays, layouts, chunk edges
    "simple_gla both decays": Case(
        "chunk_simple_gla", ("g", "g_gamma", *STATE), T=129, gates="strong"
    ),
    "simple_gla no decay": Case("chunk_simple_gla", STATE, T=65, chunk_size=16),
    "simple_gla resets, packed, v first": Case(
        "chunk_simple_gla",
        ("g", *STATE),
        ("final_state", "state_v_first"),
        lens=PACKED,
        gates="reset",
        strided=True,
    ),
    "simple_gla gamma alone": Case("fused_chunk_simple_gla", ("g_gamma", *STATE), T=40),
    "simple_gla reversed, packed": Case(
        "fused_recurrent_simple_gla",
        ("g", "g_gamma", *STATE),
        ("final_state", "reverse", "state_v_first"),
        lens=PACKED,
        scale=-0.7,
    ),
    "simple_gla parallel": Case("parallel_simple_gla", ("g",), (), T=70),
    "simple_gla parallel, packed": Case("parallel_simple_gla", ("g",), (), lens=PACKED),
    # fixed decays
    "retention": Case("chunk_retention", STATE, T=70, H=4, K=3, V=6),
    "retention fused, packed": Case("fused_chunk_retention", STATE, lens=PACKED, H=3),
    "retention reversed, v first": Case(
        "fused_recurrent_retention", STATE, ("final_state", "reverse", "state_v_first"), lens=PACKED
    ),
    "retention parallel": Case("parallel_retention", (), (), T=33, H=3),
    "lightning": Case("chunk_lightning_attn", STATE, T=70, H=4),
    "lightning reversed": Case(
        "fused_recurrent_lightning_attn", STATE, ("final_state", "reverse"), lens=PACKED, H=3
    ),
    # gla
    "gla": Case("chunk_gla", ("gk", *STATE), T=129, gates="strong"),
    "gla v first, packed": Case(
        "fused_chunk_gla", ("gk", *STATE), ("final_state", "state_v_first"), lens=PACKED
    ),
    "gla both gates, reversed": Case(
        "fused_recurrent_gla",
        ("gk", "gv", *STATE),
        ("final_state", "reverse"),
        lens=PACKED,
        strided=True,
    ),
    "gla value gate": Case("fused_recurrent_gla", ("gv", *STATE), gates="reset"),
    "gla no gate": Case("fused_recurrent_gla", STATE),
    # delta rule
    "delta": Case("chunk_delta_rule", ("beta", *STATE), T=129, chunk_size=32),
    "delta l2norm, packed": Case(
        "fused_chunk_delta_rule", ("beta", *STATE), ("final_state", "l2norm"), lens=PACKED
    ),
    "delta beta absent": Case("fused_recurrent_delta_rule", STATE, scale=2),
    "delta beta of value channels": Case(
        "fused_recurrent_delta_rule", ("beta_v", *STATE), ("final_state", "l2norm"), lens=PACKED
    ),
    "delta chunk, beta of value channels": Case("chunk_delta_rule", ("beta_v", *STATE)),
    # gated delta rule
    "gdn": Case("chunk_gdn", ("g", "beta", *STATE), T=129, gates="strong", **GVA),
    "gdn everything in the kernel": Case(
        "chunk_gated_delta_rule",
        ("g", "beta", "A_log", "dt_bias", *STATE),
        ("final_state", "l2norm", "gate", "beta_sigmoid", "neg_eigval", "state_v_first"),
        lens=PACKED,
        strided=True,
        **GVA,
    ),
    "gdn gate without bias": Case(
        "chunk_gated_delta_rule", ("g", "beta", "A_log"), ("gate", "beta_sigmoid"), T=20
    ),
    "gdn recurrent, three gates": Case(
        "fused_recurrent_gdn", ("g", "gk", "gv", "beta", *STATE), lens=PACKED, **GVA
    ),
    "gdn recurrent, key gate, no beta": Case(
        "fused_recurrent_gated_delta_rule", ("gk", *STATE), T=9, **GVA
    ),
    "gdn recurrent, channel logits": Case(
        "fused_recurrent_gated_delta_rule",
        ("g", "gv", "beta_v", "A_log", "dt_bias", *STATE),
        ("final_state", "gate", "beta_sigmoid", "neg_eigval", "l2norm", "state_v_first"),
        **GVA,
    ),
    "gdn nothing but q, k, v": Case("fused_recurrent_gdn", ()),
    # kda
    "kda": Case("chunk_kda", ("beta", *STATE), T=129, gates="strong", chunk_size=32, **GVA),
    "kda everything in the kernel": Case(
        "chunk_kda",
        ("beta", "A_log", "dt_bias", *STATE),
        ("final_state", "l2norm", "gate", "beta_sigmoid", "neg_eigval", "state_v_first"),
        lens=PACKED,
        strided=True,
        **GVA,
    ),
    "kda bounded gate": Case(
        "chunk_kda",
        ("beta", "A_log", "dt_bias"),
        ("final_state", "gate"),
        lower_bound=-5.0,
        lens=PACKED,
    ),
    "kda bounded gate without rate": Case(
        "fused_recurrent_kda", ("beta", "dt_bias", *STATE), ("gate",), lower_bound=-0.5
    ),
    "kda bounded gate, logits alone": Case("chunk_kda", ("beta",), ("gate",), lower_bound=-1),
    "kda beta of value channels": Case(
        "fused_recurrent_kda",
        ("beta_v", "A_log", *STATE),
        ("final_state", "gate", "beta_sigmoid", "l2norm", "state_v_first"),
        lens=PACKED,
        **GVA,
    ),
    # gdn2
    "gdn2": Case("chunk_gdn2", STATE, T=129, gates="strong", **GVA),
    "gdn2 everything in the kernel": Case(
        "chunk_gdn2",
        ("A_log", "dt_bias", *STATE),
        ("final_state", "l2norm", "gate", "state_v_first"),
        lens=PACKED,
        strided=True,
        **GVA,
    ),
    "gdn2 recurrent, bounded gate": Case(
        "fused_recurrent_gdn2", ("dt_bias", *STATE), ("gate",), lower_bound=-0.5, **GVA
    ),
    # sizes at which loops and reductions have nothing or one thing to do
    "no tokens": Case("chunk_kda", ("beta", *STATE), T=0, **GVA),
    "no tokens, normalised": Case(
        "chunk_linear_attn", ("initial_state", "initial_z"), ("final_state", "normalize"), T=0
    ),
    "no tokens, reversed": Case(
        "fused_recurrent_gla", ("gk", *STATE), ("final_state", "reverse"), T=0
    ),
    "no tokens in any sequence": Case("chunk_gdn", ("g", "beta", *STATE), lens=(0, 0)),
    "no batch": Case("chunk_gla", ("gk", *STATE), B=0),
    "no batch, delta": Case("chunk_kda", ("beta", *STATE), B=0, **GVA),
    "no sequences": Case("chunk_simple_gla", ("g", *STATE), lens=()),
    "no sequences, delta": Case("chunk_delta_rule", ("beta", *STATE), lens=()),
    "no sequences, reversed": Case(
        "fused_recurrent_simple_gla", STATE, ("final_state", "reverse"), lens=()
    ),
    "one token": Case("chunk_simple_gla", ("g", *STATE), T=1),
    "one token, delta": Case("chunk_gdn", ("g", "beta", *STATE), T=1, **GVA),
    "one of everything": Case("chunk_kda", ("beta", *STATE), B=1, T=1, H=1, HV=1, K=1, V=1),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_the_table_calls_every_operator() -> None:
    assert {case.op for case in CASES.values()} == set(ALL_OPERATORS) == set(ops.__all__)


@every_case
def test_float64_equals_the_recurrence(case: Case) -> None:
    inputs = make_inputs(case)
    got, gold = evaluate(public_call, case, inputs), evaluate(gold_call, case, inputs)
    assert_exact(got, gold)


@every_case
def test_gradients_off_gives_the_same_outputs(case: Case) -> None:
    inputs = make_inputs(case)
    want = evaluate(public_call, case, inputs)
    for name, got in public_call(case, inputs).items():
        assert torch.equal(got, want[name]), name
        assert not got.requires_grad


@pytest.mark.parametrize(
    "name",
    [
        "linear reversed, normalised, packed",
        "simple_gla both decays",
        "gla both gates, reversed",
        "delta l2norm, packed",
        "gdn everything in the kernel",
        "kda everything in the kernel",
        "no tokens",
    ],
)
@pytest.mark.parametrize("output", ["o", "final_state"])
def test_the_gradient_of_one_output_alone(name: str, output: str) -> None:
    case = CASES[name]
    inputs = make_inputs(case)
    got = evaluate(public_call, case, inputs, through=[output])
    assert_exact(got, evaluate(gold_call, case, inputs, through=[output]))


def test_the_gradient_of_a_normaliser_alone() -> None:
    case = CASES["linear reversed, normalised, packed"]
    inputs = make_inputs(case)
    got = evaluate(public_call, case, inputs, through=["final_z"])
    assert_exact(got, evaluate(gold_call, case, inputs, through=["final_z"]))
    assert got["dinitial_z"].abs().min() > 0


#: Dtypes of the arguments beside q, k and v.
MIXED = {"g": BF16, "gk": FP16, "beta": BF16, "A_log": FP32, "dt_bias": BF16}
ROUNDED = {
    "linear normalised": {},
    "linear reversed, normalised, packed": {"initial_state": BF16, "initial_z": BF16},
    "simple_gla both decays": {"g": FP32, "g_gamma": FP32},
    "simple_gla resets, packed, v first": {"initial_state": BF16},
    "retention": {},
    "gla": {"gk": BF16},
    "gla both gates, reversed": {},
    "delta": {"beta": BF16},
    "delta beta of value channels": {"initial_state": FP16},
    "gdn": {},
    "gdn everything in the kernel": MIXED,
    "gdn recurrent, three gates": {"initial_state": FP16},
    "kda": {},
    "kda everything in the kernel": MIXED | {"initial_state": BF16},
    "kda bounded gate": {"g": BF16},
    "gdn2": {"b": BF16},
    "gdn2 everything in the kernel": MIXED | {"initial_state": BF16, "w": BF16},
    "no tokens": {"initial_state": BF16},
}


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", ROUNDED)
def test_narrow_dtypes_err_by_rounding_only(name: str, dtype: torch.dtype) -> None:
    case = replace(CASES[name], dtype=dtype, dtypes=ROUNDED[name])
    inputs = make_inputs(case)
    outputs = public_call(case, inputs)
    assert {name: x.dtype for name, x in outputs.items()} == {
        name: dtype if name in ("o", "states") else FP32 for name in outputs
    }
    weights = make_weights(case, outputs)
    got = evaluate(public_call, case, inputs, weights=weights)
    for name, x in inputs.items():
        assert got[f"d{name}"].dtype == x.dtype, name
    assert_rounded(case, inputs, got, weights)


@pytest.mark.parametrize("length", [1e-2, 1e13, 1e18])
def test_vectors_of_any_length_are_normalised(length: float) -> None:
    """As far as their squares are numbers of float32, as the cube of 1e18 is not."""
    case = Case("chunk_delta_rule", ("beta",), ("l2norm",), dtype=FP32)
    inputs = make_inputs(case)
    inputs |= {name: length * torch.nn.functional.normalize(inputs[name], dim=-1) for name in "qk"}
    got = evaluate(public_call, case, inputs)
    wanted = evaluate(gold_call, case, {name: x.double() for name, x in inputs.items()})
    for name, scale in {"o": 1.0, "dq": length, "dk": length}.items():
        x, y = got[name].double() * scale, wanted[name].double() * scale
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [FP32, torch.bfloat16])
def test_vectors_whose_squares_overflow_are_normalised_to_zero(dtype: torch.dtype) -> None:
    case = Case("chunk_delta_rule", ("beta",), ("l2norm",), dtype=dtype)
    inputs = make_inputs(case)
    short, long = (torch.zeros_like(inputs["q"][:, :1]).fill_(x) for x in (8e18, 2e19))
    for row, length in (("q", 5), ("k", 7)):
        inputs[row] = inputs[row].clone()
        inputs[row][:, length] = long[:, 0]
        inputs[row][:, length + 1] = short[:, 0]
    zeros = {name: x.masked_fill(x == long.flatten()[0], 0) for name, x in inputs.items()}
    got, wanted = public_call(case, inputs)["o"], public_call(case, zeros)["o"]
    assert torch.equal(got, wanted)
    assert not got[:, 5].any()
    assert got[:, 6].any()


@pytest.mark.parametrize("lens", [None, (0, 3, 70, 0, 64)], ids=["dense", "packed"])
@pytest.mark.parametrize("flags", [(), ("state_v_first",)], ids=["k first", "v first"])
@pytest.mark.parametrize("chunk_size", [None, 32])
@pytest.mark.parametrize("op", ["chunk_kda", "chunk_gdn2"])
def test_states_before_chunks(
    op: str, lens: tuple[int, ...] | None, flags: tuple[str, ...], chunk_size: int | None
) -> None:
    chunk_size = 64 if op == "chunk_gdn2" and chunk_size else chunk_size
    case = Case(
        op,
        STATE if op == "chunk_gdn2" else ("beta", *STATE),
        ("final_state", "states", *flags),
        T=70,
        lens=lens,
        chunk_size=chunk_size,
        **GVA,
    )
    inputs = make_inputs(case)
    assert_exact(public_call(case, inputs), gold_call(case, inputs))


@pytest.mark.parametrize("dtype", [BF16, FP32, torch.float64])
def test_wide_gates_beside_narrow_activations(dtype: torch.dtype) -> None:
    """A float64 gate neither widens the state nor loses its own gradient's dtype."""
    double = dict.fromkeys(("g", "g_gamma"), torch.float64)
    case = Case("chunk_simple_gla", ("g", "g_gamma", *STATE), dtype=dtype, dtypes=double)
    got = evaluate(public_call, case, make_inputs(case))
    assert got["o"].dtype == dtype
    assert got["final_state"].dtype == (torch.float64 if dtype == torch.float64 else FP32)
    assert got["dg"].dtype == got["dg_gamma"].dtype == torch.float64
    weights = make_weights(case, public_call(case, make_inputs(case)))
    assert_rounded(case, make_inputs(case), got, weights)
