"""Replay log: a run's snapshots, and the batch of every step since the oldest of them."""

from __future__ import annotations

import fcntl
import math
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from placewright.adapt.snapshot import SnapshotFolder
from placewright.adapt.timeline import Kind, Timeline
from placewright.errors import InputError, RunError, WorkerError
from placewright.graph.graph import TensorSpec
from placewright.io.tensor_files import write_tensors

Batch = Mapping[str, torch.Tensor]
"""Inputs and targets by program input."""

RANDOM = "random"
"""With a batch, the state of the random-number generator before its step."""

TRIES = 2
"""Times that one snapshot is begun where workers are lost over it."""


class TrainingJob(ABC):
    """What snapshots need to know of the model that is trained."""

    @property
    @abstractmethod
    def changing(self) -> Mapping[str, TensorSpec]:
        """What steps change, by program input."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the model."""

    @property
    def state_bytes(self) -> int:
        """Size of `changing`."""
        specs = self.changing.values()
        return sum(math.prod(s.shape) * getattr(torch, s.dtype).itemsize for s in specs)


class RunningJob(Protocol):
    """What a snapshot takes from the workers of a run."""

    def save_state(self, folder: Path) -> object:
        """Write everything that steps have changed into safetensors files."""

    def random_state(self) -> bytes:
        """State of the generator that draws the steps' random numbers."""

    def placement(self) -> Mapping[str, str]:
        """The plan in force, by name."""


@dataclass(slots=True)
class ReplayLog:
    """Restores a run after a fault: load the latest snapshot, repeat the steps counted after it.

    Attributes
    ----------
    lock
        On the folder.
    counted
        Steps that have been counted; after a fault they are repeated and not counted again.
    saved
        The step of the last snapshot.
    notes
        Gives what the process of the loop keeps, for every snapshot.
    restored
        The notes of the snapshot that the run continues from.
    restored_random
        Its state of the generator.
    """

    job: TrainingJob
    snapshots: SnapshotFolder
    lock: FolderLock
    counted: int = 0
    saved: int = 0
    notes: Callable[[], Mapping[str, Any]] = dict
    restored: Mapping[str, Any] = field(default_factory=dict)
    restored_random: bytes = b""
    _batches: dict[int, Batch | None] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, job: TrainingJob) -> Self:
        """Open the log of a run in `folder`, which continues from the last snapshot there.

        Raises `InputError`: the folder is another run's, or another model's, or every snapshot in
        it is damaged.
        """
        lock = FolderLock(folder)
        snapshots = SnapshotFolder(folder, job.name, job.changing)
        try:
            found = snapshots.latest()
        except BaseException:
            lock.release()
            raise
        made = cls(job, snapshots, lock)
        if found is not None:
            made.counted = made.saved = found.step
            made.restored, made.restored_random = found.notes, found.random_state
        return made

    def take(self, step: int, batch: Batch | None) -> None:
        """Keep a copy of the batch of a step that is about to be done: buffers are reused."""
        if batch is not None:
            batch = {n: t.detach().to("cpu", copy=True) for n, t in batch.items()}
        self._batches[step] = batch

    def batch(self, step: int) -> Batch | None:
        """The batch of a step."""
        return self._batches[step]

    def counted_after(self, step: int) -> list[tuple[int, Batch | None]]:
        """The steps to repeat where the workers stand after `step`, with their batches.

        Raises `RunError`: they cannot all be repeated.
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

    def save(self, running: RunningJob, step: int) -> None:
        """Write a snapshot; the batches before the oldest snapshot are forgotten.

        Raises `OSError`: the disk does not take it; nothing of it is left, and nothing is
        forgotten.
        Raises `WorkerError`: a worker was lost meanwhile.
        """
        try:
            folder = self.snapshots.begin(step, self.job.state_bytes)
            running.save_state(folder)
            self.snapshots.commit(
                folder,
                step=step,
                random_state=running.random_state(),
                placement=running.placement(),
                notes=self.notes(),
            )
        except OSError:
            self.snapshots.give_up()
            raise
        # Of the oldest, not of this one: where this one turns out to be damaged, steps are repeated
        # from the one before.
        self.saved, oldest = step, self.snapshots.oldest()
        self._batches = {s: batch for s, batch in self._batches.items() if s > oldest}


@dataclass(frozen=True, slots=True)
class Replaced:
    """A running job whose state is given in place of what its workers have."""

    running: RunningJob
    state: Mapping[str, Any]

    def save_state(self, folder: Path) -> None:
        """Write the given state."""
        write_tensors(folder / "worker-0.safetensors", self.state)

    def random_state(self) -> bytes:
        """As the workers have it."""
        return self.running.random_state()

    def placement(self) -> Mapping[str, str]:
        """As in force."""
        return self.running.placement()


@dataclass(slots=True)
class SnapshotSchedule:
    """Writes the snapshots of a run; one that cannot be written is an event, not an error.

    `every`: steps between two snapshots.
    """

    log: ReplayLog
    timeline: Timeline
    every: int
    _tries: int = 0

    def stepped(self) -> None:
        """Take in that a step has been counted; a snapshot may be due."""
        if self.log.counted % self.every == 0:
            self._tries = TRIES

    def catch_up(self, running: RunningJob) -> None:
        """Write the snapshot that is due, if one is; after a fault try again, `TRIES` times in all.

        Raises `WorkerError`: a worker was lost meanwhile.
        """
        if self._tries == 0:
            return
        # Before the try: a worker that dies whenever a snapshot is written must not be asked for
        # ever.
        self._tries -= 1
        try:
            self.save(running)
        except WorkerError as error:
            if self._tries == 0:
                self._note_unsaved(error.what)
            raise
        self._tries = 0

    def save(self, running: RunningJob) -> bool:
        """Write a snapshot of the last counted step unless there is one; whether it is written.

        Where the disk does not take it the run goes on, and later steps can still be repeated from
        the last snapshot.

        Raises `WorkerError`: a worker was lost meanwhile.
        """
        step, start = self.log.counted, time.perf_counter()
        if self.log.saved == step:
            return True
        try:
            self.log.save(running, step)
        except OSError as error:
            self._note_unsaved(str(error.strerror or error))
            return False
        self.timeline.note(step, Kind.SNAPSHOT, "", seconds=time.perf_counter() - start)
        return True

    def _note_unsaved(self, why: str) -> None:
        folder = self.log.snapshots.path
        self.timeline.note(self.log.counted, Kind.UNSAVED, f"{folder}: {why}")


class FolderLock:
    """A lock on a folder, from when it is made until it is released or the process ends.

    Two runs in one folder would remove each other's unfinished snapshots, and after a fault one
    would go on from what the other has learned. The lock is the folder's own: it leaves no file
    and needs no room. Where the file system has no such locks (NFS) nothing is held.

    Raises `InputError`: another run holds it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        self._release = weakref.finalize(self, _release, handle, os.getpid())
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise InputError(
                "another run is using this folder",
                where=str(folder),
                hint="close that run, or give this one a folder of its own",
            ) from None
        except OSError:
            pass

    @property
    def released(self) -> bool:
        """Whether others may have the folder."""
        return not self._release.alive

    def release(self) -> None:
        """Let others have the folder; twice is fine."""
        self._release()


def _release(handle: int, owner: int) -> None:
    """Release the lock; a forked process shares it and only closes its own handle."""
    if os.getpid() == owner:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
