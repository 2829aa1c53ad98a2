"""The garbage collector is off inside the block, and as before afterwards."""

from __future__ import annotations

import gc
import weakref

import pytest

from placewright.numerics import collector
from placewright.numerics.collector import collector_paused


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_as_it_was_afterwards(before: bool) -> None:
    """Also where it was off already."""
    was = gc.isenabled()
    try:
        gc.enable() if before else gc.disable()
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == before
    finally:
        gc.enable() if was else gc.disable()


def test_what_was_made_inside_is_in_the_oldest_generation() -> None:
    """Young collections do not look at it; what others have frozen stays so."""
    with collector_paused():
        made: list[object] = [[]]
    assert any(each is made for each in gc.get_objects(generation=2))
    gc.freeze()
    try:
        with collector_paused():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


class _Cycle:
    """An object in a cycle with itself."""

    itself: _Cycle


def test_garbage_of_one_pause_after_another_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cycles made inside reach the oldest generation uncounted; Python alone would keep them."""
    monkeypatch.setattr(collector, "FEWEST", 1000)
    monkeypatch.setattr(collector, "_LASTING", collector._Lasting(1))
    with collector_paused():
        cycle = _Cycle()
        cycle.itself = cycle
        lost = weakref.ref(cycle)
        del cycle
    assert lost() is None
    assert collector._LASTING.blocks > 1000  # the next is made when there are twice as many
    with collector_paused():
        cycle = _Cycle()
        cycle.itself = cycle
        kept = weakref.ref(cycle)
        del cycle
    assert kept() is not None
