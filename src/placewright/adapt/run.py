"""Fault-tolerant run: steps, snapshots, lost and returning nodes, for any wing.

A wing's run derives from `FaultTolerantRun` and says how its workers are started, how a step is
done, and how they are ended. The guarantee: whatever is lost meanwhile, the state after a step is
the one that an undisturbed run has after it, as steps are repeated from the last snapshot.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from placewright.adapt.membership import Membership
from placewright.adapt.snapshot import (
    Batch,
    ReplayLog,
    RunningJob,
    Snapshot,
    SnapshotFolder,
    SnapshotSchedule,
    TrainingJob,
)
from placewright.adapt.timeline import Kind, Timeline
from placewright.cluster.cluster import Cluster
from placewright.errors import (
    InfeasibleError,
    PlacewrightError,
    RunError,
    WorkerError,
    WorkerLostError,
)
from placewright.runtime.limits import SILENCE_STEPS, patience

if TYPE_CHECKING:
    from torch import Tensor

LAST = 20
"""Steps whose median is a typical one."""


@dataclass(slots=True)
class StepTimeout:
    """Allows many typical steps of the plan in force.

    Before a plan's first step its prediction stands for a typical one, times what the plan before
    took over its own prediction: the nodes that are left may be a hundred times slower than all
    were.

    `least_s`: seconds that every step may take.
    """

    least_s: float
    _plan: int = -1
    _predicted_s: float = math.nan
    _factor: float = 1.0

    def step_limit_s(self, timeline: Timeline, predicted_s: Callable[[], float]) -> float:
        """Seconds after which a step of the plan in force is stuck.

        `predicted_s`: predicts a step of the plan in force; called once per plan.
        """
        if timeline.plans != self._plan:
            took_s = timeline.typical_s(LAST, plan=self._plan)
            if took_s > 0 and self._predicted_s > 0:
                # Never below 1: that a plan beat its prediction says nothing of the next one's.
                self._factor = max(1.0, took_s / self._predicted_s)
            self._plan, self._predicted_s = timeline.plans, predicted_s()
        own_s = timeline.typical_s(LAST, plan=self._plan)
        typical_s = self._factor * self._predicted_s if math.isnan(own_s) else own_s
        return patience(max(self.least_s, SILENCE_STEPS * typical_s))


T = TypeVar("T")

MEASURED_AGAIN = 2
"""Times that a measurement is begun again which has lost a worker."""

MOST_CHARACTERS = 300
"""Of an error in an event."""


def measured_despite_losses(work: Callable[[], T], note: Callable[[str], object]) -> T:
    """What `work` measures before anything is trained, done again where a worker is lost meanwhile.

    Raises `WorkerLostError`: for the third time.

    Parameters
    ----------
    work
        Starts workers where there are none.
    note
        Takes what was lost, in words.
    """
    for _ in range(MEASURED_AGAIN):
        try:
            return work()
        except WorkerLostError as error:
            note(f"{error.where}: {error.what}, {error.by}: another one is started")
    return work()


class DistributedJob(TrainingJob):
    """A model that is trained on the devices of a cluster."""

    cluster: Cluster

    @property
    def node_names(self) -> tuple[str, ...]:
        """All nodes, in the cluster's order."""
        return self.cluster.device_names

    @property
    def reachable(self) -> Callable[[Sequence[str]], Collection[str]]:
        """Which of the named nodes can all talk to each other now; all where nobody can tell."""
        return frozenset


