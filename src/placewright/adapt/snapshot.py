"""Snapshots of a training run, and the batch of every step since the oldest of them.

A snapshot is a folder ``step-00000042`` with one safetensors file per worker and a
``snapshot.json``. It is written under another name, forced to the disk and renamed: a run that
is killed at any moment leaves the last complete one behind.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from placewright.adapt.timeline import Kind, Timeline
from placewright.errors import InputError, RunError, WorkerError
from placewright.graph.graph import TensorSpec
from placewright.io.boundary import open_file, parse_json, read_text
from placewright.io.stored import behind_links, to_disk
from placewright.io.tensor_files import write_tensors
from placewright.ownership import other_writers

SCHEMA_VERSION = 1
_DAMAGED = (
    InputError,
    ValueError,
    OverflowError,
    KeyError,
    TypeError,
    AttributeError,
    SafetensorError,
)
NOTE = "snapshot.json"

KEPT = 2
"""Snapshots of a run: where the last one is damaged, the run goes on from the one before."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a run after a step.

    Attributes
    ----------
    step
        Steps done, each with one batch of the loader.
    state
        Everything that the steps change, by program input: parameters, buffers, optimizer state.
    random_state
        Of the generator that draws the step's random numbers.
    placement
        Operator -> device that was in force.
    notes
        What the process of the loop keeps: learning rates, scales, states of schedulers.
    """

    step: int
    state: Mapping[str, torch.Tensor]
    random_state: bytes
    placement: Mapping[str, str]
    notes: Mapping[str, Any] = field(default_factory=dict)


class SnapshotFolder:
    """The snapshots of one run, the last `KEPT` of them.

    `damaged`: newer snapshots that `latest` had to pass over.

    Parameters
    ----------
    graph_name
        Written into each one; a snapshot of another model is refused.
    changing
        What a snapshot of this model holds, by program input; one that holds anything else is
        of another model, whatever its name.
    """

    def __init__(self, path: Path, graph_name: str, changing: Mapping[str, TensorSpec]) -> None:
        self.path, self.graph_name, self.changing = path, graph_name, changing
        self.damaged: list[str] = []
        _make(path)

    def begin(self, step: int, needed_bytes: int = 0) -> Path:
        """Create a folder that does not count yet: write the state there, then `commit`.

        Raises `OSError`: the disk has less than `needed_bytes` left, or does not take a folder.
        """
        self.give_up()
        if shutil.disk_usage(self.path).free < needed_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        folder = self.path / f"unfinished-{step:08d}"
        folder.mkdir()
        return folder

    def give_up(self) -> None:
        """Remove snapshots that were begun and not committed."""
        for stale in self._named("unfinished"):
            shutil.rmtree(stale)

    def commit(
        self,
        folder: Path,
        *,
        step: int,
        random_state: bytes,
        placement: Mapping[str, str],
        notes: Mapping[str, Any] = MappingProxyType({}),
    ) -> Path:
        """Make the state in `folder` the run's last snapshot by one rename."""
        files = sorted(folder.glob("*.safetensors"))
        note = {
            "schema_version": SCHEMA_VERSION,
            "graph": self.graph_name,
            "step": step,
            "random_state": base64.b64encode(random_state).decode(),
            "placement": dict(placement),
            "notes": dict(notes),
            "files": {file.name: _digest(file) for file in files},
        }
        (folder / NOTE).write_text(json.dumps(note), encoding="utf-8")
        # Contents before names: after a power failure a renamed folder must not hold empty files.
        # The folder's own entry is forced to the disk behind the rename.
        for file in (*files, folder / NOTE, folder):
            to_disk(file)
        target = self.path / f"step-{step:08d}"
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)
        to_disk(self.path)
        for other in self.whole():
            if _number(other) > step:  # damaged, as `latest` has passed over it: none to be kept
                shutil.rmtree(other)
        for old in self.whole()[:-KEPT]:
            shutil.rmtree(old)
        return target

    def whole(self) -> list[Path]:
        """Committed snapshots, oldest first."""
        return self._named("step")

    def oldest(self) -> int:
        """The step of the oldest snapshot, 0 where there is none."""
        return next((_number(folder) for folder in self.whole()), 0)

    def latest(self) -> Snapshot | None:
        """The newest snapshot that is undamaged, ``None`` where none was ever written.

        Raises `InputError`: the snapshots are of another model, or all of them are damaged.
        """
        self.damaged = []
        for folder in reversed(self.whole()):
            found = self._read(folder)
            if found is not None:
                return found
            self.damaged.append(folder.name)
        if self.damaged:
            raise InputError(
                "no snapshot is undamaged",
                where=str(self.path),
                by=f"{', '.join(self.damaged)}: files are missing or differ from their checksums",
                hint="bring a copy back, or name another folder to begin anew",
            )
        return None

    def _read(self, folder: Path) -> Snapshot | None:
        try:
            note = parse_json(read_text(folder / NOTE), where=str(folder / NOTE))
            graph = note["graph"]
            if any(_digest(folder / name) != sum_ for name, sum_ in _plain_names(note)):
                return None
            state: dict[str, torch.Tensor] = {}
            for name, _ in _plain_names(note):
                state.update(load_file(folder / name))
            snapshot = Snapshot(
                step=int(note["step"]),
                state=state,
                random_state=base64.b64decode(note["random_state"]),
                placement=dict(note["placement"]),
                notes=dict(note.get("notes", {})),
            )
        except (OSError, *_DAMAGED):
            return None
        if graph != self.graph_name:
            raise InputError(
                f"the snapshot is of {graph!r} and the model is {self.graph_name!r}",
                where=str(folder),
                hint="give every run a snapshot folder of its own",
            )
        check_same_model(state, self.changing, str(folder))
        return snapshot

    def _named(self, word: str) -> list[Path]:
        """Snapshot folders by step; all other files are left alone."""
        ours = (p for p in self.path.iterdir() if re.fullmatch(word + r"-\d{8,}", p.name))
        return sorted(ours, key=_number)


