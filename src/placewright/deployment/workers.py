"""Workers: one engine and one session that all calls of a placed model share.

On them placements are measured, as a reward for planners that learn.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from threading import RLock
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from placewright.errors import (
    InfeasibleError,
    PlacewrightError,
    RunError,
    UnknownNameError,
    UnsupportedError,
    WorkerError,
)
from placewright.measurement import half_interval
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.learned.planner import Estimate
from placewright.operators.run import best_single, load_plan
from placewright.planning.contract import STEPS, Meter, Monitor
from placewright.runtime.engines.engine import ENGINES, Engine, open_engine

if TYPE_CHECKING:
    from placewright.adapt.training_loop import TrainingLoop
    from placewright.capturing.model import State
    from placewright.cluster.cluster import Cluster
    from placewright.deployment.model_files import FileWorkload, TensorFlowWorkload
    from placewright.deployment.placed_model import PlacedModel
    from placewright.deployment.workload import Workload
    from placewright.graph.graph import Graph
    from placewright.operators.adaptive.run import AdaptiveRun
    from placewright.planning.result import Result
    from placewright.runtime.session import Session


GPUS = ("together", "apart")
"""One process for the GPUs of a node, or one each."""


def shared_process(gpus: str | None) -> bool | None:
    """Whether the GPUs of a node share a process, from ``together``, ``apart`` or ``None``."""
    if gpus not in (None, *GPUS):
        raise UnknownNameError("number of processes for GPUs", str(gpus), GPUS, where="gpus")
    return None if gpus is None else gpus == "together"


class ModelWorkers:
    """The worker processes of a model: started when first needed, kept until `close`.

    A context manager that closes at its end. They end with this object and with the program too.

    Raises `PlacewrightError`: the engine cannot be had here.

    Parameters
    ----------
    engine
        A name that ``--engine`` takes, or an engine.
    cluster
        Its devices get workers.
    emulate, together
        As of `placewright.runtime.engines.engine.open_engine`.
    """

    def __init__(
        self,
        engine: str | Engine,
        cluster: Cluster,
        *,
        emulate: bool = True,
        together: bool | None = None,
    ) -> None:
        if not isinstance(engine, str) and not hasattr(engine, "group"):
            raise UnknownNameError("engine", str(engine), ENGINES, where="engine")
        self.cluster, self._emulate = cluster, emulate
        self.training: Callable[[], AdaptiveRun | None] = lambda: None
        self.trainer: Callable[[], TrainingLoop[AdaptiveRun] | None] = lambda: None
        # Of who gives orders: threads of the caller take turns, also with several placed models.
        self.turn = RLock()
        self._local = engine == "local"
        self._held = _Held(
            open_engine(engine, cluster, emulate=emulate, together=together)
            if isinstance(engine, str)
            else nullcontext(engine)
        )
        # Of `_held`, which does not refer to this object: it would never be collected otherwise.
        self._end = weakref.finalize(self, self._held.close)

    def __enter__(self) -> ModelWorkers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def engine(self) -> Engine:
        """The engine, opened when it is first asked for.

        Raises `RunError`: the workers are closed.
        """
        self.check_open()
        return self._held.open()

    def begin(self) -> None:
        """Let what local workers are started from load torch, while the caller goes on."""
        if self._local:
            from placewright.runtime.engines.process import begin_fork_server
            from placewright.runtime.specs import PLACED_STEPS

            begin_fork_server(PLACED_STEPS)

    def check_open(self) -> None:
        """Raise if the workers are closed.

        Raises `RunError`: they are.
        """
        if not self._end.alive:
            raise RunError(
                "the placed model is closed",
                where=self.cluster.name,
                by="its workers have ended",
                hint="use it inside its `with` block, or place the model again",
            )

    def on(self, engine: str | Engine) -> ModelWorkers:
        """Others for the same cluster, started by another engine."""
        return ModelWorkers(engine, self.cluster, emulate=self._emulate)

    @contextmanager
    def session(self, load: Workload, *, streamed: bool = False) -> Iterator[Session]:
        """A session with a model on the whole cluster, the same one for every caller.

        An exception in the block ends its workers, and the next caller gets others. Other threads
        wait for the end of the block.

        `streamed`: for a stream, which refuses others while it is open: they do not wait for it.
        Raises `InputError`: the workers are executing a stream, which goes on.
        """
        from placewright.runtime.session import Session

        with ExitStack() as turn:
            turn.enter_context(self.turn)
            self.refuse_while_streaming()
            engine, held = self.engine, self._held
            if held.session is None:
                held.state = load.values
                held.session = Session(load.graph, self.cluster, held.state, engine).__enter__()
            session = held.session
            if streamed:
                turn.close()
            try:
                yield session
            except BaseException as error:
                if held.session is session:
                    held.end_session(error)
                raise

    def refuse_while_streaming(self) -> None:
        """Raise if the session that is up executes a stream.

        Raises `InputError`: it does.
        """
        if self._held.session is not None:
            self._held.session.refuse_while_streaming()

    @property
    def trained_by(self) -> AdaptiveRun | None:
        """The open run that has trained the model's weights further, if there is one."""
        run = self.training()
        return None if run is None or run.closed or not run.done else run

    @property
    def up(self) -> Session | None:
        """The session that is up, if one is."""
        return self._held.session

    def discard(self) -> None:
        """End the workers, as after the loss of one; the next session has new ones."""
        self._held.end_session(RunError("workers are discarded"))

    def dismiss(self) -> None:
        """End the workers in good order; the next session has new ones."""
        self._held.end_session()

    def take(self, graph: Graph, cluster: Cluster, state: State) -> AbstractContextManager[Session]:
        """A session that belongs to the caller from now on, who ends it.

        It is the one that is up, where that has this cluster and this state; else that one is
        ended, so that no device holds two models, and there is another one.

        Raises `InputError`: the workers are executing a stream, which goes on.
        """
        from placewright.runtime.session import Session

        with self.turn:
            self.refuse_while_streaming()
            engine, held = self.engine, self._held
            session = held.session if held.starts_from(state) else None
            if session is not None and cluster.device_names == self.cluster.device_names:
                # Taken out first: the caller ends it now, and a `close` here must not.
                held.session = None
                return nullcontext(session)
            held.end_session()
            return Session(graph, cluster, state, engine)

    def close(self) -> None:
        """End the workers and close the engine; twice is fine."""
        self._end()


