"""What a call leaves behind: nothing. Inputs stay as they were, memory is given back."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from op_cases import Case, make_inputs, public_call
from op_compare import evaluate
from torch import Tensor

from fla_core.dispatch import use
from fla_core.errors import FlaError

STATE = ("initial_state",)
PACKED = (3, 0, 9)
CASES = {
    "normalised": Case(
        "chunk_linear_attn", ("initial_state", "initial_z"), ("final_state", "normalize")
    ),
    "simple_gla": Case(
        "fused_recurrent_simple_gla",
        ("g", "g_gamma", *STATE),
        ("final_state", "reverse", "state_v_first"),
    ),
    "gla": Case("chunk_gla", ("gk", *STATE)),
    "delta": Case("chunk_delta_rule", ("beta", *STATE), ("final_state", "l2norm")),
    "gdn": Case(
        "chunk_gdn",
        ("g", "beta", "A_log", "dt_bias", *STATE),
        ("final_state", "gate", "beta_sigmoid", "l2norm"),
        HV=4,
    ),
    "kda": Case("fused_recurrent_kda", ("beta_v", "A_log", *STATE), ("final_state", "gate"), HV=4),
}
every_case = pytest.mark.parametrize(
    "case",
    [replace(case, lens=lens) for case in CASES.values() for lens in (None, PACKED)],
    ids=[f"{name}, {kind}" for name in CASES for kind in ("dense", "packed")],
)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only reference counts free anything, so that a cycle shows."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def train(case: Case, inputs: dict[str, Tensor], cu: Tensor | None) -> None:
    given = {n: x.requires_grad_() for n, x in inputs.items()}
    more = {} if cu is None else {"cu_seqlens": cu}
    outputs = public_call(case, given, **more)
    sum(x.square().sum() for x in outputs.values()).backward()  # type: ignore[union-attr]


def boundaries(case: Case) -> Tensor | None:
    return None if case.bounds is None else torch.tensor(case.bounds)


@every_case
def test_inputs_are_left_as_they_were(case: Case) -> None:
    case = replace(case, dtype=torch.bfloat16)
    inputs, cu = make_inputs(case), boundaries(case)
    tensors = [*inputs.values(), *([] if cu is None else [cu])]
    before = [(x.detach().clone(), x._version, x.stride()) for x in tensors]
    train(case, inputs, cu)
    for x, (values, version, stride) in zip(tensors, before, strict=True):
        assert torch.equal(x, values)
        assert (x._version, x.stride()) == (version, stride)


@every_case
@pytest.mark.usefixtures("no_collector")
def test_no_tensor_is_kept(case: Case) -> None:
    inputs, cu = make_inputs(case), boundaries(case)
    train(case, inputs, cu)
    inputs = {n: x.detach() for n, x in make_inputs(case).items()}
    given = {n: x.requires_grad_() for n, x in inputs.items()}
    outputs = public_call(case, given, **({} if cu is None else {"cu_seqlens": cu}))
    sum(x.square().sum() for x in outputs.values()).backward()  # type: ignore[union-attr]
    watched = [weakref.ref(x) for x in (*inputs.values(), *given.values(), *outputs.values())]
    watched += [] if cu is None else [weakref.ref(cu)]
    del inputs, given, outputs, cu
    assert [ref for ref in watched if ref() is not None] == []


@every_case
@pytest.mark.usefixtures("no_collector")
def test_hundreds_of_fresh_tensors_are_given_back(case: Case) -> None:
    def live() -> int:
        return sum(issubclass(type(x), Tensor) for x in gc.get_objects())

    for _ in range(3):
        train(case, make_inputs(case), boundaries(case))
    before = live()
    for _ in range(20):
        train(case, make_inputs(case), boundaries(case))
    assert live() == before


@every_case
def test_outputs_own_their_memory(case: Case) -> None:
    """Also where there is nothing to compute and the state passes through."""
    for tokens in (case, replace(case, T=0, lens=None if case.lens is None else (0, 0))):
        inputs = make_inputs(tokens)
        want = {n: x.clone() for n, x in inputs.items()}
        for output in public_call(tokens, inputs).values():
            output.fill_(7.0)
        assert all(torch.equal(inputs[n], want[n]) for n in want)


SINGLE = [
    Case("chunk_linear_attn", STATE, ("final_state", "normalize"), B=1, T=4, H=1, K=1, V=1),
    Case("chunk_simple_gla", ("g", *STATE), ("final_state", "state_v_first"), T=4, K=1),
    Case("fused_recurrent_gla", ("gk", *STATE), T=1),
    Case("chunk_kda", ("beta", *STATE), T=1),
]


@pytest.mark.parametrize("case", [*CASES.values(), *SINGLE], ids=lambda case: case.op)
def test_outputs_may_be_changed_in_place_before_backward(case: Case) -> None:
    inputs = make_inputs(case)
    want = evaluate(lambda c, x: {n: 3 * o for n, o in public_call(c, x).items()}, case, inputs)
    got = evaluate(lambda c, x: {n: o.mul_(3) for n, o in public_call(c, x).items()}, case, inputs)
    assert want.keys() == got.keys()
    assert all(torch.equal(got[n], want[n]) for n in want)


def in_threads(*jobs: object) -> list[BaseException | None]:
    """Run functions at the same time and return what each raised."""
    barrier, raised = threading.Barrier(len(jobs)), [None] * len(jobs)

    def run(index: int) -> None:
        try:
            barrier.wait()
            jobs[index]()  # type: ignore[operator]
        except BaseException as error:
            raised[index] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised  # type: ignore[return-value]


def test_threads_have_policies_of_their_own() -> None:
    case = CASES["gla"]
    inputs = make_inputs(case)
    together = threading.Barrier(3, timeout=60)
    found = {}

    def job(policy: str, name: str) -> None:
        with use(policy):
            together.wait()  # everybody is inside a policy of their own
            try:
                public_call(case, inputs)
                found[name] = "served"
            except FlaError as error:
                found[name] = "refused" if policy in str(error) else str(error)
            together.wait()  # and nobody leaves it before all have called

    jobs = [("reference", "first"), ("nonesuch", "second"), ("reference", "third")]
    assert in_threads(*(partial(job, *args) for args in jobs)) == [None] * 3
    assert found == {"first": "served", "second": "refused", "third": "served"}
    public_call(case, inputs)


def test_threads_train_side_by_side() -> None:
    cases = [replace(case, lens=PACKED) for case in CASES.values()]
    inputs = [make_inputs(case) for case in cases]
    want = [evaluate(public_call, *pair) for pair in zip(cases, inputs, strict=True)]

    def job() -> None:
        for _ in range(3):
            for case, x, expected in zip(cases, inputs, want, strict=True):
                got = evaluate(public_call, case, x)
                assert all(torch.equal(got[n], expected[n]) for n in expected)

    assert in_threads(job, job, job) == [None] * 3


def test_backward_in_another_thread_keeps_the_plan() -> None:
    case = CASES["gdn"]
    given = {n: x.requires_grad_() for n, x in make_inputs(case).items()}
    want = torch.autograd.grad(public_call(case, given)["o"].sum(), [*given.values()])
    loss = public_call(case, given)["o"].sum()

    def backward() -> None:
        with use("nonesuch"):
            loss.backward()

    assert in_threads(backward) == [None]
    assert all(torch.equal(x.grad, w) for x, w in zip(given.values(), want, strict=True))


@every_case
def test_defaults_of_dtype_and_device_do_not_matter(case: Case) -> None:
    case = replace(case, dtype=torch.float32)
    inputs, cu = make_inputs(case), boundaries(case)
    more = {} if cu is None else {"cu_seqlens": cu}
    want = evaluate(lambda c, x: public_call(c, x, **more), case, inputs)
    torch.set_default_dtype(torch.float64)
    try:
        wide = evaluate(lambda c, x: public_call(c, x, **more), case, inputs)
    finally:
        torch.set_default_dtype(torch.float32)
    given = {n: x.detach().requires_grad_() for n, x in inputs.items()}
    with torch.device("meta"):
        elsewhere = public_call(case, given, **more)
    assert all(torch.equal(wide[n], want[n]) for n in want)
    assert all(torch.equal(elsewhere[n], want[n]) for n in elsewhere)