def _make(folder: Path) -> None:
    """Make a folder unless it is there; `InputError` where its path cannot be one's."""
    try:
        behind_links(folder)  # none of another user's
        folder.mkdir(parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise InputError(
            f"no folder can be made: {error.strerror}",
            where=f"{str(folder)!r:.200}",
            hint="name one where you may write",
        ) from None
    if owner not in (os.geteuid(), 0) and (writers := other_writers(folder)):
        raise InputError(
            "a folder of snapshots is another user's, and what a run goes on from is not his alone",
            where=f"{str(folder)!r:.200}",
            by=f"it belongs to user {owner}, and {writers} may write to it",
            hint="name a folder of your own",
        )


def check_same_model(
    state: Mapping[str, torch.Tensor], changing: Mapping[str, TensorSpec], where: str
) -> None:
    """Raise unless a snapshot holds exactly what this model's steps change, shape by shape.

    Raises `InputError`: the first tensor that only one of them has, or that differs.

    `state`: of the snapshot.
    `changing`: of the model: parameters, buffers and optimizer state by program input.
    """
    for name in sorted(state.keys() | changing.keys()):
        theirs, ours = _described(state.get(name)), _described(changing.get(name))
        if theirs != ours:
            raise InputError(
                "the snapshot is of another model or optimizer",
                where=where,
                by=f"{name!r}: {theirs} in the snapshot, {ours} in the model",
                hint="give every model a snapshot folder of its own",
            )


def _described(tensor: torch.Tensor | TensorSpec | None) -> str:
    if tensor is None:
        return "not there"
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _number(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _plain_names(note: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """File names and checksums; a name with a path in it is refused."""
    names = sorted(note["files"].items())
    if any(Path(name).name != name for name, _ in names):
        raise ValueError("a snapshot's files lie in its folder")
    return names


def _digest(file: Path) -> str:
    with open_file(file) as stream:  # a snapshot's folder may come from elsewhere
        return hashlib.file_digest(stream, "blake2b").hexdigest()


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
        _make(folder)
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