@dataclass(slots=True)
class _Held:
    """What has to be ended: apart from `ModelWorkers`, so that a finalizer of that can end it."""

    opening: AbstractContextManager[Engine]
    engine: Engine | None = None
    session: Session | None = None
    state: State = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)

    def open(self) -> Engine:
        """The engine, entered once."""
        if self.engine is None:
            self.engine = self.stack.enter_context(self.opening)
        return self.engine

    def starts_from(self, state: State) -> bool:
        """Whether the session starts from these very tensors."""
        known = self.state
        return known.keys() == state.keys() and all(state[k] is v for k, v in known.items())

    def end_session(self, error: BaseException | None = None) -> None:
        """Dismiss the session's workers, or end them at once after an `error`."""
        if self.session is not None:
            session, self.session = self.session, None
            session.__exit__(None if error is None else type(error), error, None)

    def close(self) -> None:
        """End everything."""
        with self.stack:
            self.end_session()
        self.engine = None


Steps: TypeAlias = Callable[[int], Sequence[float]]
"""Executes so many steps of what was opened; their seconds."""

LEAST_STEPS, BLOCK = 5, 3
"""Steps before an interval is computed, and between two of them."""

FAILURES = 3
"""Engines that fail so often without one run in between are given up."""


@dataclass(slots=True, eq=False)
class MeasuredPlacements:
    """Median step of placements, each executed once.

    A placement is opened, warmed up and executed until the 95 % interval of its mean step is
    `narrow`, or `most` steps or `most_s` seconds are spent.

    Attributes
    ----------
    open
        Makes a placement ready, shape (operators,). Raises `UnsupportedError`, `InfeasibleError` or
        `WorkerError` for one that the engine does not take: it counts as ``inf``.
    warmup, most, most_s
        Steps that do not count; steps, and seconds of them, at most.
    narrow
        Half the interval, as a share of the median.
    known, refused, repeated
        As of `placewright.operators.planners.learned.planner.Measured`.
    """

    open: Callable[[IntArray], AbstractContextManager[Steps]]
    warmup: int = 3
    most: int = 30
    most_s: float = 2.0
    narrow: float = 0.03
    known: dict[bytes, Estimate] = field(default_factory=dict)
    refused: dict[bytes, str] = field(default_factory=dict)
    repeated: int = 0
    _failures: int = 0

    def __call__(self, placements: IntArray) -> FloatArray:
        """Shape (k,): median seconds of each row of shape (k, operators)."""
        rows = np.atleast_2d(placements)
        return np.array([self.estimate(np.asarray(row)).median_s for row in rows])

    def estimate(self, place: IntArray) -> Estimate:
        """Median step and error bar of a placement; measured the first time only."""
        key = place.astype(np.int64).tobytes()
        if key in self.known:
            self.repeated += 1
            return self.known[key]
        try:
            with self.open(place) as steps:
                self.known[key] = self._measured(steps)
            self._failures = 0
        except (UnsupportedError, InfeasibleError, WorkerError) as error:
            self._refuse(key, error)
        return self.known[key]

    def in_turns(
        self, placements: Sequence[IntArray], rounds: int, deadline_s: float = math.inf
    ) -> list[list[float]]:
        """Median step of each placement in every round: a b c, c b a, ..."""
        times: list[list[float]] = [[] for _ in placements]
        for turn in range(rounds):
            if turn and time.perf_counter() >= deadline_s:
                break
            forth = range(len(placements))
            for k in forth if turn % 2 == 0 else reversed(forth):
                with self.open(placements[k]) as steps:
                    steps(self.warmup)
                    times[k].append(median(steps(LEAST_STEPS)))
        return times

    def _measured(self, steps: Steps) -> Estimate:
        steps(self.warmup)
        began = time.perf_counter()
        found = list(steps(LEAST_STEPS))
        while half_interval(found) > self.narrow * median(found):
            if len(found) >= self.most or time.perf_counter() - began >= self.most_s:
                break
            found += steps(min(BLOCK, self.most - len(found)))
        return Estimate(median(found), half_interval(found), len(found))

    def _refuse(self, key: bytes, error: PlacewrightError) -> None:
        """Note why a placement did not run; an engine that only fails is given up."""
        self.known[key] = Estimate(math.inf, math.inf, 0)
        self.refused[key] = str(error.by or error.what)
        if isinstance(error, WorkerError):
            self._failures += 1
            if self._failures >= FAILURES:
                raise error


