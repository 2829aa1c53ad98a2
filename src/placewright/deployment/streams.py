"""Stream batches through a placed model; a lost worker costs time, and no batch.

Plans for a stream are chosen by its predicted period. The value of a plan is what its busiest
device or channel takes, and a stream may take longer: devices with links both ways wait for each
other, and memory limits the samples in flight. Of the plans that were judged another one may be the
fastest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.capturing.source import as_arguments
from placewright.errors import InputError, PlacewrightError, UnsupportedError, WorkerError
from placewright.graph.graph import Graph
from placewright.operators.adaptive.run import problem_of
from placewright.operators.adaptive.step_forms import carried_placement
from placewright.operators.interference import InterferenceProfile
from placewright.operators.judge import judge
from placewright.operators.pipeline import PLAIN
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.streaming.prediction import (
    DEALT,
    copied_devices,
    leaders,
    predict,
    predicted,
    whole_copies,
)
from placewright.operators.streaming.run import cut_of, refuse_what_cannot_stream
from placewright.operators.streaming.trials import CLOSE, MOST_TRIED
from placewright.planning.candidates import Candidate, Candidates
from placewright.planning.result import Result
from placewright.planning.solving import FixedPlan, solve
from placewright.profiling.profiler import profile
from placewright.runtime.session import Session
from placewright.runtime.stream import SampleStream

if TYPE_CHECKING:
    from placewright.deployment.calls import Batch, CallForm, Calls
    from placewright.deployment.workers import ModelWorkers
    from placewright.deployment.workload import Workload
    from placewright.planning.contract import Monitor

PLANNING_S = 5.0
"""Time limit of the plan for the devices that are left."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A batch that was taken and is not delivered yet."""

    form: CallForm
    batch: Batch


