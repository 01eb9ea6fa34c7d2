"""Dividing by a normaliser in bfloat16, and gradients of q that the division makes small."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from fla_core.cli.calls import measure  # noqa: E402
from fla_core.cli.calls.bench import recipes  # noqa: E402
from fla_core.cli.calls.bench.gate import differentiated  # noqa: E402
from fla_core.cli.calls.bench.providers import provider  # noqa: E402
from fla_core.cli.calls.bench.workload import Workload  # noqa: E402
from fla_core.normaliser import CHANNELS, EPS, balanced, divided, running_sums  # noqa: E402
from fla_core.seqlens import SeqLens  # noqa: E402

CPU = torch.device("cpu")
LENGTHS = (70, 1, 0, 129)


def _errors(kind: str, lengths: tuple[int, ...] | None = None) -> dict[str, float]:
    """Errors of a normalised bfloat16 call and its gradients, in units."""
    torch.manual_seed(0)
    (recipe,) = recipes.find("chunk_linear_attn", "normalize")
    sizes = {"B": 1, "T": 200, "H": 2, "K": 32, "V": 32}
    problem = Workload(recipe, sizes, lengths, torch.bfloat16).make(CPU, grad=True)
    tensors = {n: x.detach().clone() for n, x in problem.present.items()}
    if kind == "values far from zero":
        tensors["v"] += 5
    elif kind == "no query":
        tensors["q"][:, ::3] = 0
    elif kind == "channels that are off":
        tensors |= {n: torch.randn_like(tensors[n]).relu() for n in ("q", "k")}
    leaves = {n: x.requires_grad_() for n, x in tensors.items()}
    problem = replace(problem, tensors={**problem.tensors, **leaves})
    gold = measure.gold(problem, measure.by_chunks)
    function = provider("ours", "reference").function(recipe, problem)
    answers = differentiated(problem, function, gold.cotangents)
    return {name: measure.error(problem, name, x, gold) for name, x in answers.items()}


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize(
    "kind", ["usual", "values far from zero", "no query", "channels that are off"]
)
def test_bfloat16_is_as_right_as_its_inputs(kind: str, lengths: tuple[int, ...] | None) -> None:
    errors = _errors(kind, lengths)
    assert {"o", "d q", "d k", "d v"} <= errors.keys()
    assert max(errors.values()) < 2, errors


def test_what_is_balanced_was_not_right_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fla_core.normaliser.balanced", lambda q, *_: q)
    assert _errors("values far from zero")["d q"] > 8


def test_the_gradient_of_a_quotient() -> None:
    torch.manual_seed(0)
    wide = torch.randn(2, 5, 1, 8 + CHANNELS, dtype=torch.float64).bfloat16()
    wide[..., 8].abs_().add_(0.5)
    exact, rounded = (wide.to(dtype).requires_grad_() for dtype in (torch.float64, torch.bfloat16))
    right = exact[..., :8] / (exact[..., 8:9] + EPS)
    y = divided(rounded, 8)
    torch.testing.assert_close(y.double(), right, rtol=2**-8, atol=0)
    dy = torch.randn_like(y)
    right.backward(dy.double())
    y.backward(dy)
    found = rounded.grad.double()
    assert (found[..., 8:] == found[..., 8:9]).all()
    summed = torch.cat([found[..., :8], found[..., 8:].sum(-1, keepdim=True)], -1)
    torch.testing.assert_close(summed, exact.grad[..., :9], rtol=2**-6, atol=2**-5)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_running_sums(lengths: tuple[int, ...] | None, first: bool) -> None:
    torch.manual_seed(0)
    k = torch.rand(1 if lengths else 2, 200, 2, 8, dtype=torch.float64).float()
    z = torch.rand(4 if lengths else 2, 2, 8) if first else None
    bounds = (0, 70, 71, 71, 200)
    lens = SeqLens(torch.tensor(bounds)) if lengths else None
    rows = [k[0, a:b] for a, b in pairwise(bounds)] if lengths else list(k)
    right = [row.cumsum(0) + (0 if z is None else z[i]) for i, row in enumerate(rows)]
    found = running_sums(k, z, lens)
    expected = torch.cat(right)[None] if lengths else torch.stack(right)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 5, 2, 3), (2, 0, 2, 3), (0, 70, 2, 3)])
def test_running_sums_of_nothing(shape: tuple[int, ...]) -> None:
    assert running_sums(torch.ones(shape, dtype=torch.bfloat16), None, None).shape == shape


def test_a_balanced_gradient_is_at_right_angles_to_q() -> None:
    torch.manual_seed(0)
    q, k = (torch.rand(1, 100, 1, 16).bfloat16() for _ in range(2))
    leaf = q.clone().requires_grad_()
    same = balanced(leaf, k, None, 1.0, None)
    assert torch.equal(same, q)
    wrong = running_sums(k, None, None)
    (found,) = torch.autograd.grad(same, leaf, wrong)
    assert (found.float().norm(dim=-1) < 0.05 * wrong.float().norm(dim=-1)).all()
    (kept,) = torch.autograd.grad(balanced(leaf, k, None, 1e-9, None), leaf, wrong)
    assert torch.equal(kept[:, :1], wrong[:, :1])  # beside 1e-10 o is not homogeneous


@pytest.mark.parametrize("scale", [0.0, 1e-200])
def test_nothing_is_taken_out_beside_a_scale_of_nothing(scale: float) -> None:
    q, k = torch.randn(2, 1, 5, 1, 8, dtype=torch.bfloat16)
    leaf, grad = q.clone().requires_grad_(), torch.randn_like(q)
    balanced(leaf, k, None, scale, None).backward(grad)
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, grad)
