"""Where the policy of a call comes from."""

from __future__ import annotations

import threading

import pytest

from fla_core.dispatch import policy_text, use
from fla_core.errors import PolicyError


def test_order_of_authority() -> None:
    assert policy_text(None) == ""
    with use("acme"):
        assert policy_text(None) == "acme"
        assert policy_text("cuda") == "cuda"
        with use("tilelang"):
            assert policy_text(None) == "tilelang"
        assert policy_text(None) == "acme"
    assert policy_text(None) == ""


def test_an_error_inside_ends_the_block() -> None:
    with pytest.raises(ZeroDivisionError), use("acme"):
        raise ZeroDivisionError
    assert policy_text(None) == ""


def test_one_object_may_be_entered_again_and_nested() -> None:
    acme = use("acme")
    with acme, use("cuda"), acme:
        assert policy_text(None) == "acme"
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
        assert scaled(ones).tolist() == [4, 4]
        with use("tilelang"):
            assert scaled(ones).tolist() == [8, 8]
    assert scaled(ones).tolist() == [0, 0]
    assert len(seen) == 3