@dataclass(slots=True, eq=False)
class PlacedStream:
    """Delivers what a model returns for each of many batches, in order.

    Every batch that was taken is kept until it is delivered. Where a worker is lost, the devices
    that are left get another plan, and take those batches again from the start.

    Attributes
    ----------
    problem, plan
        What is streamed, and where; on the devices called `names`.
    waiting
        Taken and not delivered, in order.
    refused
        Why the next batch could not be had or taken, or no stream be opened; raised once the
        batches before are delivered.
    closed
        Whether the caller wants no more batches.
    """

    workload: Workload
    workers: ModelWorkers
    calls: Calls
    problem: OperatorProblem
    plan: OperatorPlan
    seed: int
    monitor: Monitor
    names: tuple[str, ...] = field(init=False)
    waiting: deque[_Waiting] = field(default_factory=deque)
    refused: Exception | None = None
    closed: bool = False
    _first: tuple[OperatorProblem, OperatorPlan] = field(init=False)
    _delivered: int = 0
    _revived_at: int = -1

    def __post_init__(self) -> None:
        self.names = self.workload.cluster.device_names
        self._first = self.problem, self.plan

    def run(self, batches: Iterable[Any]) -> Iterator[Any]:
        """What the model returns for each batch.

        Raises `RunError`: the placed model was closed meanwhile.
        Raises `WorkerError`: a worker was lost, and the others cannot go on; what was delivered
        before is valid.
        """
        source, lost = iter(batches), set[str]()
        while True:
            try:
                with self._session(lost) as session:
                    try:
                        yield from self._deliver(session, source)
                    except GeneratorExit:  # the caller wants no more; the workers stay
                        return
                break
            except WorkerError as error:
                if self.closed:
                    return
                self._go_on_without(lost, error)
                lost = set()
        if self.refused is not None:
            raise self.refused

    @contextmanager
    def _session(self, lost: set[str]) -> Iterator[Session]:
        """Workers on the devices that are left; those that are lost meanwhile go to `lost`."""
        cluster, load = self.workload.cluster, self.workload
        whole = self.names == cluster.device_names
        opening: AbstractContextManager[Session] = (
            self.workers.session(load, streamed=True)
            if whole
            else Session(load.graph, cluster.part(self.names), load.values, self.workers.engine)
        )
        with opening as session:
            try:
                yield session
            except WorkerError:
                lost |= session.lost()
                raise

    def _deliver(self, session: Session, source: Iterator[Any]) -> Iterator[Any]:
        """One stream for every run of batches of one form."""
        while (first := self._item(0, source)) is not None:
            form, graph = first.form, first.form.program.graph
            self._refuse_restart()
            problem, plan = self._placed(graph)
            expected = predicted(problem, plan)
            stream = SampleStream(
                session,
                cut_of(problem, plan, expected),
                graph=graph,
                # Or an odd last batch would draw what the first one has drawn.
                seed=self.seed + self._delivered,
                expected_s=expected.period_s,
            )
            with ExitStack() as up:
                with self.workers.turn:  # from here on the stream refuses others
                    try:
                        session.refuse_while_streaming()
                    except InputError as error:  # another thread's, whose workers must not end
                        self.refused = error
                        return
                    up.enter_context(stream)
                yield from self._through(stream, form, source)

    def _refuse_restart(self) -> None:
        """Raise where buffers would begin anew for batches of another shape."""
        program = self.workload.graph.program
        written = [item.key for item in program.inputs if item.mutated]
        if self._delivered and written:
            raise UnsupportedError(
                "a batch of another shape in a stream of a model that writes into buffers",
                where=f"stream of {self.workload.graph.name}: {', '.join(written)}",
                by=f"after {self._delivered} batches",
                hint="give batches of one shape (drop_last=True), or call the placed model instead",
            )

    def _through(
        self, stream: SampleStream, form: CallForm, source: Iterator[Any]
    ) -> Iterator[Any]:
        # Another capture of the model has constants of its own, which the workers have not loaded.
        own = {} if form.program.graph is self.workload.graph else dict(form.program.constants)
        while True:
            # After a loss the first items are those that were taken and not delivered: they are
            # given again.
            while stream.in_flight < stream.cut.window:
                item = self._item(stream.in_flight, source)
                if item is None or item.form is not form:
                    break
                stream.give(item.batch | own)
            if not stream.in_flight:
                return
            self.workers.check_open()
            for delivered in stream.take():
                self.waiting.popleft()
                self._delivered += 1
                try:
                    yield form.returned(delivered.outputs)
                except GeneratorExit:
                    self.closed = True  # a worker may be lost while the stream is drained
                    raise

    def _item(self, k: int, source: Iterator[Any]) -> _Waiting | None:
        """The k-th batch that is not delivered; taken from the source if it is the next one."""
        if k < len(self.waiting):
            return self.waiting[k]
        try:
            return None if self.refused is not None else self._taken(source)
        except Exception as error:  # of the loader, too: those in flight are delivered first
            self.refused = error
            return None

    def _taken(self, source: Iterator[Any]) -> _Waiting | None:
        """The next batch of the source, ``None`` at its end."""
        for batch in source:
            given = as_arguments(batch, self.workload.graph.name)
            by_name = isinstance(given, dict)
            self.calls.demand_unchanged(f"stream of {self.workload.graph.name}")
            arguments = self.calls.arguments(() if by_name else given, given if by_name else {})
            form = self.calls.form(arguments)
            self.waiting.append(_Waiting(form, form.batch(arguments)))
            return self.waiting[-1]
        return None

    def _placed(self, graph: Graph) -> tuple[OperatorProblem, OperatorPlan]:
        """The plan for the example's graph, or for another capture of the same model."""
        if graph is self.workload.graph:
            return self.problem, self.plan
        placement = carried_placement(self.workload.graph, self.plan.placement.tolist(), graph)
        cluster = self.workload.cluster.part(self.names)
        problem = profile(graph, cluster, method="analytic")
        problem = problem.replace(objective="throughput", pipeline=self.problem.pipeline)
        plan = OperatorPlan(np.array(placement, dtype=np.int64), replica_of=self.plan.replica_of)
        return problem, plan

    def _go_on_without(self, lost: set[str], error: WorkerError) -> None:
        """Plan for the devices that are left; where none is, start workers again on all.

        Raises `WorkerError`: `error` itself: no worker is gone, none is left and no batch has been
        delivered since that was so before, a plan for the rest does not fit, or the model keeps
        state from sample to sample.
        """
        left = tuple(name for name in self.names if name not in lost)
        # A model that keeps state has seen the samples in flight: to give them again would change
        # it twice.
        if not lost or self.workload.captured.program.keeps_state:
            raise error
        if not left:
            if self._delivered <= self._revived_at:
                raise error
            self._revived_at = self._delivered
            (self.problem, self.plan), self.names = self._first, self.workload.cluster.device_names
            self.monitor.note(f"lost {', '.join(sorted(lost))}, the last: started again on all")
            return
        try:
            problem = problem_of(self.problem, left).replace(pipeline=PLAIN)
            plan, planner = self._copies_left(left), "the copies that are left"
            if plan is None:
                found = solve(problem, time_limit_s=PLANNING_S, seed=self.seed).demand_finished()
                plan, planner = found.plan, found.planner
            elif copied_devices(plan):
                problem = problem.replace(pipeline=DEALT)
        except PlacewrightError as reason:
            raise error from reason
        self.problem, self.plan, self.names = problem, plan, left
        self.monitor.note(
            f"lost {', '.join(sorted(lost))}: {len(self.waiting)} batches that were in flight and "
            f"those to come go to {', '.join(left)}, planned by {planner}"
        )

    def _copies_left(self, left: Sequence[str]) -> OperatorPlan | None:
        """The plan without the copies that are lost.

        ``None`` where there were none, or a stage has lost all of its devices.
        """
        if not copied_devices(self.plan):
            return None
        before, leader = leaders(self.plan), np.arange(len(left))
        # By device of the old plan, the device of the new one that has its stage.
        home = np.full(len(self.names), -1)
        for first in np.unique(self.plan.placement).tolist():
            own = [self.names[d] for d in np.flatnonzero(before == first)]
            here = [left.index(name) for name in own if name in left]
            if not here:
                return None
            home[first] = leader[here] = here[0]
        return OperatorPlan(home[self.plan.placement], replica_of=leader)


