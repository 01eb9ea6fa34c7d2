"""What only an accelerator shows: devices, capture, host copies. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from fla_core import explain, ops
from fla_core.call import Call
from fla_core.cli.calls import measure, problem
from fla_core.contracts import CONTRACTS
from fla_core.errors import ContractError, UnsupportedError
from fla_core.reference.oracle import oracle

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device"),
    pytest.mark.filterwarnings("ignore::fla_core.errors.SelectionWarning"),
]


def inputs(device: str = "cuda", dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    k = torch.nn.functional.normalize(made(1, 70, 2, 16), dim=-1)
    g = torch.nn.functional.logsigmoid(made(1, 70, 2, 16))
    return {
        "q": made(1, 70, 2, 16),
        "k": k,
        "v": made(1, 70, 2, 8),
        "g": g,
        "beta": made(1, 70, 2).sigmoid(),
    }


def test_equals_the_oracle_on_the_device() -> None:
    given = inputs()
    o, state = ops.chunk_kda(**given, output_final_state=True)
    assert o.device.type == "cuda"
    tensors = {spec.name: None for spec in CONTRACTS["kda"].inputs}
    tensors.update({name: x.double().cpu() for name, x in given.items()})
    gold = oracle(Call(CONTRACTS["kda"], "chunk", tensors, 0.25, frozenset({"final_state"})))
    for got, want in ((o, gold["o"]), (state, gold["final_state"])):
        torch.testing.assert_close(got.double().cpu(), want, rtol=1e-4, atol=1e-4)


def gradient_errors(made: problem.Problem) -> dict[str, float]:
    """Errors of outputs and gradients, in units of what rounding the inputs does.

    Gradients of one number a head are one block: a root mean square of one means nothing, and two
    perturbations may tell a tenth of what 32 do.
    """
    right = measure.gold(made, perturbations=8)
    outputs = made.run(None)
    answers = {**outputs, **measure.gradients(made, outputs, right.cotangents)}
    single = {s.name for s in made.contract.inputs if measure.BLOCK_AXES.issuperset(s.axes)}
    errors = {}
    for name, answer in answers.items():
        if name.removeprefix("d ") in single:
            away = answer.detach().cpu().double() - right.values[name]
            errors[name] = float(away.norm() / right.units[name].norm())
        else:
            errors[name] = measure.error(made, name, answer, right)
    return errors


@pytest.mark.parametrize("bounds", [None, (0, 17, 17, 80)], ids=["dense", "packed"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("operator", ["chunk_gated_delta_rule", "chunk_kda"])
def test_gradients_of_gates_are_those_of_the_recurrence(
    operator: str, dtype: torch.dtype, bounds: tuple[int, ...] | None
) -> None:
    sizes = {"B": 1, "T": 80, "H": 2, "HV": 2, "K": 64, "V": 64, "N": 3 if bounds else 1}
    for flags, more in (
        (set(), ()),
        ({"gate", "beta_sigmoid", "l2norm"}, ("A_log", "dt_bias")),
    ):
        made = problem.make(
            operator,
            sizes,
            dtype,
            torch.device("cuda"),
            optional=("g", "beta", "initial_state", *more),
            flags=frozenset({"final_state", *flags}),
            bounds=bounds,
            grad=True,
        )
        errors, most = gradient_errors(made), measure.bound(made)
        assert {f"d {name}" for name in made.present} <= set(errors)
        assert {name: error for name, error in errors.items() if not error <= most} == {}


def test_a_warmed_call_can_be_captured_and_replayed() -> None:
    given = inputs()
    with torch.no_grad():
        expected, _ = ops.chunk_kda(**given)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            ops.chunk_kda(**given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured, _ = ops.chunk_kda(**given)
        captured.fill_(float("nan"))
        graph.replay()
    torch.testing.assert_close(captured, expected)


def test_capturing_a_call_that_never_ran_is_a_clear_error() -> None:
    given = inputs(dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    with (
        torch.no_grad(),
        pytest.raises(UnsupportedError, match="before it ran once"),
        torch.cuda.graph(graph),
    ):
        ops.chunk_gla(given["q"], given["k"], given["v"], given["g"])
    torch.cuda.synchronize()
    with torch.no_grad():
        ops.chunk_gla(given["q"], given["k"], given["v"], given["g"])


def test_boundaries_on_the_device_are_checked_by_value() -> None:
    given = inputs()
    good = torch.tensor([0, 13, 13, 70], device="cuda")
    o, _ = ops.chunk_kda(**given, cu_seqlens=good)
    host, _ = ops.chunk_kda(**given, cu_seqlens=good, cu_seqlens_cpu=good.cpu())
    torch.testing.assert_close(o, host, rtol=0, atol=0)
    with pytest.raises(ContractError, match="boundaries that never fall"):
        ops.chunk_kda(**given, cu_seqlens=torch.tensor([0, 30, 20, 70], device="cuda"))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_boundaries_that_the_host_knows_are_not_waited_for(dtype: torch.dtype) -> None:
    sizes = {"T": 70, "H": 2, "HV": 2, "K": 16, "V": 8, "N": 3}
    decision = explain("chunk_kda", device="cuda", dtype="fp32", features=["varlen"], **sizes)
    if decision.chosen is None or decision.chosen.startswith("reference:"):
        pytest.skip("no kernels; the reference waits")
    given = inputs()
    for bounds in ([0, 13, 13, 70], [0, 40, 70, 70]):
        # The second tensor is new, and so is its table; compilers may wait in the first call.
        host = torch.tensor(bounds, dtype=dtype)
        boundaries = host.cuda()
        torch.cuda.synchronize()
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error" if bounds[1] == 40 else before)
        try:
            o, _ = ops.chunk_kda(**given, cu_seqlens=boundaries, cu_seqlens_cpu=host)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    alone, _ = ops.chunk_kda(**{name: x[:, :40] for name, x in given.items()})
    torch.testing.assert_close(o[:, :40], alone, rtol=1e-4, atol=1e-4)


def test_tensors_of_different_devices_are_refused() -> None:
    given = inputs()
    with pytest.raises(ContractError, match="the device of q"):
        ops.chunk_kda(**{**given, "beta": given["beta"].cpu()})


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device only")
def test_the_device_of_the_tensors_is_current_while_kernels_run() -> None:
    first, second = ops.chunk_kda(**inputs("cuda:0"))[0], ops.chunk_kda(**inputs("cuda:1"))[0]
    assert torch.cuda.current_device() == 0
    assert second.device.index == 1
    torch.testing.assert_close(first.cpu(), second.cpu())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device only")
def test_a_traced_call_runs_on_the_device_of_its_tensors() -> None:
    traced = torch.compile(lambda **given: ops.chunk_kda(**given)[0], backend="aot_eager")
    found = []
    for device in ("cuda:0", "cuda:1"):
        given = {name: x.requires_grad_() for name, x in inputs(device).items()}
        o = traced(**given)
        found.append([o, *torch.autograd.grad(o.float().square().sum(), list(given.values()))])
    for first, second in zip(*found, strict=True):
        assert second.device.index == 1
        torch.testing.assert_close(first.cpu(), second.cpu())


def test_gradients_flow_on_the_device_under_autocast() -> None:
    given = {name: x.requires_grad_() for name, x in inputs().items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        o, _ = ops.chunk_kda(**given)
    assert o.dtype == torch.bfloat16
    o.float().square().sum().backward()
    assert all(x.grad is not None and x.grad.dtype == x.dtype for x in given.values())
