"""A run loses nothing: killed workers, at any moment, leave the same numbers behind."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from placewright.adapt.run import AdaptiveRun, Job
from placewright.adapt.timeline import Kind
from placewright.capture.source import ModelSource
from placewright.errors import InfeasibleError
from placewright.execute.eager import run_eager
from placewright.graph.program import Program
from tests.adapt.jobs import job


def equal_to_eager(run: AdaptiveRun, source: ModelSource, given: Job, steps: int) -> None:
    """Every parameter and buffer equals plain PyTorch's after as many steps."""
    assert isinstance(given.graph.program, Program)
    expected = run_eager(source, training=True, steps=steps)
    state = run.state()
    for item in given.graph.program.inputs:
        if item.role in ("parameter", "buffer") and item.name in state:
            assert torch.equal(state[item.name], expected.state[item.key]), item.key


def kill(run: AdaptiveRun, rank: int) -> None:
    """SIGKILL one worker."""
    assert run.session is not None
    os.kill(run.session.group.processes[rank].pid or 0, signal.SIGKILL)


def test_a_run_without_events_is_eager_training(tmp_path: Path) -> None:
    """Seven steps equal eager bit for bit, dropout included, and the timeline has them all."""
    source, given = job()
    with AdaptiveRun(given, tmp_path, snapshot_every=3) as run:
        for _ in range(7):
            run.step()
        equal_to_eager(run, source, given, 7)
    assert len(run.timeline.step_s) == 7
    assert run.timeline.count(Kind.SNAPSHOT) == 2


def test_two_of_three_workers_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    """Training goes on with who is left and ends with eager's parameters."""
    source, given = job()
    with AdaptiveRun(given, tmp_path, snapshot_every=3, rejoin_every=1000) as run:
        for step in range(9):
            run.step()
            if step in (3, 6):
                kill(run, 0)
        equal_to_eager(run, source, given, 9)
        processes = run.session.group.processes if run.session else []
    assert run.alive() == ("c",)
    assert run.timeline.count(Kind.FAULT) == 2
    assert not any(p.is_alive() for p in processes)


def test_a_lost_device_comes_back(tmp_path: Path) -> None:
    """After a kill the device joins again when it answers, and the numbers stay eager's."""
    source, given = job()
    with AdaptiveRun(given, tmp_path, snapshot_every=4, rejoin_every=3) as run:
        for step in range(8):
            run.step()
            if step == 1:
                kill(run, 1)
        equal_to_eager(run, source, given, 8)
    assert run.alive() == ("a", "b", "c")
    assert run.timeline.count(Kind.JOIN) == 1


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    """A killer that shoots at any time, during snapshots and recoveries too, changes no bit."""
    source, given = job()
    chance = random.Random(seed)
    over = threading.Event()
    with AdaptiveRun(given, tmp_path, snapshot_every=2, rejoin_every=2) as run:
        killer = threading.Thread(target=_shoot, args=(run, chance, over))
        killer.start()
        try:
            for _ in range(12):
                run.step()
                time.sleep(0.02)
        finally:
            over.set()
            killer.join()
        equal_to_eager(run, source, given, 12)


def _shoot(run: AdaptiveRun, chance: random.Random, over: threading.Event) -> None:
    for _ in range(3):
        if over.wait(chance.uniform(0.02, 0.5)):
            return
        session = run.session
        if session is not None and len(session.group.processes) > 1:
            victim = chance.choice(session.group.processes)
            if victim.pid is not None and victim.is_alive():
                os.kill(victim.pid, signal.SIGKILL)


def test_a_run_is_continued_from_its_folder(tmp_path: Path) -> None:
    """A second run in the same folder goes on where the first one's last snapshot was."""
    source, given = job()
    with AdaptiveRun(given, tmp_path, snapshot_every=2) as run:
        for _ in range(5):
            run.step()
    with AdaptiveRun(given, tmp_path, snapshot_every=2) as again:
        assert again.done == 4
        for _ in range(3):
            again.step()
        equal_to_eager(again, source, given, 7)


def test_no_device_left_says_so(tmp_path: Path) -> None:
    """When the last device is gone the error names the cluster."""
    _, given = job()
    with AdaptiveRun(given, tmp_path) as run:
        for _ in range(3):
            run.step()
            kill(run, 0)
        with pytest.raises(InfeasibleError, match="no device is left"):
            run.step()
