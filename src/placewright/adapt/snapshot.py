"""Snapshots: all that a training run needs to go on elsewhere, written atomically.

A snapshot is a folder ``step-00000042`` with one safetensors file per worker and a
``snapshot.json``. It is written under another name, forced to the disk and renamed: a run that
is killed at any moment leaves the last complete one behind.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from placewright.errors import InputError
from placewright.graph.graph import TensorSpec
from placewright.io.boundary import open_file, parse_json, read_text
from placewright.io.stored import to_disk

SCHEMA_VERSION = 1
_DAMAGED = (InputError, ValueError, KeyError, TypeError, AttributeError, SafetensorError)
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
        path.mkdir(parents=True, exist_ok=True)

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
