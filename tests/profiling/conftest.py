"""A fixed cost of messages, so that no test starts workers to measure it."""

from __future__ import annotations

import pytest

from placewright.profiling import message_cost as module
from placewright.profiling.message_cost import MessageCost

GIVEN = MessageCost(real_s=6e-5, real_s_per_byte=5e-10, extra_s=3e-5, extra_s_per_byte=0.0)


@pytest.fixture(autouse=True)
def message_cost(monkeypatch: pytest.MonkeyPatch) -> MessageCost:
    """Without workers."""
    monkeypatch.setattr(module, "measured_messages", lambda: GIVEN)
    return GIVEN