@contextmanager
def measured_rewards(
    workload: Workload | FileWorkload | TensorFlowWorkload,
) -> Iterator[MeasuredPlacements]:
    """What executes placements of a workload, a PyTorch model on local workers of its own.

    Nothing is started before the first one.

    Examples
    --------
    >>> with measured_rewards(workload) as measure:
    ...     solve(workload.problem, "hsdag(reward=measured)", measure=measure)
    """
    from placewright.deployment.workload import Workload

    if not isinstance(workload, Workload):
        yield MeasuredPlacements(workload.opened)
        return

    with ModelWorkers("local", workload.cluster) as own:
        yield on_workers(workload, own)


def on_workers(workload: Workload, workers: ModelWorkers) -> MeasuredPlacements:
    """Placements of a PyTorch model, executed on workers that are started when first needed."""
    problem = workload.problem

    @contextmanager
    def opened(place: IntArray) -> Iterator[Steps]:
        plan = OperatorPlan(place)
        judgement = judge(problem, plan)
        if not judgement.feasible:  # a worker would run out of memory
            raise InfeasibleError("does not fit", where=problem.name, by=judgement.violation)
        with workers.session(workload) as session:
            load_plan(session, problem, plan, judgement, step_s=judgement.value)
            yield lambda count: [record.duration_s for record in session.run(count)]

    return MeasuredPlacements(opened)


@contextmanager
def beside_single(
    placed: PlacedModel, workers: ModelWorkers, monitor: Monitor, what: str
) -> Iterator[tuple[Session, Meter, Result | None]]:
    """The workers, progress of `what` is measured, and the best single device to measure beside it.

    ``None`` in its place: the model fits on no device.
    """
    single = best_single(placed.interference.alone)
    what += "" if single is None else f" and {single.planner} in turns"
    with ExitStack() as up:
        with monitor.meter("starting workers"):
            session = up.enter_context(workers.session(placed.workload))
        yield session, up.enter_context(monitor.meter(what, STEPS)), single
