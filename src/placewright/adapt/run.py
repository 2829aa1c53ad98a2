"""A run that adapts and survives: steps, snapshots, faults, and what is left afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from placewright.adapt.adaptation import Adaptation
from placewright.adapt.decide import Policy
from placewright.adapt.interrupts import interrupts_wait
from placewright.adapt.job import Batch, Job
from placewright.adapt.membership import Membership
from placewright.adapt.observed import Observed
from placewright.adapt.online_profile import OnlineProfile
from placewright.adapt.replan import Replanner
from placewright.adapt.replay_log import ReplayLog
from placewright.adapt.rivals import worth_trying
from placewright.adapt.saving import Saving
from placewright.adapt.snapshot import SnapshotFolder
from placewright.adapt.step_timeout import StepTimeout
from placewright.adapt.survivors import problem_of
from placewright.adapt.timeline import Kind, Timeline
from placewright.adapt.tryout import Tryout
from placewright.errors import InfeasibleError, PlacewrightError, RunError, WorkerError
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem, Overlap
from placewright.operators.run import execution_order
from placewright.profiling.interference import InterferenceProfile
from placewright.runtime.session import Session
from placewright.runtime.step_record import StepRecord

__all__ = ["AdaptiveRun", "Batch", "Job"]

T = TypeVar("T")


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
    paces
        What each kind of plan is judged by when rivals are chosen, where the kinds differ.
    adapt
        Whether to migrate when a better plan appears.
    snapshot_every, rejoin_every
        Steps between two snapshots, and before a device that was lost once is looked for.
    patience_s
        No step is given up before it has taken so many seconds.
    steps
        How many are planned in all: what a migration can gain depends on it.
    scalars
        The loss of the last step, by output.
    """

    job: Job
    folder: Path
    plan: OperatorPlan | None = None
    rivals: Sequence[OperatorPlan] = ()
    interference: InterferenceProfile | None = None
    policy: Policy = field(default_factory=Policy)
    adapt: bool = True
    snapshot_every: int = 50
    rejoin_every: int = 20
    patience_s: float = 10.0
    steps: float = float("inf")
    seed: int = 0
    timeline: Timeline = field(default_factory=Timeline)
    scalars: dict[str, float] = field(default_factory=dict)
    session: Session | None = None
    adaptation: Adaptation | None = None
    replanner: Replanner = field(default_factory=Replanner)
    observed: Observed = field(default_factory=Observed)
    membership: Membership = field(init=False)
    patience: StepTimeout = field(init=False)
    past: ReplayLog = field(init=False)
    saving: Saving = field(init=False)

    def __post_init__(self) -> None:
        self.membership = Membership(self.job, self.rejoin_every)
        self.patience = StepTimeout(self.patience_s)
        self.past = ReplayLog.of(self.folder, self.job)
        self.saving = Saving(self.past, self.job, self.timeline, self.snapshot_every)
        self.timeline.first_step = self.done

    def __enter__(self) -> AdaptiveRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the run; what the snapshots hold stays, and another run may have the folder."""
        self._dismiss()
        self.past.claim.release()

    @property
    def done(self) -> int:
        """Steps so far."""
        return self.past.counted

    @property
    def snapshots(self) -> SnapshotFolder:
        """The run's folder, and which snapshots in it were damaged."""
        return self.past.snapshots

    def alive(self) -> tuple[str, ...]:
        """Devices that are not lost."""
        return self.membership.alive()

    def step(self, batch: Batch | None = None) -> float:
        """One step of training, on `batch` or on what the model was captured with; its seconds.

        A Ctrl-C takes effect when the step is done, a second one at once.

        Raises
        ------
        InfeasibleError
            The model does not fit on the devices that are left.
        RunError
            The run is closed.
        WorkerError
            The step fails although nobody is gone.
        """
        goal = self.done + 1
        self.past.take(goal, batch)
        self._survive(goal, lambda: self.saving.catch_up(*self._crew()))
        return self.timeline.step_s[-1]

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the steps have changed, by program input."""
        return self._survive(self.done, lambda: self._crew()[0].state())

    def outputs(self) -> dict[str, torch.Tensor]:
        """Outputs of the last step; none where the workers were started after it."""
        return self._survive(self.done, lambda: self._crew()[0].outputs())

    def finish(self) -> None:
        """Write a last snapshot.

        Raises
        ------
        RunError
            The disk does not take it.
        """
        if self.past.saved == self.done:
            return
        if not self._survive(self.done, lambda: self.saving.save(*self._crew())):
            raise RunError(
                f"the last snapshot is not written: {self.timeline.events[-1].text}",
                where=f"step {self.done}",
                hint="make room; the snapshots before it are whole",
            )

    def _survive(self, goal: int, then: Callable[[], T]) -> T:
        """Bring the run to `goal` steps and do what comes `then`, again after every fault.

        While there is a session its workers stand where the run does and owe no answer:
        whatever breaks this off in the middle ends them, and what comes next starts others.
        """
        if self.past.claim.released:
            raise RunError("the run is closed", where=str(self.folder), hint="begin another one")
        with interrupts_wait():
            try:
                return self._again_and_again(goal, then)
            except BaseException:
                self._dismiss()
                raise

    def _again_and_again(self, goal: int, then: Callable[[], T]) -> T:
        while True:
            try:
                if self.session is None:
                    self._start()
                    self.membership.started()
                while self.done < goal:
                    self._advance(self.past.batch(goal))
                if self.session is not None:
                    found = then()
                    self.membership.tries = 0
                    return found
            except PlacewrightError as error:
                if not (isinstance(error, WorkerError) or self.membership.newcomers):
                    raise
                self._fault(error)

    def _dismiss(self) -> None:
        """End the workers."""
        if self.session is not None:
            session, self.session = self.session, None
            session.__exit__(RunError, None, None)

    def _start(self) -> None:
        """Workers on what is left, brought up from the last snapshot to where the run was."""
        start = time.perf_counter()
        problem = problem_of(self.job.problem, self.alive())
        plan = self._first_plan(OnlineProfile(problem, self.observed).problem())
        snapshot = self.snapshots.latest()
        state = snapshot.state if snapshot else {}
        session = self.job.session(self.alive(), state)
        self.session = session
        order = execution_order(problem, judge(problem, plan))
        serial = problem.overlap is Overlap.SERIAL
        session.load(plan.placement.tolist(), order, self.seed, serial=serial)
        if snapshot is not None:
            session.set_random_state(snapshot.random_state)
        step = 0 if snapshot is None else snapshot.step
        self.timeline.plans += 1
        if self.timeline.plans > 1:
            seconds = time.perf_counter() - start
            self.timeline.note(step, Kind.RECOVER, f"on {', '.join(self.alive())}", seconds=seconds)
        tryout = self._tryout(problem, plan)
        self.adaptation = Adaptation(
            session,
            problem,
            plan,
            self.policy,
            self.timeline,
            self.replanner,
            tryout,
            self.observed,
        )
        self._replay(session, step)
        self.adaptation.recovery_probe.baseline()

    def _tryout(self, problem: OperatorProblem, plan: OperatorPlan) -> Tryout | None:
        """Only in the beginning, and with as many plans as the steps that are left pay for."""
        if not self.adapt or not self.rivals or self.timeline.plans > 1:
            return None
        interference = self.interference or InterferenceProfile.alike(problem)
        plans = worth_trying(interference, (plan, *self.rivals), self.steps - self.done)
        return Tryout(plans) if len(plans) > 1 else None

    def _first_plan(self, problem: OperatorProblem) -> OperatorPlan:
        """The given plan on the whole cluster, else a new one."""
        if self.plan is not None and not self.membership.lost:
            return self.plan
        return self.replanner.whole(problem)

    def _replay(self, session: Session, step: int) -> None:
        """Repeat the steps that were counted after the snapshot, which was made after `step`."""
        for _, batch in self.past.counted_after(step):
            self.scalars = self._one(session, batch, watched=False).scalars

    def _advance(self, batch: Batch | None) -> None:
        """One step that counts, and what is due after it."""
        session, adaptation = self._crew()
        watched = self.adapt and adaptation.watches_next
        record = self._one(session, batch, watched=watched)
        self.past.counted += 1
        self.saving.stepped()
        self.scalars = record.scalars
        self.timeline.stepped(record.duration_s, record.scalars)
        if self.adapt:
            adaptation.stepped(record, watched, self.done, self.steps - self.done)
            if self.rivals and adaptation.tryout is None and not self.membership.lost:
                self.plan, self.rivals = adaptation.plan, ()
        self._rejoin()

    def _one(self, session: Session, batch: Batch | None, *, watched: bool) -> StepRecord:
        """What the workers saw of one step."""
        if batch is not None:
            session.feed(batch)
        limit_s = self.patience.step_limit_s(self.timeline, self._crew()[1])
        (record,) = session.run(1, watched=watched, limit_s=limit_s)
        return record

    def _crew(self) -> tuple[Session, Adaptation]:
        """The workers that are up, and who watches them."""
        if self.session is None or self.adaptation is None:
            raise RunError("the run has not begun", hint="call step() first")
        return self.session, self.adaptation

    def _fault(self, error: PlacewrightError) -> None:
        """Find out who is gone; the next `_start` goes on with the others."""
        dead = set() if self.session is None else self.session.lost()
        self._dismiss()
        gone = self.membership.missed(dead, error, self.done)
        who = self.membership.told(gone) if gone else "nobody is gone: tried again"
        self.timeline.note(self.done, Kind.FAULT, f"{who} ({error.where}: {error.what})")
        if not self.alive():
            raise InfeasibleError(
                "no device is left", where=self.job.cluster.name, hint="bring a device back"
            ) from error

    def _rejoin(self) -> None:
        """Take lost devices back that answer again."""
        back = self.membership.back(self.done)
        if not back:
            return
        self.saving.save(*self._crew())
        self._dismiss()
        self.membership.rejoin(back, self.done)
        self.timeline.note(self.done, Kind.JOIN, ", ".join(sorted(back)))
