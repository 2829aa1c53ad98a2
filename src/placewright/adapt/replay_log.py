"""What a run can go back to: its snapshots, and the batch of every step since the oldest one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from placewright.adapt.adaptation import Adaptation
from placewright.adapt.folder_lock import FolderLock
from placewright.adapt.job import Batch, Job
from placewright.adapt.snapshot import SnapshotFolder
from placewright.errors import RunError
from placewright.runtime.session import Session


@dataclass(slots=True)
class ReplayLog:
    """Enough to be again where the run was.

    Attributes
    ----------
    claim
        On the folder.
    counted
        Steps that have been counted; after a fault they are repeated and not counted again.
    saved
        The step of the last snapshot.
    """

    snapshots: SnapshotFolder
    claim: FolderLock
    counted: int = 0
    saved: int = 0
    _batches: dict[int, Batch | None] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, job: Job) -> Self:
        """The past of a run in `folder`, which goes on where the last snapshot there was.

        Raises
        ------
        InputError
            The folder is another run's, or another model's, or nothing in it is undamaged.
        """
        claim = FolderLock(folder)
        snapshots = SnapshotFolder(folder, job.graph.name, job.changing)
        try:
            found = snapshots.latest()
        except BaseException:
            claim.release()
            raise
        step = 0 if found is None else found.step
        return cls(snapshots, claim, step, step)

    def take(self, step: int, batch: Batch | None) -> None:
        """Remember the batch of a step that is about to be done: a copy, buffers are reused."""
        if batch is not None:
            batch = {n: t.detach().to("cpu", copy=True) for n, t in batch.items()}
        self._batches[step] = batch

    def batch(self, step: int) -> Batch | None:
        """What the step takes."""
        return self._batches[step]

    def counted_after(self, step: int) -> list[tuple[int, Batch | None]]:
        """The steps to repeat where the workers stand after `step`, with their batches.

        Raises
        ------
        RunError
            They cannot all be repeated.
        """
        steps = range(step + 1, self.counted + 1)
        if step > self.counted or any(s not in self._batches for s in steps):
            raise RunError(
                "the run cannot be repeated from its last snapshot",
                where=f"{self.snapshots.path}: step {step}",
                by=f"the run was at step {self.counted} and remembers the batches of "
                f"{len(self._batches)} steps",
                hint="run again in this folder: it goes on from that snapshot",
            )
        return [(s, self._batches[s]) for s in steps]

    def save(self, job: Job, session: Session, adaptation: Adaptation, step: int) -> None:
        """Write down where the run stands; steps before the oldest snapshot are forgotten.

        Raises
        ------
        OSError
            The disk does not take it; nothing of it is left, and nothing is forgotten.
        WorkerError
            A worker was lost meanwhile.
        """
        try:
            self._write(job, session, adaptation, step)
        except OSError:
            self.snapshots.give_up()
            raise
        self.saved, oldest = step, self.snapshots.oldest()
        self._batches = {s: batch for s, batch in self._batches.items() if s > oldest}

    def _write(self, job: Job, session: Session, adaptation: Adaptation, step: int) -> None:
        folder = self.snapshots.begin(step, job.state_bytes)
        session.save_state(folder)
        names = adaptation.problem.device_names
        placement = [names[d] for d in adaptation.plan.placement]
        self.snapshots.commit(
            folder,
            step=step,
            random_state=session.random_state(),
            placement=dict(zip(job.graph.operator_names, placement, strict=True)),
        )
