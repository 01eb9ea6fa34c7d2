"""States in the slots of a pool: what is read and written, what is refused, who serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import fakes
from fla_core import ops
from fla_core.dispatch.runtime import RUNTIME, sandbox
from fla_core.errors import ContractError, ImplementationError, UnsupportedError
from fla_core.plugins.discover import in_memory

N, T, H, K, V = 4, 3, 2, 4, 5
SLOTS = 40
NAMES = ("delta_rule", "gated_delta_rule", "kda", "gdn2")


def operands(name: str, tokens: int = T, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Arguments of a token, by their public names."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> Tensor:
        return torch.rand(N, tokens, H, *shape, generator=generator, dtype=torch.float64).to(dtype)

    given = {"q": draw(K) - 0.5, "k": draw(K) / 2, "v": draw(V) - 0.5}
    if name != "delta_rule":
        given["g"] = -draw(*(() if name == "gated_delta_rule" else (K,)))
    return given | ({"b": draw(K), "w": draw(V)} if name == "gdn2" else {"beta": draw()})


def operator(name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    found: Callable[..., tuple[Tensor, Tensor | None]] = getattr(ops, f"fused_recurrent_{name}")
    return found


def new_pool(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(SLOTS, H, K, V, generator=torch.Generator().manual_seed(3)).to(dtype)


def bits(pool: Tensor) -> Tensor:
    return pool.contiguous().view(torch.uint8)


def changed(pool: Tensor, before: Tensor) -> list[int]:
    """Slots whose bytes are others now."""
    other = (bits(pool) != bits(before)).flatten(1).any(1)
    return other.nonzero().flatten().tolist()  # type: ignore[no-any-return]


def alone(name: str, given: dict[str, Tensor], states: Tensor) -> tuple[Tensor, Tensor]:
    """The ordinary call."""
    o, state = operator(name)(**given, initial_state=states, output_final_state=True)
    assert state is not None
    return o, state


@pytest.mark.parametrize("name", NAMES)
def test_states_are_read_from_their_slots_and_left_there(name: str) -> None:
    given, pool = operands(name), new_pool()
    pool[[0, 1, 39]] = float("nan")
    before, indices = pool.clone(), torch.tensor([5, 30, -1, 2])
    live = [0, 1, 3]
    o, state = alone(name, {n: x[live] for n, x in given.items()}, before[[5, 30, 2]])
    found, same = operator(name)(
        **given,
        initial_state=pool,
        ssm_state_indices=indices,
        inplace_final_state=True,
        output_final_state=True,
    )
    assert same is pool
    assert changed(pool, before) == [2, 5, 30]
    torch.testing.assert_close(pool[[5, 30, 2]], state, rtol=0, atol=0)
    torch.testing.assert_close(found[live], o, rtol=0, atol=0)
    assert not found[2].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_pool_is_only_read_unless_asked(name: str) -> None:
    given, pool = operands(name), new_pool()
    before, indices = pool.clone(), torch.tensor([5, 30, -1, 5], dtype=torch.int32)
    o, state = operator(name)(
        **given, initial_state=pool, ssm_state_indices=indices, output_final_state=True
    )
    assert changed(pool, before) == []
    assert state is not None
    right, last = alone(name, given, before[[5, 30, 0, 5]])
    live = [0, 1, 3]
    torch.testing.assert_close(o[live], right[live], rtol=0, atol=1e-14)
    torch.testing.assert_close(state[live], last[live], rtol=0, atol=1e-14)
    assert not o[2].any()
    assert not state[2].any()
    _, nothing = operator(name)(**given, initial_state=pool, ssm_state_indices=indices)
    assert nothing is None


@pytest.mark.parametrize("name", NAMES)
def test_every_token_leaves_its_state_and_accepted_ones_say_where_to_go_on(name: str) -> None:
    given, pool = operands(name), new_pool()
    table = torch.randperm(SLOTS)[: N * T].view(N, T)
    table[1, 2], table[3] = -1, -1
    before = pool.clone()
    o, _ = operator(name)(
        **given, initial_state=pool, ssm_state_indices=table, inplace_final_state=True
    )
    right, _ = alone(name, given, before[table[:, 0].clamp(min=0)])
    torch.testing.assert_close(o[:3], right[:3], rtol=0, atol=1e-14)
    assert not o[3].any()
    assert changed(pool, before) == sorted(table[table >= 0].tolist())
    for t in range(T):
        part = {n: x[:, : t + 1] for n, x in given.items()}
        _, state = alone(name, part, before[table[:, 0].clamp(min=0)])
        kept = [n for n in range(3) if table[n, t] >= 0]
        torch.testing.assert_close(pool[table[kept, t]], state[kept], rtol=0, atol=1e-14)
    # Of the first sequence two tokens were accepted, of the others one.
    accepted = torch.tensor([2, 1, 1, 0])
    left = pool.clone()
    found, _ = operator(name)(
        **given,
        initial_state=pool,
        ssm_state_indices=table,
        num_accepted_tokens=accepted,
        inplace_final_state=True,
    )
    start = left[[int(table[0, 1]), int(table[1, 0]), int(table[2, 0]), 0]]
    torch.testing.assert_close(found[:3], alone(name, given, start)[0][:3], rtol=0, atol=1e-14)


def test_layouts_dtypes_and_distances_of_slots() -> None:
    given, states = operands("kda"), new_pool()
    indices = torch.tensor([5, 30, 6, 2])
    o, state = alone("kda", given, states[indices])
    room = torch.zeros(SLOTS, H * K * V + 3, dtype=torch.float64)
    pool = room[:, : H * K * V].view(SLOTS, H, V, K)
    pool.copy_(states.mT)
    found, _ = ops.fused_recurrent_kda(
        **given,
        initial_state=pool,
        ssm_state_indices=indices,
        inplace_final_state=True,
        state_v_first=True,
    )
    torch.testing.assert_close(found, o, rtol=0, atol=1e-14)
    torch.testing.assert_close(pool[indices].mT, state, rtol=0, atol=1e-14)
    assert not room[:, H * K * V :].any()
    _, read = ops.fused_recurrent_kda(
        **given,
        initial_state=states.mT.contiguous(),
        ssm_state_indices=indices,
        output_final_state=True,
        state_v_first=True,
    )
    torch.testing.assert_close(read, state.mT, rtol=0, atol=1e-14)
    narrow = states.bfloat16()
    ops.fused_recurrent_kda(
        **given, initial_state=narrow, ssm_state_indices=indices, inplace_final_state=True
    )
    _, state = alone("kda", given, states.bfloat16()[indices].double())
    torch.testing.assert_close(narrow[indices], state.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("each", [False, True])
def test_packed_sequences_and_those_without_tokens(each: bool) -> None:
    given = {n: x[:1] for n, x in operands("gated_delta_rule", 9).items()}
    bounds = torch.tensor([0, 4, 4, 7, 9])
    pool = new_pool()
    before = pool.clone()
    table = torch.randperm(SLOTS)[:20].view(4, 5)
    table[2] = -1
    indices = table if each else table[:, 0]
    o, _ = ops.fused_recurrent_gated_delta_rule(
        **given,
        initial_state=pool,
        ssm_state_indices=indices,
        cu_seqlens=bounds,
        inplace_final_state=True,
    )
    right, state = ops.fused_recurrent_gated_delta_rule(
        **given,
        initial_state=before[table[:, 0].clamp(min=0)],
        cu_seqlens=bounds,
        output_final_state=True,
    )
    assert state is not None
    live = [0, 1, 2, 3, 7, 8]
    torch.testing.assert_close(o[:, live], right[:, live], rtol=0, atol=1e-14)
    assert not o[:, 4:7].any()
    ends = table[[0, 3], [3, 1]] if each else indices[[0, 3]]
    torch.testing.assert_close(pool[ends], state[[0, 3]], rtol=0, atol=1e-14)
    written = [*table[0, :4], *table[3, :2]] if each else [indices[0], indices[3]]
    assert changed(pool, before) == sorted(map(int, written))


@pytest.mark.parametrize("tokens", [0, T])
def test_nobody_to_serve_and_nothing_to_do(tokens: int) -> None:
    given, pool = operands("kda", tokens), new_pool()
    before = pool.clone()
    for indices in (torch.full((N,), -1), torch.arange(N)):
        if tokens and indices[0] >= 0:
            continue
        o, state = ops.fused_recurrent_kda(
            **given, initial_state=pool, ssm_state_indices=indices, output_final_state=True
        )
        ops.fused_recurrent_kda(
            **given, initial_state=pool, ssm_state_indices=indices, inplace_final_state=True
        )
        assert changed(pool, before) == []
        assert not o.any()
        assert state is not None
        wanted = pool[:N] if indices[0] >= 0 else torch.zeros_like(pool[:N])
        assert torch.equal(state, wanted)


def rows(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


GOOD = {"ssm_state_indices": rows(1, 2, 3, 4), "inplace_final_state": True}
TABLE = torch.arange(N * T).view(N, T)
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "twice": (
        {"ssm_state_indices": rows(3, 1, 3, 0)},
        "ssm_state_indices",
        "ssm_state_indices[0] = 3 and ssm_state_indices[2] = 3",
    ),
    "twice in a row": ({"ssm_state_indices": TABLE // 2}, "ssm_state_indices", "[0, 1] = 0"),
    "beyond": ({"ssm_state_indices": rows(0, 1, SLOTS, 2)}, "ssm_state_indices", "[2] = 40"),
    "below": ({"ssm_state_indices": rows(0, -2, 1, 2)}, "ssm_state_indices", "[1] = -2"),
    "absent": ({"ssm_state_indices": None}, "ssm_state_indices", "None"),
    "dtype": ({"ssm_state_indices": rows(0, 1, 2, 3).float()}, "ssm_state_indices", "float32"),
    "length": ({"ssm_state_indices": rows(0, 1, 2)}, "ssm_state_indices", "[3]"),
    "rank": ({"ssm_state_indices": TABLE[None]}, "ssm_state_indices", "[1, 4, 3]"),
    "columns": ({"ssm_state_indices": TABLE[:, :2]}, "ssm_state_indices", "[4, 2]"),
    "no columns": (
        {"ssm_state_indices": TABLE[:, :0], "inplace_final_state": False},
        "ssm_state_indices",
        "[4, 0]",
    ),
    "layout": ({"ssm_state_indices": rows(1, 2, 3, 4).to_sparse()}, "ssm_state_indices", "sparse"),
    "device": ({"ssm_state_indices": TABLE.to("meta")}, "ssm_state_indices", "on meta"),
    "accepted alone": ({"num_accepted_tokens": rows(1, 1, 1, 1)}, "num_accepted_tokens", "[4]"),
    "accepted none": (
        {"ssm_state_indices": TABLE, "num_accepted_tokens": rows(1, 1, 0, 1)},
        "num_accepted_tokens",
        "num_accepted_tokens[2] = 0",
    ),
    "accepted many": (
        {"ssm_state_indices": TABLE, "num_accepted_tokens": rows(1, 4, 1, 1)},
        "num_accepted_tokens",
        "num_accepted_tokens[1] = 4",
    ),
    "accepted length": (
        {"ssm_state_indices": TABLE, "num_accepted_tokens": rows(1, 1)},
        "num_accepted_tokens",
        "[2]",
    ),
    "no pool": ({"initial_state": None}, "initial_state", "None"),
    "pool's shape": ({"initial_state": new_pool().mT}, "initial_state", "[40, 2, 5, 4]"),
    "pool's dtype": ({"initial_state": new_pool().long()}, "initial_state", "int64"),
    "pool of 8 bits": (
        {"initial_state": new_pool().to(torch.float8_e5m2)},
        "initial_state",
        "float8_e5m2",
    ),
    "pool inside out": (
        {"initial_state": new_pool().mT.contiguous().mT},
        "initial_state",
        "strides",
    ),
    "pool of one": (
        {"initial_state": new_pool()[:1].expand(SLOTS, H, K, V)},
        "initial_state",
        "strides [0",
    ),
    "switch": ({"inplace_final_state": "yes"}, "inplace_final_state", "'yes'"),
    "gradients": ({"initial_state": new_pool().requires_grad_()}, "initial_state", "gradients"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_named_before_anything_is_written(what: str) -> None:
    changes, argument, got = BAD[what]
    pool = new_pool()
    given = {**operands("kda"), "initial_state": pool, **GOOD, **changes}
    with pytest.raises(ContractError) as caught:
        ops.fused_recurrent_kda(**given)  # type: ignore[arg-type]
    assert caught.value.argument == argument
    assert got in caught.value.got
    assert changed(pool, new_pool()) == []


def test_what_was_checked_of_a_signature_is_checked_of_another_kind_of_tensor() -> None:
    given, pool, good = operands("kda"), new_pool(), GOOD["ssm_state_indices"]
    assert isinstance(good, Tensor)

    def call(pool: Tensor, indices: Tensor, accepted: Tensor | None = None) -> None:
        ops.fused_recurrent_kda(
            **given,
            initial_state=pool,
            ssm_state_indices=indices,
            num_accepted_tokens=accepted,
        )

    call(pool, good)
    call(pool, TABLE, rows(1, 1, 1, 1))
    with pytest.raises(ContractError, match="sparse"):
        call(pool, good.to_sparse())
    with pytest.raises(ContractError, match="sparse"):
        call(pool, TABLE, rows(1, 1, 1, 1).to_sparse())
    fake = FakeTensorMode(allow_non_fake_inputs=True).from_tensor
    for pair in ((fake(pool), good), (pool, fake(good))):
        with pytest.raises(UnsupportedError, match="without data"):
            call(*pair)


@pytest.mark.parametrize("name", ["initial_state", "ssm_state_indices", "v"])
def test_a_lazy_minus_is_refused_in_the_first_call_of_a_signature(name: str) -> None:
    given = {**operands("kda"), "initial_state": new_pool(), **GOOD}
    given[name] = torch._neg_view(given[name])  # type: ignore[arg-type]
    RUNTIME.forget_plans()
    with pytest.raises(ContractError, match="resolve_neg") as caught:
        ops.fused_recurrent_kda(**given)  # type: ignore[arg-type]
    assert caught.value.argument == name


def test_no_slot_of_none_can_be_named() -> None:
    given, pool = operands("kda"), new_pool()[:0]
    o, _ = ops.fused_recurrent_kda(
        **given, initial_state=pool, ssm_state_indices=rows(-1, -1, -1, -1)
    )
    assert not o.any()
    with pytest.raises(ContractError) as caught:
        ops.fused_recurrent_kda(**given, initial_state=pool, ssm_state_indices=rows(-1, 0, -1, -1))
    assert "no slots" in caught.value.expected


@pytest.mark.parametrize("each", [False, True])
def test_a_pool_made_in_inference_mode_is_written_outside_of_it_too(each: bool) -> None:
    given, right = operands("kda"), new_pool()
    with torch.inference_mode():
        pool = new_pool()
    own = {"ssm_state_indices": TABLE if each else TABLE[:, 0], "inplace_final_state": True}
    found, _ = ops.fused_recurrent_kda(**given, initial_state=pool, **own)  # type: ignore[arg-type]
    o, _ = ops.fused_recurrent_kda(**given, initial_state=right, **own)  # type: ignore[arg-type]
    assert torch.equal(found, o)
    assert torch.equal(pool, right)


def test_what_may_be_named_twice() -> None:
    """A slot that is only read, and no slot."""
    given, pool = operands("kda"), new_pool()
    ops.fused_recurrent_kda(**given, initial_state=pool, ssm_state_indices=rows(1, 1, 1, 1))
    table = torch.full((N, T), -1)
    table[0] = rows(0, 1, 2)
    ops.fused_recurrent_kda(
        **given,
        initial_state=pool,
        ssm_state_indices=table,
        num_accepted_tokens=rows(3, 0, 9, -1),
        inplace_final_state=True,
    )


def test_gradients_may_be_switched_off() -> None:
    given = {n: x.requires_grad_() for n, x in operands("kda").items()}
    with pytest.raises(ContractError, match="requires gradients"):
        ops.fused_recurrent_kda(**given, initial_state=new_pool(), **GOOD)
    with torch.no_grad():
        ops.fused_recurrent_kda(**given, initial_state=new_pool(), **GOOD)
    with torch.inference_mode():
        ops.fused_recurrent_kda(**given, initial_state=new_pool(), **GOOD)


def test_a_compiled_function_breaks_its_graph_there() -> None:
    given, pool, eager = operands("delta_rule"), new_pool(), new_pool()

    def step(x: Tensor) -> Tensor:
        o, _ = ops.fused_recurrent_delta_rule(**{**given, "v": x + 1}, initial_state=pool, **GOOD)
        return o * 2

    found = torch.compile(step, backend="eager")(given["v"])
    o, _ = ops.fused_recurrent_delta_rule(
        **{**given, "v": given["v"] + 1}, initial_state=eager, **GOOD
    )
    assert torch.equal(found, o * 2)
    assert torch.equal(pool, eager)


def test_tensors_without_data_are_refused() -> None:
    given = {n: x.to("meta") for n, x in operands("kda").items()}
    with pytest.raises(UnsupportedError, match="without data"):
        ops.fused_recurrent_kda(
            **given,
            initial_state=new_pool().to("meta"),
            ssm_state_indices=GOOD["ssm_state_indices"].to("meta"),  # type: ignore[attr-defined]
        )


def served(pooled: Callable[..., Any]) -> Any:
    """A plugin for float32 whose one implementation knows pools."""
    row = fakes.implementation(
        "kda", domain=fakes.domain("l2norm", "gva", "state_v_first"), pooled=pooled
    )
    return sandbox(in_memory("acme", fakes.module("acme", row, targets=("cpu",))))


def test_a_plugin_gets_the_slots_as_they_are() -> None:
    seen: list[Any] = []

    def pooled(call: Any, slots: Any) -> Any:
        seen.append((call, slots))
        slots.pool.view(-1).numpy()[0] = 7.0  # as a kernel would: torch does not see it
        return (torch.ones_like(call.v),)

    pool = new_pool(torch.float32)
    version, given = pool._version, operands("kda", dtype=torch.float32)
    indices, accepted = TABLE, rows(1, 2, 1, 1)
    with served(pooled):
        for _ in range(2):
            o, _ = ops.fused_recurrent_kda(
                **given,
                initial_state=pool,
                ssm_state_indices=indices,
                num_accepted_tokens=accepted,
                inplace_final_state=True,
                backend="acme",
            )
    (call, slots), _ = seen
    assert torch.equal(o, torch.ones_like(given["v"]))
    assert (slots.pool is pool, slots.indices is indices, slots.accepted is accepted) == (True,) * 3
    assert (slots.inplace, slots.v_first, slots.each, slots.span) == (True, False, True, T)
    assert call.initial_state is None
    assert not {"initial_state", "final_state", "state_v_first"} & call.features
    assert pool._version == version + 2, "autograd must hear of what kernels write"


class Elsewhere(Tensor):
    """A tensor that says it is not on the host, and counts how often it is read there."""

    is_cpu = False  # type: ignore[assignment]
    read = 0

    def tolist(self) -> Any:
        Elsewhere.read += 1
        return super().tolist()


@pytest.mark.parametrize("backend", ["acme", "reference"])
def test_numbers_that_lie_apart_are_copied_for_kernels_and_read_once(backend: str) -> None:
    seen: list[Any] = []

    def pooled(call: Any, slots: Any) -> Any:
        seen.append(slots)
        return (torch.ones_like(call.v),)

    given, pool = operands("kda", dtype=torch.float32), new_pool(torch.float32)
    numbers = torch.stack([TABLE, TABLE + 20], -1).as_subclass(Elsewhere)[..., 0]
    accepted = torch.tensor([[1, 9]] * N).as_subclass(Elsewhere)[:, 0]
    assert not numbers.is_contiguous()
    assert not accepted.is_contiguous()
    Elsewhere.read = 0
    with served(pooled):
        for _ in range(3):
            ops.fused_recurrent_kda(
                **given,
                initial_state=pool,
                ssm_state_indices=numbers,
                num_accepted_tokens=accepted,
                inplace_final_state=True,
                backend=backend,
            )
    assert Elsewhere.read == 2, "once for each tensor, not for each call"
    assert len(seen) == (3 if backend == "acme" else 0)
    for slots in seen:
        assert slots.indices.is_contiguous()
        assert slots.accepted.is_contiguous()
        assert torch.equal(slots.indices, TABLE)


def test_what_a_plugin_returns_is_checked() -> None:
    given, pool = operands("kda", dtype=torch.float32), new_pool(torch.float32)

    def short(call: Any, slots: Any) -> Any:
        return (call.v[:, :1].clone(),)

    def aliased(call: Any, slots: Any) -> Any:
        return (slots.pool.view(-1)[: call.v.numel()].view_as(call.v),)

    def alone(call: Any, slots: Any) -> Any:
        return call.v.clone()

    faulty = ((short, "wrong shape"), (aliased, "shares memory"), (alone, "did not return"))
    for pooled, problem in faulty:
        with served(pooled), pytest.raises(ImplementationError, match=problem):
            ops.fused_recurrent_kda(**given, initial_state=pool, **GOOD, backend="acme")


def test_without_one_core_copies_states_in_and_out() -> None:
    calls: list[Any] = []

    def forward(call: Any, save: bool) -> Any:
        calls.append(call)
        return (torch.zeros_like(call.v), call.initial_state + 1), ()

    row = fakes.implementation("kda", forward=forward)
    given, pool = operands("kda", dtype=torch.float32), new_pool(torch.float32)
    before = pool.clone()
    with sandbox(in_memory("acme", fakes.module("acme", row, targets=("cpu",)))):
        ops.fused_recurrent_kda(
            **given,
            initial_state=pool,
            ssm_state_indices=rows(9, -1, 0, 4),
            inplace_final_state=True,
            backend="acme",
        )
    (call,) = calls
    assert call.q.shape[0] == 3
    assert changed(pool, before) == [0, 4, 9]
    assert torch.equal(pool[[9, 0, 4]], before[[9, 0, 4]] + 1)


def test_copies_are_no_part_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    given, pool = operands("kda"), new_pool()
    ops.fused_recurrent_kda(**given, initial_state=pool, **GOOD)
    left = pool.clone()
    monkeypatch.setattr("fla_core.gathered.capturing", lambda tensor: True)
    with pytest.raises(UnsupportedError, match="while a CUDA graph is captured"):
        ops.fused_recurrent_kda(**given, initial_state=pool, **GOOD)
    assert changed(pool, left) == []
