"""A run that adapts and survives: steps, snapshots, faults, and what is left afterwards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from placewright.adapt.adaptation import Adaptation
from placewright.adapt.decide import Policy
from placewright.adapt.replan import Replanner
from placewright.adapt.rivals import worth_trying
from placewright.adapt.snapshot import SnapshotFolder
from placewright.adapt.survivors import cluster_of, problem_of
from placewright.adapt.timeline import Event, Kind, Timeline
from placewright.adapt.tryout import Tryout
from placewright.cluster.cluster import Cluster
from placewright.errors import InfeasibleError, RunError, WorkerError
from placewright.execute.session import Session
from placewright.execute.step_record import StepRecord
from placewright.graph.graph import Graph
from placewright.graph.program import Program
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.run import execution_order

T = TypeVar("T")

Batch = Mapping[str, torch.Tensor]
"""Inputs and targets by program input."""

SILENCE_STEPS = 20.0
"""A step that takes so many typical ones is stuck."""

ORDER_S = 30.0
"""Anything else that workers are told takes less on top of the patience: a load, a snapshot."""

TRIES = 3
"""Times that one step is tried again when nobody seems to be gone."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What is run and on what.

    Attributes
    ----------
    problem
        The graph on the whole cluster, as profiled.
    state
        A real tensor for every program input.
    open
        Starts a session on (graph, cluster, state); where devices are nodes of a testbed, there.
    reachable
        Which of the named devices can all talk to each other now; everybody by default.
    """

    graph: Graph
    cluster: Cluster
    problem: OperatorProblem
    state: Mapping[str, torch.Tensor]
    open: Callable[[Graph, Cluster, Mapping[str, torch.Tensor]], Session] = Session
    reachable: Callable[[Sequence[str]], Collection[str]] = frozenset


@dataclass(slots=True)
class AdaptiveRun:
    """A context manager; `step` does one training step, whatever happens meanwhile.

    Attributes
    ----------
    folder
        Where snapshots go.
    plan
        Starts in force; afterwards the run plans for itself.
    rivals
        Plans to try beside it in the first steps (`placewright.adapt.rivals`); those that the
        run is too short for are left out.
    adapt
        Whether to migrate when a better plan appears.
    snapshot_every, rejoin_every
        Steps between two snapshots, and between two looks for lost devices.
    patience_s
        No step is given up before it has taken so many seconds.
    steps
        How many are planned in all: what a migration can gain depends on it.
    done
        Steps so far.
    scalars
        The loss of the last step, by output.
    """

    job: Job
    folder: Path
    plan: OperatorPlan | None = None
    rivals: Sequence[OperatorPlan] = ()
    policy: Policy = field(default_factory=Policy)
    adapt: bool = True
    snapshot_every: int = 50
    rejoin_every: int = 20
    patience_s: float = 10.0
    steps: float = float("inf")
    seed: int = 0
    timeline: Timeline = field(default_factory=Timeline)
    done: int = 0
    scalars: dict[str, float] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    session: Session | None = None
    adaptation: Adaptation | None = None
    replanner: Replanner = field(default_factory=Replanner)
    snapshots: SnapshotFolder = field(init=False)
    _batches: list[tuple[int, Batch | None]] = field(default_factory=list)
    _tries: int = 0
    _counted: int = 0
    _began_s: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.snapshots = SnapshotFolder(self.folder, self.job.graph.name)
        found = self.snapshots.latest()
        self.done = self._counted = 0 if found is None else found.step
        self.timeline.first_step = self.done

    def __enter__(self) -> AdaptiveRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; what the snapshots hold stays."""
        if self.session is not None:
            session, self.session = self.session, None
            session.__exit__(RunError, None, None)

    def step(self, batch: Batch | None = None) -> float:
        """One step of training, on `batch` or on what the model was captured with; its seconds.

        Raises
        ------
        InfeasibleError
            The model does not fit on the devices that are left.
        WorkerError
            The step fails although nobody is gone.
        """
        goal = self.done + 1
        self._batches.append((goal, batch))
        self._survive(goal, lambda: None)
        return self.timeline.step_s[-1]

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the steps have changed, by program input."""
        return self._survive(self.done, lambda: self._crew()[0].state())

    def finish(self) -> None:
        """Write a last snapshot.

        Raises
        ------
        RunError
            The disk does not take it.
        """
        if not self._survive(self.done, self.snapshot):
            raise RunError(
                f"the last snapshot is not written: {self.timeline.events[-1].text}",
                where=f"step {self.done}",
                hint="make room; the snapshots before it are whole",
            )

    def _survive(self, goal: int, then: Callable[[], T]) -> T:
        """Bring the run to `goal` steps and do what comes `then`, again after every fault."""
        while True:
            try:
                if self.session is None:
                    self._start()
                while self.done < goal:
                    self._advance(dict(self._batches)[goal])
                if self.session is not None:
                    found = then()
                    self._tries = 0
                    return found
            except WorkerError as error:
                self._fault(error)

    def alive(self) -> tuple[str, ...]:
        """Devices that are not lost."""
        return tuple(n for n in self.job.cluster.device_names if n not in self.lost)

    def _start(self) -> None:
        """Workers on what is left, brought up from the last snapshot to where the run was."""
        start = time.perf_counter()
        cluster = cluster_of(self.job.cluster, self.alive())
        problem = problem_of(self.job.problem, self.alive())
        plan = self._first_plan(problem)
        snapshot = self.snapshots.latest()
        state = dict(self.job.state) | dict(snapshot.state if snapshot else {})
        session = self.job.open(self.job.graph, cluster, state)
        self.session = session.__enter__()
        session.group.limit_s = self.patience_s + ORDER_S
        order = execution_order(problem, judge(problem, plan))
        session.load(plan.placement.tolist(), order, self.seed)
        if snapshot is not None:
            session.set_random_state(snapshot.random_state)
        self.done = 0 if snapshot is None else snapshot.step
        self.timeline.plans += 1
        if self.timeline.plans > 1:
            seconds = time.perf_counter() - start
            self._note(Kind.RECOVER, f"on {', '.join(self.alive())}", seconds=seconds)
        self.adaptation = Adaptation(
            session,
            problem,
            plan,
            self.policy,
            self.timeline,
            self.replanner,
            self._began_s,
            self._tryout(problem, plan),
        )
        self._replay(session)
        session.slowness()

    def _tryout(self, problem: OperatorProblem, plan: OperatorPlan) -> Tryout | None:
        """Only in the beginning, and with as many plans as the steps that are left pay for."""
        if not self.adapt or not self.rivals or self.timeline.plans > 1:
            return None
        plans = worth_trying(problem, (plan, *self.rivals), self.steps - self.done)
        return Tryout(plans) if len(plans) > 1 else None

    def _first_plan(self, problem: OperatorProblem) -> OperatorPlan:
        """The given plan on the whole cluster, else a new one."""
        if self.plan is not None and not self.lost:
            return self.plan
        return self.replanner.whole(problem)

    def _replay(self, session: Session) -> None:
        """Repeat the steps that were counted after the snapshot."""
        for step, batch in list(self._batches):
            if self.done < step <= self._counted:
                if batch is not None:
                    session.feed(batch)
                (record,) = session.run(1, limit_s=self._patience_s())
                self.done, self.scalars = step, record.scalars

    def _advance(self, batch: Batch | None) -> None:
        """One step that counts, and what is due after it."""
        session, adaptation = self._crew()
        if batch is not None:
            session.feed(batch)
        watched = self.adapt and adaptation.watches_next
        (record,) = session.run(1, watched=watched, limit_s=self._patience_s())
        self._count(record)
        if self.adapt:
            adaptation.stepped(record, watched, self.done, self.steps - self.done)
            if self.rivals and adaptation.tryout is None and not self.lost:
                self.plan, self.rivals = adaptation.plan, ()
        if self.done % self.snapshot_every == 0:
            self.snapshot()
        if self.lost and self.done % self.rejoin_every == 0:
            self._rejoin()

    def _crew(self) -> tuple[Session, Adaptation]:
        """The workers that are up, and who watches them."""
        if self.session is None or self.adaptation is None:
            raise RunError("the run has not begun", hint="call step() first")
        return self.session, self.adaptation

    def _count(self, record: StepRecord) -> None:
        self.done += 1
        self._counted = self.done
        self.scalars = record.scalars
        self.timeline.stepped(record.duration_s)

    def _patience_s(self) -> float:
        """Seconds after which a step is stuck."""
        typical = self.timeline.typical_s(20)
        if not typical > 0 and self.adaptation is not None:
            typical = judge(self.adaptation.problem, self.adaptation.plan).value
        return max(self.patience_s, SILENCE_STEPS * typical)

    def snapshot(self) -> bool:
        """Write down where the run stands; steps before the last two snapshots are forgotten.

        A disk that does not take it is an event: the run goes on, and later steps can still be
        repeated from the last snapshot.
        """
        start = time.perf_counter()
        try:
            self._write_snapshot()
        except OSError as error:
            self.snapshots.give_up()
            self._note(Kind.UNSAVED, f"{self.folder}: {error.strerror}")
            return False
        oldest = int(self.snapshots.whole()[0].name.removeprefix("step-"))
        self._batches = [(step, b) for step, b in self._batches if step > oldest]
        self._note(Kind.SNAPSHOT, "", seconds=time.perf_counter() - start)
        return True

    def _write_snapshot(self) -> None:
        session, adaptation = self._crew()
        folder = self.snapshots.begin(self.done, self._state_bytes())
        session.save_state(folder)
        names = adaptation.problem.device_names
        placement = [names[d] for d in adaptation.plan.placement]
        self.snapshots.commit(
            folder,
            step=self.done,
            random_state=session.random_state(),
            placement=dict(zip(self.job.graph.operator_names, placement, strict=True)),
        )

    def _state_bytes(self) -> int:
        """What a snapshot takes, its note aside."""
        program = self.job.graph.program
        inputs = program.inputs if isinstance(program, Program) else ()
        specs = [item.spec for item in inputs if item.mutated]
        return sum(math.prod(s.shape) * getattr(torch, s.dtype).itemsize for s in specs)

    def _fault(self, error: WorkerError) -> None:
        """Find out who is gone; the next `_start` goes on with the others."""
        gone = set() if self.session is None else self.session.lost()
        self.close()
        left = [n for n in self.alive() if n not in gone]
        gone |= set(left) - set(self.job.reachable(left))
        self._tries += 1
        if not gone and self._tries > TRIES:
            raise error
        self.lost |= gone
        who = f"lost {', '.join(sorted(gone))}" if gone else "nobody is gone: tried again"
        self._note(Kind.FAULT, f"{who} ({error.where}: {error.what})")
        if not self.alive():
            raise InfeasibleError(
                "no device is left", where=self.job.cluster.name, hint="bring a device back"
            ) from error

    def _rejoin(self) -> None:
        """Take lost devices back that answer again."""
        everyone = self.job.cluster.device_names
        back = set(self.job.reachable(everyone)) & self.lost
        if not back:
            return
        self.snapshot()
        self.close()
        self.lost -= back
        self._note(Kind.JOIN, ", ".join(sorted(back)))

    def _note(self, kind: Kind, text: str, **numbers: float) -> None:
        at = time.perf_counter() - self._began_s
        self.timeline.events.append(Event(self.done, at, kind, text, numbers))
