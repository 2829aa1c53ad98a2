"""A stream on a session: samples go in, their outputs come out in order.

    caller                                        every worker
      | -- stream_turn(new samples, oldest) -------> |  takes them in, works on all it has
      | <------- Progress(done since then) --------- |  at once, or when the oldest is done here

At most `window` samples are in flight: the next one is taken in when the oldest one is done on
every worker. What a worker holds is bounded by that.

Where stages have copies, a sample has a route: of every stage the one device that does it, chosen
when the sample is given. Each worker numbers the samples that it gets from 0 and does them in that
order; outputs are delivered in the order in which samples were given. Only workers that have a part
of the oldest sample are waited for.
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
from placewright.runtime.dealing import Stages, next_copy
from placewright.runtime.session import Session
from placewright.runtime.step.devices import storable
from placewright.runtime.stream_executor import Finished, Route, Sample, StreamProgress

Tensors = Mapping[str, torch.Tensor]

WAIT_S = 1.0
"""After which a worker answers that nothing is done."""


@dataclass(frozen=True, slots=True)
class StreamCut:
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
    stages
        Where some have copies: the devices of every stage, one of which takes a sample. None where
        every worker has a part of every sample.
    """

    placement: tuple[int, ...]
    order: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    window: int
    peak_bytes: tuple[float, ...] = ()
    stages: Stages = ()


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
        By worker, when it was done there, on that worker's clock; ``nan`` where it has not been.
    """

    index: int
    outputs: Tensors
    latency_s: float
    done_s: tuple[float, ...]


class SampleStream:
    """A context manager: workers execute a loaded placement for one sample after the other.

    `spans`: by worker: device, segment, sample, start and end, the worker's
    ``time.perf_counter()``.

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
    """

    def __init__(
        self,
        session: Session,
        cut: StreamCut,
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
        workers = range(len(session.group.specs))
        self._parts: dict[int, _Parts] = {}
        self._given = self._next = 0
        self._queues = [_Queue() for _ in workers]

    def __enter__(self) -> SampleStream:
        session, cut = self.session, self.cut
        session.load(
            cut.placement,
            cut.order,
            self._seed,
            streamed=True,
            graph=self._graph,
            peak_bytes=cut.peak_bytes,
            stages=[[copy.device for copy in stage] for stage in cut.stages],
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

        `feeds`: program inputs of each sample; ``None`` for those that were loaded. They are taken
        as slots become free, never more than the window ahead.
        Raises `WorkerError`: a worker died, raised, or delivered nothing for too long.
        """
        for feed in feeds:
            self.give(feed)
            while self.in_flight >= self.cut.window:
                yield from self.take()
        yield from self._drained()

    def give(self, feed: Tensors | None) -> None:
        """Add a sample to those that the next `take` hands over."""
        data = save(storable(feed)) if feed else b""
        route, workers = self._route()
        self._parts[self._given] = _Parts(time.perf_counter(), workers)
        for worker in workers:
            self._queues[worker].add(self._given, data, route)
        self._given += 1

    def _route(self) -> tuple[Route, Sequence[int]]:
        """Of every stage the first device and the one that the next sample goes to; its workers.

        All workers where no stage has copies.
        """
        if not self.cut.stages:
            return (), range(len(self._queues))
        processes, route = self.session.layout.processes, []
        for stage in self.cut.stages:
            waiting = [len(self._queues[processes[copy.device]].sample) for copy in stage]
            chosen = stage[next_copy(stage, waiting)]
            route.append((stage[0].device, chosen.device))
        return tuple(route), [processes[device] for _, device in route]

    def take(self) -> list[Delivered]:
        """Samples that are done; waits for the oldest one."""
        countdown = limits.Countdown(self._limit_s)
        while self._next in self._parts:
            # Every worker is asked, also those that are not waited for: each gets its new samples
            # now.
            turns = [queue.turn(self._next) for queue in self._queues]
            self._note(self.session.order("stream_turn", turns, limit_s=limits.order_s()))
            if found := self._complete():
                return found
            countdown.look()
            if countdown.over:
                raise self.session.group.silent_error(
                    range(len(self.session.group.specs)), self._limit_s, "executing a stream"
                )
        return []

    def _drained(self) -> Iterator[Delivered]:
        while self.in_flight:
            yield from self.take()

    def _note(self, answers: Sequence[StreamProgress]) -> None:
        for worker, progress in enumerate(answers):
            # Spans before samples are removed: they name samples by numbers that are looked up
            # here.
            sample = self._queues[worker].sample
            self.spans[worker] += [(d, s, sample[n], a, b) for d, s, n, a, b in progress.spans]
            for done in progress.finished:
                self._parts[sample.pop(done.index)].by_worker[worker] = done

    def _complete(self) -> list[Delivered]:
        found = []
        while (parts := self._parts.get(self._next, _NONE)).complete:
            outputs: dict[str, torch.Tensor] = {}
            for done in parts.by_worker.values():
                outputs.update(load(done.outputs) if done.outputs else {})
            by_worker = map(parts.by_worker.get, range(len(self._queues)))
            done_s = tuple(math.nan if done is None else done.end_s for done in by_worker)
            latency_s = time.perf_counter() - parts.given_s
            found.append(Delivered(self._next, outputs, latency_s, done_s))
            del self._parts[self._next]
            self._next += 1
        return found


@dataclass(slots=True)
class _Parts:
    """What the workers have said of a sample that was given at `given_s`."""

    given_s: float
    workers: Sequence[int] = ()
    by_worker: dict[int, Finished] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every worker that has a part of the sample has done it."""
        return 0 < len(self.workers) == len(self.by_worker)


@dataclass(slots=True)
class _Queue:
    """What one worker was given, by its own numbers of samples.

    Attributes
    ----------
    sample
        Of those that it has not done, the number in the stream.
    given
        How many it was given so far.
    new
        Those to be handed over in the next turn.
    """

    sample: dict[int, int] = field(default_factory=dict)
    given: int = 0
    new: list[Sample] = field(default_factory=list)

    def add(self, index: int, data: bytes, route: Route) -> None:
        """Give the worker a sample."""
        self.sample[self.given] = index
        self.new.append(Sample(self.given, index, data, route))
        self.given += 1

    def turn(self, oldest: int) -> tuple[list[Sample], int, float]:
        """Arguments of the order `stream_turn`: wait only where the stream's oldest sample is."""
        new, self.new = self.new, []
        # -1 is done always: the worker answers at once.
        until = next((own for own, n in self.sample.items() if n == oldest), -1)
        return new, until, WAIT_S


_NONE = _Parts(0.0)
