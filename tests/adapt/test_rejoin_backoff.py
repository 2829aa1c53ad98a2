"""How long a device is left alone that is lost again and again."""

from __future__ import annotations

from placewright.adapt.rejoin_backoff import FORGIVEN, RejoinBackoff


def test_every_loss_doubles_the_wait() -> None:
    """A device that dies as soon as it is back costs a restart after 5, 10, 20, ... steps."""
    absence, step, waits = RejoinBackoff(5), 100, []
    for _ in range(6):
        absence.begin(step)
        waits.append(absence.until - step)
        step = absence.until + 1
        absence.end(step)
    assert waits == [5, 10, 20, 40, 80, 160]


def test_who_stays_for_long_begins_anew() -> None:
    """Longer than so many times its wait; and a look that finds nothing is repeated."""
    absence = RejoinBackoff(5)
    absence.begin(0)
    absence.end(7)
    absence.begin(7 + FORGIVEN * 5)
    assert absence.until == 7 + FORGIVEN * 5 + 10
    absence.go_on(80)
    assert absence.until == 85
    absence.end(90)
    absence.begin(91 + FORGIVEN * 10)
    assert absence.until == 91 + FORGIVEN * 10 + 5
