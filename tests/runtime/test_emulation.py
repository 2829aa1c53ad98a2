"""Emulation of slower devices by CPU time."""

from __future__ import annotations

import pytest

from placewright.runtime import emulation
from placewright.runtime.emulation import Stretch


class Clock:
    """Wall and CPU time of a thread that works, waits and sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, oversleep_s: float = 0.0) -> None:
        self.wall_s, self.cpu_s, self.oversleep_s, self.readings = 0.0, 0.0, oversleep_s, 0
        monkeypatch.setattr(emulation.time, "perf_counter", lambda: self.wall_s)
        monkeypatch.setattr(emulation.time, "thread_time", self._thread_time)
        monkeypatch.setattr(emulation, "sleep_until", self._sleep_until)

    def _thread_time(self) -> float:
        self.readings += 1
        return self.cpu_s

    def _sleep_until(self, deadline_s: float) -> None:
        self.wall_s = deadline_s + self.oversleep_s

    def work(self, cpu_s: float, taken_away_s: float = 0.0) -> None:
        """Compute, and be kept from it by others for a while."""
        self.cpu_s += cpu_s
        self.wall_s += cpu_s + taken_away_s


@pytest.mark.parametrize("oversleep_s", [0.0, 3e-5])
def test_work_takes_factor_times_its_cpu_time(
    monkeypatch: pytest.MonkeyPatch, oversleep_s: float
) -> None:
    """Within the last sleep's end; its clock is read once per sleep, not once per operator."""
    clock = Clock(monkeypatch, oversleep_s)
    stretch = Stretch(3.0)
    stretch.begin()
    for _ in range(1000):
        clock.work(1e-5)
        stretch.worked()
    stretch.pay()
    assert clock.wall_s == pytest.approx(3 * 1000 * 1e-5, abs=oversleep_s + 1e-9)
    assert clock.readings < 100


def test_what_others_take_away_is_not_stretched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what passes between `pay` and `begin`: waiting for a message."""
    clock = Clock(monkeypatch)
    stretch = Stretch(2.0)
    stretch.begin()
    clock.work(0.01, taken_away_s=0.02)
    stretch.pay()
    clock.work(0.005)
    stretch.begin()
    stretch.pay()
    assert clock.wall_s == pytest.approx(2 * 0.01 + 0.02 + 0.005)
