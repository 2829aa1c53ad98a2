"""A node's samples on disk: a file each, moved so that each is always on exactly one node.

A sample that arrives is written beside its place, checked, renamed, and only then noted in the
journal; from there on it is the receiver's, and a second copy on the way is thrown away. The
sender deletes its own once the receiver has confirmed it. Whatever dies in between, sending again
ends with one copy.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from placewright.errors import InputError, RunError
from placewright.io.output import cut_torn_line, naming
from placewright.numerics.arrays import IntArray
from placewright.samples.problem import SampleProblem

FRAME_BYTES = 256
"""What filling adds to a file besides itself."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The samples of one node, in one folder.

    `noted`: samples in the journal, by transfer, once they have been read; one process writes it.
    """

    folder: Path
    noted: dict[int, set[int]] = field(default_factory=dict, compare=False, repr=False)

    def create(self) -> None:
        """Make the folder."""
        for part in ("samples", "journal", "arriving"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)

    def forget(self) -> None:
        """Empty the journal: all is where it belongs, and transfers count from 0 again."""
        for note in (self.folder / "journal").iterdir():
            note.unlink()
        self.noted.clear()

    def put(
        self,
        sample: int,
        arrays: Sequence[npt.NDArray[Any]],
        label: int = 0,
        file_bytes: float = 0.0,
    ) -> str:
        """Write a sample's arrays and its class, filled up to `file_bytes`; the checksum."""
        held = {f"array{k}": array for k, array in enumerate(arrays)}
        content = _packed(label=np.int64(label), **held)
        missing = int(file_bytes) - FRAME_BYTES - len(content)
        if missing > 0:
            filling = np.zeros(missing, dtype=np.uint8)
            content = _packed(label=np.int64(label), **held, filling=filling)
        self._write(sample, content)
        return checksum(content)

    def samples(self) -> list[int]:
        """Which samples are here."""
        return sorted(int(p.stem) for p in (self.folder / "samples").iterdir())

    def read(self, sample: int) -> tuple[npt.NDArray[Any], ...]:
        """Its arrays."""
        with np.load(self._place(sample), allow_pickle=False) as file:
            count = sum(name.startswith("array") for name in file)
            return tuple(file[f"array{k}"] for k in range(count))

    def label(self, sample: int) -> int:
        """Its class."""
        with np.load(self._place(sample), allow_pickle=False) as file:
            return int(file["label"])

    def content(self, sample: int) -> bytes | None:
        """The file, ``None`` if the sample is not here."""
        try:
            return self._place(sample).read_bytes()
        except FileNotFoundError:
            return None

    def has(self, sample: int) -> bool:
        """Whether the sample is here."""
        return self._place(sample).exists()

    def arrived(self, transfer: int, sample: int) -> bool:
        """Whether, by the journal, this transfer brought the sample."""
        return sample in self._noted(transfer)

    def accept(self, transfer: int, sample: int, content: bytes, digest: str) -> None:
        """Take a sample over; a second copy of one that has arrived is thrown away.

        Raises `RunError`: the content is not what was sent.
        """
        if self.arrived(transfer, sample):
            return
        if checksum(content) != digest:
            raise RunError(f"sample {sample} arrived damaged", where=str(self.folder))
        self._write(sample, content)
        # Behind the file: noted and not there would be a sample that was sent on, and its sender's
        # copy would be thrown away.
        # A file for each note would take longer than writing a small sample.
        try:
            with self._note(transfer).open("ab") as note:
                note.write(b"%d\n" % sample)
        except OSError:  # a full disk may have taken a part of the line: read it again
            self.noted.pop(transfer, None)
            raise
        self._noted(transfer).add(sample)

    def drop(self, sample: int) -> None:
        """Delete a sample that another node has."""
        self._place(sample).unlink(missing_ok=True)

    def _write(self, sample: int, content: bytes) -> None:
        beside = self.folder / "arriving" / f"{sample:d}.npz"
        with naming(beside):
            beside.write_bytes(content)
        # Atomic: what is in its place is whole, whenever the process dies.
        os.replace(beside, self._place(sample))

    def _place(self, sample: int) -> Path:
        return self.folder / "samples" / f"{sample:d}.npz"

    def _noted(self, transfer: int) -> set[int]:
        """What the journal of a transfer has; a line that was not written to its end is cut off."""
        if transfer not in self.noted:
            lines, path = b"", self._note(transfer)
            with suppress(FileNotFoundError):
                cut_torn_line(path)
                lines = path.read_bytes()
            return self.noted.setdefault(transfer, {*map(int, lines.split())})
        return self.noted[transfer]

    def _note(self, transfer: int) -> Path:
        return self.folder / "journal" / f"{transfer:d}"


