"""A stream returns for each sample what the model returns, at any number in flight."""

from __future__ import annotations

import itertools
import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InputError, WorkerError
from placewright.runtime.session import Session
from placewright.runtime.stream import SampleStream, StreamCut
from placewright.runtime.stream_executor import Finished, StreamProgress
from tests.runtime.chain import answer, diamond

DEVICES = (Device("a", node="a"), Device("b", node="b"))
SLOW = (Link("a", "b", 1e6, 1e-3), Link("b", "a", 1e6, 1e-3))
DUO, SLOW_DUO = (Cluster(DEVICES, links, name="duo") for links in ((), SLOW))


def cut(placement: tuple[int, ...], window: int) -> StreamCut:
    """Every operator is a segment of its own."""
    lengths = tuple((1,) * placement.count(d) for d in range(2))
    return StreamCut(placement, tuple(range(4)), lengths, window)


@pytest.mark.parametrize("cluster", [DUO, SLOW_DUO])
def test_every_placement_gives_the_same_bits(cluster: Cluster) -> None:
    """Different samples come out in order, each equal to what one process computes of it."""
    graph, state = diamond()
    feeds = [{"x": state["x"] + k} for k in range(7)]
    with Session(graph, cluster, state) as session:
        for placement in itertools.product(range(2), repeat=4):
            with SampleStream(session, cut(placement, 3)) as stream:
                found = list(stream.run(feeds))
            assert [d.index for d in found] == list(range(7))
            for delivered, feed in zip(found, feeds, strict=True):
                assert torch.equal(delivered.outputs["output"], answer(feed))


def test_no_more_samples_than_the_window_are_taken() -> None:
    """The generator of samples is never more than the window ahead of what is delivered."""
    graph, state = diamond()
    taken = []

    def feeds() -> object:
        for k in range(12):
            taken.append(k)
            yield {"x": state["x"] + k}

    with Session(graph, DUO, state) as session, SampleStream(session, cut((0, 1, 0, 1), 4)) as s:
        for delivered in s.run(feeds()):
            assert len(taken) - delivered.index <= 4


def test_steps_follow_a_stream_on_the_same_workers() -> None:
    """Nothing of a closed stream is left on the way."""
    graph, state = diamond()
    with Session(graph, DUO, state) as session:
        for _ in range(2):
            with SampleStream(session, cut((0, 1, 0, 1), 2), deliver=False) as stream:
                assert all(not d.outputs for d in stream.run([None] * 5))
            session.load([0, 1, 0, 1], range(4))
            session.run(2)
            assert torch.equal(session.outputs()["output"], answer(state))


def test_a_killed_worker_ends_the_stream_with_its_name() -> None:
    """What was delivered before stays delivered; the error names the device."""
    graph, state = diamond()
    session, found = Session(graph, DUO, state), []
    with pytest.raises(WorkerError, match="device 'b'"):  # noqa: PT012, SIM117
        with session, SampleStream(session, cut((0, 1, 0, 1), 4)) as stream:
            for delivered in stream.run({"x": state["x"] + k} for k in range(10_000)):
                found.append(delivered)
                if delivered.index == 20:
                    os.kill(session.group.processes[1].pid or 0, signal.SIGKILL)
    assert [d.index for d in found] == list(range(len(found)))
    assert all(torch.equal(d.outputs["output"], answer({"x": state["x"] + d.index})) for d in found)


def test_a_window_of_nothing_is_refused() -> None:
    """A stream needs at least one sample in flight."""
    graph, state = diamond()
    with Session(graph, DUO, state) as session, pytest.raises(InputError, match="at least one"):
        SampleStream(session, cut((0, 1, 0, 1), 0))


def test_time_in_which_the_caller_was_stopped_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers that were stopped with it are not given up when all go on."""
    now, answers = [0.0], iter([StreamProgress(), StreamProgress((Finished(0, 0.0, 0.0),))])
    for clock in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, clock, lambda: now[0])

    class Stopped:
        group = SimpleNamespace(specs=("a",))

        def order(self, *_: object, **__: object) -> list[StreamProgress]:
            now[0] += 3600.0
            return [next(answers)]

    session: Any = Stopped()
    stream = SampleStream(session, cut((0, 0, 0, 0), 1), expected_s=0.1)
    stream.give(None)
    assert [delivered.index for delivered in stream.take()] == [0]
