"""Where the policy of a call comes from."""

from __future__ import annotations

import threading

import pytest

from fla_core.dispatch import policy_text, use
from fla_core.dispatch.context import BLOCK, CALL, levels_of
from fla_core.errors import PolicyError


def test_order_of_authority() -> None:
    assert policy_text(None) == ""
    with use("acme"):
        assert levels_of(policy_text(None)) == [("acme", BLOCK)]
        assert levels_of(policy_text("cuda")) == [("cuda", CALL), ("acme", BLOCK)]
        with use("kda=tilelang"):
            assert levels_of(policy_text(None)) == [("kda=tilelang", BLOCK), ("acme", BLOCK)]
        assert levels_of(policy_text(None)) == [("acme", BLOCK)]
    assert policy_text(None) == ""
    assert levels_of(policy_text("cuda")) == [("cuda", CALL)]


def test_a_block_for_every_operator_hides_those_around_it() -> None:
    with use("tilelang"), use("kda=cuda;acme"):
        assert levels_of(policy_text(None)) == [("kda=cuda;acme", BLOCK)]


def test_the_sign_between_levels_is_no_part_of_a_policy() -> None:
    for refused in (policy_text, use):
        with pytest.raises(PolicyError, match=r"'cuda\|acme'"):
            refused("cuda|acme")


def test_an_error_inside_ends_the_block() -> None:
    with pytest.raises(ZeroDivisionError), use("acme"):
        raise ZeroDivisionError
    assert policy_text(None) == ""


def test_one_object_may_be_entered_again_and_nested() -> None:
    acme = use("acme")
    with acme, use("cuda"), acme:
        assert levels_of(policy_text(None)) == [("acme", BLOCK)]
    assert policy_text(None) == ""
    assert repr(acme) == "use('acme')"


def test_other_threads_do_not_see_it() -> None:
    seen = []
    with use("acme"):
        thread = threading.Thread(target=lambda: seen.append(policy_text(None)))
        thread.start()
        thread.join()
    assert seen == [""]


def test_a_bad_policy_is_refused_at_once() -> None:
    with pytest.raises(PolicyError, match=r"from +fla_core.use\(\)"):
        use("cuda,-acme")


def test_traced_by_dynamo_without_a_break_and_guarded() -> None:
    torch = pytest.importorskip("torch")
    seen = []

    def backend(graph, example_inputs):  # type: ignore[no-untyped-def]
        seen.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend)
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * len(policy_text(None))

    ones = torch.ones(2)
    assert scaled(ones).tolist() == [0, 0]
    with use("acme"):
        assert scaled(ones).tolist() == [5, 5]
        with use("kda=acme"):
            assert scaled(ones).tolist() == [14, 14]
        with use("tilelang"):
            assert scaled(ones).tolist() == [9, 9]
    assert scaled(ones).tolist() == [0, 0]
    assert len(seen) == 4
