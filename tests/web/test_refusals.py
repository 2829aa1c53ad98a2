"""Bodies of requests: what all of them together may take, and clients that leave."""

from __future__ import annotations

import pytest

from placewright.web.refusals import BodyBudget, Presence, Refusal


def test_a_budget_is_shared_and_given_back() -> None:
    """What is too much for all is refused with 503 and room is there again afterwards."""
    budget = BodyBudget(100)
    with budget.share() as first, budget.share() as second:
        first(60)
        with pytest.raises(Refusal) as caught:
            second(41)
        second(40)
        assert budget.held_bytes == 100
    assert budget.held_bytes == 0
    assert (caught.value.status, caught.value.code) == (503, "bodies-full")
    assert caught.value.retry_after_s is not None


def test_a_client_leaves_once() -> None:
    """Who waits for it is called."""
    presence, calls = Presence(), list[bool]()
    presence.on_leave = lambda: calls.append(presence.left)
    presence.leave()
    assert calls == [True]
