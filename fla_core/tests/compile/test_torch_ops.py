"""The compiled entrance: one graph, the numbers of eager calls, functional torch operators."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import TorchRuntimeError
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad

import fla_core
from fla_core import ops
from fla_core.contracts import CONTRACTS
from fla_core.dispatch.runtime import sandbox
from fla_core.errors import ContractError, UnsupportedError
from fla_core.prepare import Prepared, device_guard
from fla_core.torch_ops import bodies

B, H, K, V = 2, 2, 8, 5
Inputs = tuple[Tensor, ...]


def made(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).requires_grad_()


def plain(length: int) -> Inputs:
    return made(B, length, H, K), made(B, length, H, K, seed=1), made(B, length, H, V)


def log(gate: Tensor) -> Tensor:
    return torch.nn.functional.logsigmoid(gate)


def kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, a: Tensor, h: Tensor) -> Any:
    return ops.chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        A_log=a,
        initial_state=h,
        output_final_state=True,
        state_v_first=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        use_qk_l2norm_in_kernel=True,
    )


def kda_inputs(length: int) -> Inputs:
    q, k, _ = plain(length)
    values, gates = made(B, length, 2 * H, V), made(B, length, 2 * H, K)
    return q, k, values, gates, made(B, length, 2 * H), made(2 * H), made(B, 2 * H, V, K)


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], Inputs]]] = {
    "linear_attn": (
        lambda q, k, v: ops.chunk_linear_attn(q.exp(), k.exp(), v)[0],
        plain,
    ),
    "retention": (lambda q, k, v: ops.chunk_retention(q, k, v)[0], plain),
    "lightning": (lambda q, k, v: ops.chunk_lightning_attn(q, k, v, 1, 4)[0], plain),
    "simple_gla": (
        lambda q, k, v, g: ops.fused_recurrent_simple_gla(q, k, v, log(g), reverse=True)[0],
        lambda n: (*plain(n), made(B, n, H)),
    ),
    "gla": (
        lambda q, k, v, g: ops.chunk_gla(q, k, v, log(g), output_final_state=True),
        lambda n: (*plain(n), made(B, n, H, K)),
    ),
    "delta_rule": (
        lambda q, k, v, b: ops.chunk_delta_rule(
            q, k, v, b.sigmoid(), use_qk_l2norm_in_kernel=True, chunk_size=32
        )[0],
        lambda n: (*plain(n), made(B, n, H)),
    ),
    "gdn": (
        lambda q, k, v, g, b: ops.chunk_gdn(
            q, k, v, log(g), b, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True
        )[0],
        lambda n: (*plain(n), made(B, n, H), made(B, n, H)),
    ),
    "kda": (kda, kda_inputs),
}


def results(function: Callable[..., Any], inputs: Inputs) -> list[Tensor]:
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = sum(o.square().sum() for o in outputs)
    return [*(o.detach() for o in outputs), *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("name", CASES)
def test_one_full_graph_for_every_length(name: str) -> None:
    function, inputs = CASES[name]
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for length in (37, 2, 64):
        args = inputs(length)
        for eager, traced in zip(results(function, args), results(compiled, args), strict=True):
            torch.testing.assert_close(traced, eager, rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1


def test_the_graph_holds_the_operator_of_the_contract() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(kda, fullgraph=True, backend=counter)
    compiled(*kda_inputs(8))
    targets = {str(node.target) for node in counter.graphs[0].graph.nodes}
    assert "fla_core.kda.default" in targets


def test_packed_sequences_compile_and_are_checked_when_they_run() -> None:
    torch._dynamo.reset()
    q, k, v = (x[:1] for x in plain(24))

    def packed(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
        return ops.chunk_retention(q, k, v, cu_seqlens=cu)[0]

    compiled = torch.compile(packed, fullgraph=True, dynamic=True, backend="aot_eager")
    for bounds in ([0, 24], [0, 3, 3, 24], [0, 1, 2, 5, 24]):
        cu = torch.tensor(bounds)
        torch.testing.assert_close(compiled(q, k, v, cu), packed(q, k, v, cu))
    with pytest.raises(ContractError, match=r"boundaries that end at T = 24"):
        compiled(q, k, v, torch.tensor([0, 7, 23]))


def test_a_policy_change_traces_again_and_takes_effect() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function, inputs = CASES["gla"]
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    args = inputs(16)
    compiled(*args)
    with fla_core.use("reference"):
        compiled(*args)
    assert counter.frame_count == 2
    policies = [
        node.args[12]
        for graph in counter.graphs
        for node in graph.graph.nodes
        if str(node.target) == "fla_core.gla.default"
    ]
    assert policies == ["", "|reference"]


def test_an_operator_without_a_rule_is_left_to_the_block_around_the_compiled_call() -> None:
    torch._dynamo.reset()
    q, k, v = plain(8)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ops.chunk_retention(q, k, v, backend="kda=reference")[0]

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    compiled(q, k, v)
    refusal = pytest.raises(TorchRuntimeError, match=r"'auto,-reference', from fla_core.use\(\)")
    with sandbox(), fla_core.use("auto,-reference"), refusal:
        compiled(q, k, v)


def test_inference_and_training_are_separate_graphs_that_agree() -> None:
    torch._dynamo.reset()
    function, inputs = CASES["kda"]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    args = inputs(20)
    training = compiled(*args)
    with torch.no_grad():
        inference = compiled(*args)
    for a, b in zip(training, inference, strict=True):
        torch.testing.assert_close(a, b)
        assert a.requires_grad
        assert not b.requires_grad


@pytest.mark.parametrize("name", CONTRACTS)
def test_opcheck(name: str) -> None:
    torch._dynamo.reset()
    checks = torch.library.opcheck(getattr(torch.ops.fla_core, name).default, arguments(name))
    assert set(checks.values()) == {"SUCCESS"}


def arguments(name: str) -> tuple[Any, ...]:
    """Arguments of the torch operator: contract inputs, then the fixed tail."""
    contract = CONTRACTS[name]
    sizes = {"B": B, "T": 9, "H": H, "HV": H, "K": K, "V": V, "N": B, "1": 1}
    present = [spec for spec in contract.inputs if not spec.optional or spec.name in ("g", "beta")]
    tensors = [
        made(*(sizes[axis] for axis in spec.axes)) if spec in present else None
        for spec in contract.inputs
    ]
    tail = (None, None, contract.public[0][0], 0.5, *(None for _ in contract.options))
    needs = "|".join(spec.name for spec in present)
    return (*tensors, *tail, "final_state", needs, "", None, True, False)


def test_bad_input_is_refused_while_tracing_with_the_usual_text() -> None:
    torch._dynamo.reset()
    function, inputs = CASES["gla"]
    q, k, v, g = inputs(8)
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"gla.chunk_gla: argument 'g' is not valid"):
        compiled(q, k, v, g[..., :3])


def test_backward_is_bound_to_the_implementation_that_ran_forward() -> None:
    args = arguments("gla")
    outputs = torch.ops.fla_core.gla.default(*args)
    grads = [torch.ones_like(outputs[0]), None]
    ids = [f"reference:gla#{variant}" for variant in ("chunk", "recurrent")]
    marks = [torch.empty(0, zlib.crc32(identity.encode())) for identity in ids]
    chunk, token = (
        bodies.backward(CONTRACTS["gla"], (*args, identity, [mark], grads))
        for identity, mark in zip(ids, marks, strict=True)
    )
    for a, b in zip(chunk, token, strict=True):
        assert not torch.equal(a, b)  # rounded differently, so both ran
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    with pytest.raises(LookupError, match=r"acme:gla#chunk"):
        bodies.backward(CONTRACTS["gla"], (*args, "acme:gla#chunk", marks[:1], grads))
    with pytest.raises(UnsupportedError, match="recomputing with another implementation"):
        bodies.backward(CONTRACTS["gla"], (*args, ids[0], marks[1:], grads))


def test_a_changed_environment_between_forward_and_backward_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch._dynamo.reset()
    function, inputs = CASES["gla"]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    args = inputs(8)
    expected = results(function, args)
    outputs = compiled(*args)
    monkeypatch.setenv("FLA_BACKEND", "auto,-reference")
    fla_core.reload_env()
    try:
        gradients = torch.autograd.grad(sum(o.square().sum() for o in outputs), args)
    finally:
        monkeypatch.undo()
        fla_core.reload_env()
    for got, want in zip(gradients, expected[-len(args) :], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_differentiating_twice_is_refused() -> None:
    args = arguments("gla")
    outputs = torch.ops.fla_core.gla.default(*args)
    (first,) = torch.autograd.grad(outputs[0].sum(), args[0], create_graph=True)
    with pytest.raises(Exception, match=r"second order"):
        torch.autograd.grad(first.sum(), args[1])


@pytest.mark.parametrize("mixed", [False, True], ids=["all float32", "q bfloat16 already"])
def test_autocast_means_what_it_means_eagerly(mixed: bool) -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return ops.chunk_retention(q, k, v, output_final_state=True)

    q, k, v = plain(9)
    inputs = (q.detach().bfloat16().requires_grad_() if mixed else q, k, v)
    results = []
    for run in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        o, state = run(*inputs)
        results.append([o, state, *torch.autograd.grad(o.sum() + state.sum(), inputs)])
    assert results[0][0].dtype == torch.bfloat16
    for eager, compiled in zip(*results, strict=True):
        assert compiled.dtype == eager.dtype
        assert torch.equal(compiled, eager)


def _jvp(call: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    return torch.compile(lambda y: torch.func.jvp(call, (y,), (torch.ones_like(y),)))(x)


def _dual_level(call: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    with forward_ad.dual_level():
        return torch.compile(call)(forward_ad.make_dual(x, torch.ones_like(x)))


@pytest.mark.parametrize("derive", [_jvp, _dual_level])
def test_forward_mode_is_refused_rather_than_zero(derive: Callable[..., Any]) -> None:
    q, k, v = (x.detach() for x in plain(9))
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"torch\.func transform|forward-mode"):
        derive(lambda x: ops.chunk_retention(x, k, v)[0], q)


def test_bodies_run_with_the_device_of_the_tensors_current(monkeypatch: pytest.MonkeyPatch) -> None:
    current, seen = list[Prepared](), list[bool]()

    @contextmanager
    def on_device(prepared: Prepared) -> Iterator[None]:
        current.append(prepared)
        yield
        current.pop()

    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        def running(plan: Any, *args: Any) -> Any:
            seen.append(bool(current) and current[-1].plan is plan)
            return run(plan, *args)

        return running

    monkeypatch.setattr(Prepared, "on_device", on_device)
    for name in ("run_forward", "run_backward"):
        monkeypatch.setattr(bodies, name, watched(getattr(bodies, name)))
    traced = torch.compile(lambda q, k, v: ops.chunk_gla(q, k, v, -q.exp())[0], backend="aot_eager")
    traced(*plain(7)).sum().backward()
    assert seen == [True, True]
    assert current == []


def test_the_guard_makes_a_device_current(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        @staticmethod
        def device(where: torch.device) -> Any:
            return nullcontext(where)

    monkeypatch.setattr(torch, "get_device_module", {"cuda": Module}.__getitem__)
    second = torch.device("cuda", 1)
    with device_guard(second) as found:
        assert found == second
    with device_guard(torch.device("cpu")) as found:
        assert found is None
