"""A stream on a session: samples go in, their outputs come out in order.

    caller                                        every worker
      | -- stream_turn(new samples, oldest) -------> |  takes them in, works on all it has
      | <------- Progress(done since then) --------- |  at once, or when the oldest is done here

At most `window` samples are in flight: the next one is taken in when the oldest one is done on
every worker. What a worker holds is bounded by that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from safetensors.torch import load, save

from placewright.errors import InputError
from placewright.graph.graph import Graph
from placewright.runtime import limits
from placewright.runtime.session import Session
from placewright.runtime.step.devices import storable
from placewright.runtime.stream.executor import Finished, Progress, Sample

Tensors = Mapping[str, torch.Tensor]

WAIT_S = 1.0
"""After which a worker answers that nothing is done."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a placement is streamed.

    Attributes
    ----------
    placement
        Device of every operator.
    order
        Every operator once; each device keeps it.
    lengths
        By device, how many operators each of its segments has.
    window
        Most samples in flight.
    peak_bytes
        By device what it is expected to need with so many: an error says by how much that was
        wrong.
    """

    placement: tuple[int, ...]
    order: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    window: int
    peak_bytes: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivered:
    """A sample that is done.

    Attributes
    ----------
    outputs
        By output of the program; empty where they were not asked for.
    latency_s
        From when it was given to the workers until all had said that it is done.
    done_s
        By worker, when it was done there, on that worker's clock.
    """

    index: int
    outputs: Tensors
    latency_s: float
    done_s: tuple[float, ...]


class SampleStream:
    """A context manager: workers execute a loaded placement for one sample after the other.

    Parameters
    ----------
    graph
        Another capture of the same model, in place of the session's own.
    deliver
        Give outputs back.
    watched
        Note when each segment ran, in `spans`.
    expected_s
        What a sample is expected to take, ``nan`` if unknown: workers that deliver nothing for
        many times as long are given up.

    Attributes
    ----------
    spans
        By worker: device, segment, sample, start and end, the worker's ``time.perf_counter()``.
    """

    def __init__(
        self,
        session: Session,
        cut: Cut,
        *,
        graph: Graph | None = None,
        seed: int = 0,
        deliver: bool = True,
        watched: bool = False,
        expected_s: float = math.nan,
    ) -> None:
        if cut.window < 1:
            raise InputError("a stream needs at least one sample in flight", by=f"{cut.window}")
        self.session, self.cut, self._graph = session, cut, graph
        self._deliver, self._watched, self._seed = deliver, watched, seed
        self._limit_s = limits.steps_s(cut.window, expected_s)
        self.spans: list[list[tuple[int, int, int, float, float]]] = [
            [] for _ in session.group.specs
        ]
        self._parts: dict[int, _Parts] = {}
        self._given = self._next = 0
        self._waiting: list[Sample] = []

    def __enter__(self) -> SampleStream:
        session, cut = self.session, self.cut
        session.load(
            cut.placement,
            cut.order,
            self._seed,
            streamed=True,
            graph=self._graph,
            peak_bytes=cut.peak_bytes,
        )
        groups = [session.layout.device_group(r) for r in range(len(session.group.specs))]
        opening = [
            (tuple(cut.lengths[d] for d in own), cut.window, self._deliver, self._watched)
            for own in groups
        ]
        session.order("open_stream", opening)
        session.streaming = True
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind in (None, GeneratorExit):  # a generator that uses the stream was closed
            for _ in self._drained():
                pass
            self.session.order_all("close_stream")
            self.session.streaming = False

    @property
    def in_flight(self) -> int:
        """Samples that were given and are not delivered."""
        return self._given - self._next

    def run(self, feeds: Iterable[Tensors | None]) -> Iterator[Delivered]:
        """Deliver every sample of `feeds`, in order.

        Parameters
        ----------
        feeds
            Program inputs of each sample; ``None`` for those that were loaded. They are taken as
            slots become free, never more than the window ahead.

        Raises
        ------
        WorkerError
            A worker died, raised, or delivered nothing for too long.
        """
        for feed in feeds:
            self.give(feed)
            while self.in_flight >= self.cut.window:
                yield from self.take()
        yield from self._drained()

    def give(self, feed: Tensors | None) -> None:
        """Add a sample to those that the next `take` hands over."""
        data = save(storable(feed)) if feed else b""
        self._parts[self._given] = _Parts(time.perf_counter())
        self._waiting.append(Sample(self._given, data))
        self._given += 1

    def take(self) -> list[Delivered]:
        """Samples that are done; waits for the oldest one."""
        asked_s = time.perf_counter()
        while self._next in self._parts:
            samples, self._waiting = self._waiting, []
            self._note(
                self.session.order_all(
                    "stream_turn", samples, self._next, WAIT_S, limit_s=limits.patience(30.0)
                )
            )
            if found := self._complete():
                return found
            if time.perf_counter() - asked_s > self._limit_s:
                raise self.session.group.silent_error(
                    range(len(self.session.group.specs)), self._limit_s, "executing a stream"
                )
        return []

    def _drained(self) -> Iterator[Delivered]:
        while self.in_flight:
            yield from self.take()

    def _note(self, answers: Sequence[Progress]) -> None:
        for worker, progress in enumerate(answers):
            self.spans[worker] += progress.spans
            for done in progress.finished:
                self._parts[done.index].by_worker[worker] = done

    def _complete(self) -> list[Delivered]:
        found, workers = [], len(self.session.group.specs)
        while len((parts := self._parts.get(self._next, _NONE)).by_worker) == workers:
            outputs: dict[str, torch.Tensor] = {}
            for done in parts.by_worker.values():
                outputs.update(load(done.outputs) if done.outputs else {})
            done_s = tuple(parts.by_worker[w].end_s for w in range(workers))
            latency_s = time.perf_counter() - parts.given_s
            found.append(Delivered(self._next, outputs, latency_s, done_s))
            del self._parts[self._next]
            self._next += 1
        return found


@dataclass(slots=True)
class _Parts:
    """What the workers have said of a sample that was given at `given_s`."""

    given_s: float
    by_worker: dict[int, Finished] = field(default_factory=dict)


_NONE = _Parts(0.0)
