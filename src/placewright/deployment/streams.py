"""Stream batches through a placed model; a lost worker costs time, and no batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.capturing.inputs import as_arguments
from placewright.errors import PlacewrightError, WorkerError
from placewright.graph.graph import Graph
from placewright.graph.program import Program
from placewright.operators.adaptive.run import cluster_of, problem_of
from placewright.operators.carried_plan import carried_placement
from placewright.operators.pipeline import PLAIN
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.streaming.copies import DEALT, copied_devices, leaders, predicted
from placewright.operators.streaming.run import cut_of
from placewright.planning.solving import solve
from placewright.profiling.build import profile
from placewright.runtime.session import Session
from placewright.runtime.stream.stream import SampleStream

if TYPE_CHECKING:
    from placewright.deployment.calls import Batch, CallForm, Calls
    from placewright.deployment.workers import Workers
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
        Why the next batch could not be had or taken; raised once those before it are delivered.
    closed
        Whether the caller wants no more batches.
    """

    workload: Workload
    workers: Workers
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
            self.workers.session(load.graph, load.values)
            if whole
            else Session(
                load.graph, cluster_of(cluster, self.names), load.values, self.workers.engine
            )
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
            problem, plan = self._placed(graph)
            expected = predicted(problem, plan)
            stream = SampleStream(
                session,
                cut_of(problem, plan, expected),
                graph=graph,
                seed=self.seed,
                expected_s=expected.period_s,
            )
            with stream:
                yield from self._through(stream, form, source)

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
        cluster = cluster_of(self.workload.cluster, self.names)
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
        if not lost or _program(self.workload).keeps_state:
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
    program = _program(workload)
    cpus = all(device.kind == "cpu" for device in workload.cluster.devices)
    return cpus and not program.training and not program.keeps_state


def _program(workload: Workload) -> Program:
    assert isinstance(workload.graph.program, Program)
    return workload.graph.program