def can_be_copied(workload: Workload) -> bool:
    """Whether samples can be dealt out to copies of the model: each stands alone, on CPUs."""
    program = workload.captured.program
    cpus = all(device.kind == "cpu" for device in workload.cluster.devices)
    return cpus and not program.training and not program.keeps_state


ROBUST = ("ceft+pbqp", "topological-split")
"""Planners for latency whose plans are looked at too."""

COPIES, PARTS = "whole-copies", "copied-stages"
"""Planners of copies of the whole model, and of parts of it."""

MOST = 12
"""Plans whose streams are simulated."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stream:
    """A plan with the problem that it is judged by, and what its stream is predicted to do."""

    name: str
    problem: OperatorProblem
    plan: OperatorPlan
    period_s: float
    kind: str

    @property
    def key(self) -> tuple[bytes, tuple[int, ...]]:
        """Equal for equal streams."""
        return self.plan.placement.tobytes(), tuple(copied_devices(self.plan))


def by_period(
    known: InterferenceProfile, results: Sequence[Result], seed: int, *, copies: bool = False
) -> list[Result]:
    """Plans whose streams are predicted to be the fastest, then those of `results`.

    The first is the best one; then come, best first, the best of each other kind and further ones
    while they are predicted to be no slower by more than `CLOSE`, `MOST_TRIED` in all.

    Parameters
    ----------
    known
        What plans are judged by.
    results
        Of a throughput problem, with their candidates; the first one is the best by value.
    copies
        Look at copies of the model and of parts of it too, samples dealt out by speed.
    """
    problem = known.together
    try:
        refuse_what_cannot_stream(problem)
    except UnsupportedError:
        return list(results)
    found = [_stream(r.planner, known.of(r.plan), r.plan) for r in results]
    limit_s = (1.0 + CLOSE) * min(stream.period_s for stream in found)
    found += _copies(known, seed) if copies else []
    for name, plan in _plans(problem, results[0]):
        found.append(_stream(name, known.of(plan), plan, limit_s))
        limit_s = min(limit_s, (1.0 + CLOSE) * found[-1].period_s)
    given = {stream.key: r for stream, r in zip(found, results, strict=False)}
    apart: dict[object, _Stream] = {}
    for stream in found:
        apart.setdefault(stream.key, stream)
    kept = _kept(sorted(apart.values(), key=lambda stream: stream.period_s))
    first = [given.get(s.key) or _judged(s, results[0]) for s in kept]
    return [*first, *(r for r in results if r not in first)]


def _kept(streams: Sequence[_Stream]) -> list[_Stream]:
    """The best one, the best of each other kind, then others; those that are close, best first."""
    limit_s = (1.0 + CLOSE) * streams[0].period_s
    close = [k for k, stream in enumerate(streams) if stream.period_s <= limit_s] or [0]
    first = {streams[k].kind: k for k in reversed(close)}.values()
    wanted = sorted(close, key=lambda k: (k not in first, k))[:MOST_TRIED]
    return [streams[k] for k in sorted(wanted)]


def _judged(stream: _Stream, best: Result) -> Result:
    """Its result, beside the candidates of the `best` by value."""
    judged = solve(stream.problem, FixedPlan(stream.plan, name=stream.name))
    # Bounds of the value hold for every plan of one problem; nothing is proved of its period.
    bound = max(judged.bound, best.bound) if judged.problem is best.problem else judged.bound
    candidates: tuple[Candidate, ...] = best.candidates
    if not any(c.planner == stream.name and c.plan is not None for c in candidates):
        others = (c for c in candidates if c.planner != stream.name)
        candidates = (*judged.candidates, *others)
    return replace(judged, bound=bound, candidates=Candidates(candidates))


def _copies(known: InterferenceProfile, seed: int) -> list[_Stream]:
    """Copies of the whole model, and of parts where not every device can have all of it."""
    whole, parts = (p.replace(pipeline=DEALT) for p in (known.whole_copies, known.together))
    if whole.contiguous:
        return []
    made = [(COPIES, whole, p) for p in whole_copies(whole) if judge(whole, p).feasible]
    if len(made) < whole.m - 1:
        with suppress(PlacewrightError):
            made.append((PARTS, parts, solve(parts, PARTS, seed=seed).demand_finished().plan))
    return [_stream(*each) for each in made]


def _plans(problem: OperatorProblem, result: Result) -> Iterator[tuple[str, OperatorPlan]]:
    """Plans to look at, each placement once."""
    close = sorted((c for c in result.candidates if c.plan is not None), key=lambda c: c.value)
    made = [(c.planner, c.plan) for c in close if c.value < inf]
    for name in ROBUST:
        with suppress(PlacewrightError):
            made.insert(0, (name, solve(problem.replace(objective="latency"), name).plan))
    apart = {plan.placement.tobytes(): (name, plan) for name, plan in reversed(made)}
    yield from list(reversed(apart.values()))[:MOST]


def _stream(
    name: str, problem: OperatorProblem, plan: OperatorPlan, limit_s: float = inf
) -> _Stream:
    """With a period of ``inf`` if the plan does not fit or computes for `limit_s`."""
    if copied_devices(plan):
        return _Stream(name, problem, plan, predicted(problem, plan).period_s, name)
    took_s = problem.compute_s[np.arange(problem.n), plan.placement]
    short = np.bincount(plan.placement, took_s).max() < limit_s
    judgement = judge(problem, plan) if short else None
    if judgement is None or not judgement.feasible:
        return _Stream(name, problem, plan, inf, "")
    expected, devices = predict(judgement), len(np.unique(plan.placement))
    rest = "contiguous" if len(expected.segments.device) == devices else "back and forth"
    return _Stream(name, problem, plan, expected.period_s, "single" if devices == 1 else rest)
