"""GPU events on the host's clock, with a fake GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from placewright.runtime import step_record
from placewright.runtime.step_record import CudaTimer, Timer, timer_of


class FakeEvent:
    """Is put at the GPU's clock when it is recorded; GPUs count milliseconds."""

    now_ms = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ms = float("nan")

    def record(self, stream: object) -> None:
        """Note the time."""
        self.at_ms = FakeEvent.now_ms

    def synchronize(self) -> None:
        """It is there."""

    def elapsed_time(self, later: FakeEvent) -> float:
        """As CUDA's."""
        return later.at_ms - self.at_ms


def test_a_gpus_marks_are_seconds_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's clock reads 500 ms when the host's reads 7 s; a mark 20 ms later is at 7.02 s."""
    synchronised = []
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronised.append)
    monkeypatch.setattr(step_record, "time", SimpleNamespace(perf_counter=lambda: 7.0))
    timer = timer_of("cuda:1")
    FakeEvent.now_ms = 500.0
    timer.start()
    marks = [timer.mark()]
    FakeEvent.now_ms = 520.0
    marks.append(timer.mark())
    timer.settle()
    assert timer.seconds(marks) == pytest.approx((7.0, 7.02))
    assert synchronised == [torch.device("cuda:1")] * 2


def test_other_devices_are_timed_by_the_host() -> None:
    """Marks do not go back."""
    assert isinstance(timer_of("cuda:0"), CudaTimer)
    timer = timer_of("cpu")
    assert isinstance(timer, Timer)
    first, second = timer.seconds([timer.mark(), timer.mark()])
    assert first <= second
