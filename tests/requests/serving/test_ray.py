"""Servers as Ray actors: answers, killed and stopped actors."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from placewright.requests.serving.server import Running, ServingOptions, serve
from placewright.runtime.engines import ray_engine
from tests.requests.serving.test_repository import (
    changed_while_workers_die,
    factors,
    two_models,
)
from tests.requests.serving.test_server import body, infer, many, until

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'placewright[ray]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Running]:
    """Two actors, on a Ray of their own: other tests have theirs at the same time."""
    own = not ray.is_initialized()
    if own:
        ray_engine._set_defaults()
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        ray.init(address="local", num_cpus=2, **quiet)
    try:
        options = ServingOptions(port=0, engine="ray")
        with serve(two_models(folder), {"a": 1.0, "b": 0.5}, options) as found:
            yield found
    finally:
        if own:
            ray.shutdown()


def test_actors_answer_and_are_replaced(running: Running) -> None:
    """One actor is killed and one is stopped under load: every request is answered once."""
    slots, before = running.dispatcher.fleet.slots, running.observer.totals.total()
    until(lambda: all(slot.up for slot in slots))  # other tests end some, or change the model
    pids = [slot.process.pid for slot in slots]
    with ThreadPoolExecutor(1) as pool:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # type: ignore[arg-type]
        answers = pool.submit(lambda: [many(running, 8, body(60_000)) for _ in range(3)])
        # Where requests come late both are replaced already: stopped actors are given up soon.
        until(lambda: running.dispatcher.under_way > 0 or answers.done())
        with suppress(ProcessLookupError):
            os.kill(pids[0], signal.SIGKILL)  # type: ignore[arg-type]
        found = [each for group in answers.result() for each in group]
    assert [status for status, _, _ in found] == [200] * 24
    assert {factor for _, _, answer in found for factor in factors(answer)} in ({2.0}, {5.0})
    assert running.observer.totals.total() == before + 24
    until(lambda: all(slot.up and slot.restarts for slot in slots))
    assert not set(pids) & {slot.process.pid for slot in slots}


def test_an_idle_actor_that_dies_is_replaced(running: Running) -> None:
    """Though nobody asks it for anything; and the change is not felt."""
    slot = running.dispatcher.fleet.slots[0]
    lost, restarts = slot.process.pid, slot.restarts
    os.kill(lost, signal.SIGKILL)  # type: ignore[arg-type]
    until(lambda: slot.restarts > restarts and slot.up)
    assert infer(running, body(30_000))[0] == 200


def test_models_come_and_go_while_actors_are_killed(running: Running, folder: Path) -> None:
    """Each is paused for it, so that the other serves alone meanwhile."""
    assert changed_while_workers_die(running, folder) > 1
