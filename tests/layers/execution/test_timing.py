"""How slow a worker is, apart from what others do to it."""

from __future__ import annotations

from placewright.layers.execution.timing import slowdown
from placewright.runtime.emulation import Stretch


def test_only_emulation_and_quotas_slow_a_worker_down() -> None:
    """Whatever else keeps the cores busy, a worker without either has a slowdown of 1."""
    assert slowdown(None, throttled=False) == 1.0
    assert slowdown(Stretch(2.5), throttled=False) == 2.5
    assert slowdown(None, throttled=True, seconds=0.05) >= 1.0