class WorkerSession(Protocol):
    """Workers that are up."""

    def lost(self) -> Collection[str]:
        """Nodes whose worker has ended."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> object:
        """End them."""


Workers = TypeVar("Workers", bound=WorkerSession)


@dataclass
class FaultTolerantRun(ABC, Generic[Workers]):
    """A context manager; `step` does one training step, whatever happens meanwhile.

    Attributes
    ----------
    folder
        Where snapshots go.
    snapshot_every, rejoin_every
        Steps between two snapshots, and before a node that was lost once is looked for.
    patience_s
        No step is given up before it has taken so many seconds.
    session
        The workers, ``None`` where none are up; the run ends them.
    random
        State of the generator after the last step, where its batch brought the one before.
    """

    job: DistributedJob
    folder: Path
    snapshot_every: int = 50
    rejoin_every: int = 20
    patience_s: float = 10.0
    timeline: Timeline = field(default_factory=Timeline)
    membership: Membership = field(init=False)
    timeout: StepTimeout = field(init=False)
    log: ReplayLog = field(init=False)
    snapshot_schedule: SnapshotSchedule = field(init=False)
    session: Workers | None = field(default=None, kw_only=True)
    random: bytes = field(default=b"", kw_only=True)

    def __post_init__(self) -> None:
        names, reachable = self.job.node_names, self.job.reachable
        self.membership = Membership(names, reachable, self.rejoin_every)
        self.timeout = StepTimeout(self.patience_s)
        self.log = ReplayLog.of(self.folder, self.job)
        self.snapshot_schedule = SnapshotSchedule(self.log, self.timeline, self.snapshot_every)
        self.timeline.first_step = self.done

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Everything that the steps have changed, by name."""

    @abstractmethod
    def _load(self, snapshot: Snapshot | None) -> None:
        """Start workers on the nodes that are alive, with a plan, from a snapshot or the start."""

    @abstractmethod
    def _repeat(self, batch: Batch | None) -> None:
        """Do a step again that was counted before."""

    def _start(self) -> None:
        """Start workers, restored to the last counted step."""
        start, lost = time.perf_counter(), self.session is None
        snapshot = self.snapshots.latest()
        self._load(snapshot)
        step = 0 if snapshot is None else snapshot.step
        self.timeline.plans += 1
        if self.timeline.plans > 1 and lost:
            seconds = time.perf_counter() - start
            self.timeline.note(step, Kind.RECOVER, f"on {', '.join(self.alive())}", seconds=seconds)
        for _, batch in self.log.counted_after(step):
            self._repeat(batch)

    def _dismiss(self) -> None:
        """End the workers, if there are any."""
        if self.session is not None:
            session, self.session = self.session, None
            session.__exit__(RunError, None, None)

    def _keep(self) -> None:
        """Fetch what only the workers have and no snapshot; they are about to be dismissed."""

    def _lost(self) -> Collection[str]:
        """Nodes whose worker has ended."""
        return set() if self.session is None else self.session.lost()

    def _workers(self) -> Workers:
        """Those that are up.

        Raises `RunError`: none are.
        """
        if self.session is None:
            raise RunError("the run has not begun", hint="call step() first")
        return self.session

    def _spared(self, error: PlacewrightError) -> set[str]:
        """Nodes that take part again at once, as another plan mends what their workers ended by."""
        return set()

    @abstractmethod
    def _running(self) -> RunningJob | None:
        """The workers and the plan in force; ``None`` where none are up."""

    @abstractmethod
    def _advance(self, batch: Batch | None) -> None:
        """Do one step that counts and call `_counted`."""

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """End the run; what the snapshots hold stays, and another run may have the folder."""
        self._dismiss()
        self.log.lock.release()

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether the run has ended."""
        return self.log.lock.released

    @property
    def done(self) -> int:
        """Steps so far."""
        return self.log.counted

    @property
    def snapshots(self) -> SnapshotFolder:
        """The run's folder, and which snapshots in it were damaged."""
        return self.log.snapshots

    def alive(self) -> tuple[str, ...]:
        """Nodes that are not lost."""
        return self.membership.alive()

    def step(self, batch: Batch | None = None) -> float:
        """One step of training, on `batch` or on what the model was captured with; its seconds.

        A Ctrl-C takes effect when the step is done, a second one at once.

        Raises `InfeasibleError`: the model does not fit on the nodes that are left.
        Raises `RunError`: the run is closed.
        Raises `WorkerError`: the step fails although no node is gone.
        """
        goal = self.done + 1
        self.log.take(goal, batch)
        self._survive(goal, lambda: self.snapshot_schedule.catch_up(self._up()))
        return self.timeline.step_s[-1]

    def finish(self) -> None:
        """Write a last snapshot.

        Raises `RunError`: the disk does not take it.
        """
        if self.log.saved == self.done:
            return
        if not self._survive(self.done, lambda: self.snapshot_schedule.save(self._up())):
            raise RunError(
                f"the last snapshot is not written: {self.timeline.events[-1].text}",
                where=f"step {self.done}",
                hint="free space; the snapshots before it are complete",
            )

    def _up(self) -> RunningJob:
        running = self._running()
        if running is None:
            raise RunError("the run has not begun", hint="call step() first")
        return running

    def _counted(self) -> None:
        """Take in that a step has been done for the first time."""
        self.log.counted += 1
        self.snapshot_schedule.stepped()

    def _survive(self, goal: int, then: Callable[[], T]) -> T:
        """Bring the run to `goal` steps and do what comes `then`, again after every fault.

        While there are workers they stand where the run does and owe no answer: whatever breaks
        this off in the middle ends them, and the next call starts others.
        """
        if self.closed:
            raise RunError(
                "the run is closed",
                where=str(self.folder),
                by=f"after step {self.done}",
                hint="begin another one: it goes on from the snapshots where a folder is given",
            )
        with interrupts_wait():
            try:
                return self._until_done(goal, then)
            except BaseException:
                self._dismiss()
                raise

    def _until_done(self, goal: int, then: Callable[[], T]) -> T:
        while True:
            try:
                if self._running() is None:
                    self._start()
                    self.membership.started()
                # A fault behind `_counted` leaves the step counted: the next start repeats it from
                # the snapshot, and it is not counted twice.
                while self.done < goal:
                    self._advance(self.log.batch(goal))
                    self._rejoin()
                if self._running() is not None:
                    found = then()
                    self.membership.completed()
                    return found
            except PlacewrightError as error:
                # With newcomers any error may be theirs: a device that has come back may have other
                # software, or less memory.
                if not (isinstance(error, WorkerError) or self.membership.newcomers):
                    raise
                self._fault(error)

    def _fault(self, error: PlacewrightError) -> None:
        """Find out which nodes are gone; the next `_start` goes on with the others."""
        spared = self._spared(error)
        dead = set(self._lost()) - spared
        self._dismiss()
        gone = self.membership.strike(dead, error, self.done)
        losses = self.membership.losses(gone) if gone else "no node is gone: tried again"
        if spared:
            losses += f"; planned again with less memory on {', '.join(sorted(spared))}"
        why = f"{error.where}: {error.what}" + (f", {error.by}" if error.by else "")
        self.timeline.note(self.done, Kind.FAULT, f"{losses} ({why[:MOST_CHARACTERS]})")
        if not self.alive() and (back := self.membership.revive(self.done)):
            self.timeline.note(self.done, Kind.JOIN, f"{', '.join(sorted(back))}: all were lost")
        if not self.alive():
            raise InfeasibleError(
                "no device is left",
                where=", ".join(self.membership.names),
                by=f"lost in step {self.done + 1}; the last snapshot is of step {self.log.saved}",
                hint="bring a device back and start again: a run in the same folder of snapshots "
                "goes on from there, one without a folder begins anew",
            ) from error

    def _rejoin(self) -> None:
        """Take lost nodes back that answer again."""
        back = self.membership.back(self.done)
        if not back:
            return
        # So that the start with the nodes that are back repeats nothing.
        self.snapshot_schedule.save(self._up())
        self._keep()
        self._dismiss()
        self.membership.rejoin(back, self.done)
        self.timeline.note(self.done, Kind.JOIN, ", ".join(sorted(back)))


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let the block end before a Ctrl-C within it becomes a `KeyboardInterrupt`.

    A second Ctrl-C interrupts at once, also in such a block within this one. Nothing changes in
    threads, which get none, and where the caller handles the signal in a way of its own.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        signal.signal(signal.SIGINT, _interrupt)  # not the default: an inner block would wait
        pressed.append(number)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # In `finally`: also where the block ended by an error, which becomes the context of this
        # one.
        if pressed:
            raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
