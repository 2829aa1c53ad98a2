"""The self-test measures what exists, not what was requested."""

from __future__ import annotations

import subprocess
from itertools import islice

import pytest

from placewright.errors import RunError
from placewright.testbed import Testbed
from placewright.testbed import status as selftests
from placewright.testbed.status import Finding, selftest


def test_off_is_relative_except_for_delays() -> None:
    """The tolerance of a rate is a share, that of a delay is in seconds."""
    assert Finding("rate", "a", 100.0, 97.5, 0.03).ok
    assert not Finding("cpu", "a", 0.5, 0.52, 0.03).ok
    assert Finding("delay", "a", 0.0, 0.0004, 0.0005).ok
    assert not Finding("delay", "a", 0.001, 0.0016, 0.0005).ok


def test_a_probe_that_is_killed_is_an_error_of_the_run() -> None:
    """It has no last line of output that could say why."""
    pipe = subprocess.PIPE
    probe = subprocess.Popen(["sleep", "60"], stdout=pipe, stderr=pipe, text=True)
    probe.kill()
    with pytest.raises(RunError, match=r"a probe failed.*code -9"):
        selftests._answer(probe)


def test_everything_is_measured_once(duo: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every link and quota once; what has been changed is measured anew."""
    monkeypatch.setattr(selftests, "_SPIN_S", 0.4)
    requested = {(f.what, f.where): f.asked for f in selftest(duo)}
    assert requested == {
        ("rate", "left -> right"): 5e6,
        ("delay", "left -> right"): 5e-3,
        ("rate", "right -> left"): 5e6,
        ("delay", "right -> left"): 5e-3,
        ("cpu", "left"): 1.0,
        ("cpu", "right"): 0.5,
    }
    duo.set_link("left", "right", bandwidth=2e6)
    changed = next(selftest(duo))
    assert changed.asked == 2e6
    assert changed.got <= 2e6 * 1.03


def test_a_delay_is_that_of_its_own_way(duo: Testbed) -> None:
    """Whatever the way back takes."""
    duo.set_link("right", "left", latency_s=0.2, both_ways=False)
    _, delay = islice(selftest(duo), 2)
    assert (delay.where, delay.asked) == ("left -> right", 5e-3)
    assert 4e-3 < delay.got < 0.1
