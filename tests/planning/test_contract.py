"""Results of interrupted searches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from placewright.planning.contract import last_of


def pressed_after(count: int) -> Iterator[int]:
    """So many finds, then Ctrl-C."""
    yield from range(count)
    raise KeyboardInterrupt


def test_the_last_incumbent_is_returned() -> None:
    """With the flag of whether Ctrl-C came."""
    assert last_of(range(4)) == (3, False)
    assert last_of(pressed_after(4)) == (3, True)


def test_without_an_incumbent_the_interrupt_is_raised() -> None:
    """The interrupt reaches the caller."""
    with pytest.raises(KeyboardInterrupt):
        last_of(pressed_after(0))