def _packed(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def checksum(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def audit(shards: list[Shard], digests: dict[int, str]) -> None:
    """Every sample on exactly one node, unharmed.

    Raises `RunError`, which names the first sample that is lost, doubled or damaged.
    """
    seen: dict[int, Shard] = {}
    for shard in shards:
        for sample in shard.samples():
            if sample in seen:
                both = f"{seen[sample].folder.name} and {shard.folder.name}"
                raise RunError(f"sample {sample} is on two nodes", where=both)
            seen[sample] = shard
            if checksum(shard.content(sample) or b"") != digests[sample]:
                raise RunError(f"sample {sample} is damaged", where=shard.folder.name)
    lost = sorted(set(digests) - set(seen))
    if lost:
        raise RunError(f"sample {lost[0]} is lost", by=f"{len(lost)} samples are")


Held = list[list[list[int]]]
"""Sample numbers by node and class."""

MOST_CHARACTERS = 48
"""Of a node's name in the name of its folder."""


class Dealt(Protocol):
    """Samples by number, which nodes get."""

    def __len__(self) -> int: ...

    def arrays(self, k: int) -> Sequence[np.ndarray[Any, Any]]:
        """Tensors of a sample."""
        ...

    def label(self, k: int) -> int:
        """Its class, where the problem has several."""
        ...


def deal(
    problem: SampleProblem, data: Dealt, folder: Path, *, file_bytes: float = 0.0
) -> tuple[list[Shard], dict[int, str]]:
    """Each node's samples as files in a folder of its own, and all checksums.

    Sample numbers count through the nodes; with classes, class c has the samples of label c.

    `file_bytes`: files are filled up to this size, as what a camera keeps is larger than what
    the network looks at.
    Raises `InputError`: there are fewer than the nodes hold.
    """
    piles = _piles(problem, data)
    shards, digests, sample = [], {}, 0
    for i, name in enumerate(problem.node_names):
        # Names are free text from a file: none of it may lead out of the folder.
        plain = re.sub(r"[^\w-]", "_", name)[:MOST_CHARACTERS]
        shard = Shard(folder / f"{i}-{plain}")
        shard.create()
        for c in range(problem.k):
            for _ in range(int(problem.samples[i, c])):
                arrays = data.arrays(next(piles[c]))
                digests[sample] = shard.put(sample, arrays, c, file_bytes)
                sample += 1
        shards.append(shard)
    return shards, digests


def held_by(problem: SampleProblem, shards: list[Shard]) -> Held:
    """What is where now; the label is the class where there are several."""
    held: Held = [[[] for _ in range(problem.k)] for _ in shards]
    for node, shard in zip(held, shards, strict=True):
        for sample in shard.samples():
            node[shard.label(sample) if problem.k > 1 else 0].append(sample)
    return held


def counted(held: Held) -> IntArray:
    """Shape (n, k): how many."""
    return np.array([[len(samples) for samples in node] for node in held], dtype=np.int64)


def numbered(problem: SampleProblem) -> Held:
    """What `deal` deals: numbers in order, through nodes and classes."""
    held, first = [], 0
    for counts in problem.samples.tolist():
        node = []
        for count in counts:
            node.append(list(range(first, first + count)))
            first += count
        held.append(node)
    return held


def _piles(problem: SampleProblem, data: Dealt) -> list[Iterator[int]]:
    """Positions of the samples of each class."""
    if problem.k == 1:
        piles = [list(range(len(data)))]
    else:
        piles = [[] for _ in range(problem.k)]
        for k in range(len(data)):
            if 0 <= (label := data.label(k)) < problem.k:
                piles[label].append(k)
    for c, wanted in enumerate(problem.samples.sum(axis=0).tolist()):
        if len(piles[c]) < wanted:
            what = f" of class {problem.class_names[c]}" if problem.k > 1 else ""
            raise InputError(
                "the data set has too few samples",
                where=problem.name,
                by=f"{len(piles[c])} for {wanted} samples{what}",
                hint="give more samples, or let the nodes hold as many as there are",
            )
    return [iter(pile) for pile in piles]
