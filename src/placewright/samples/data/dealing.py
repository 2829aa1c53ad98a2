"""Samples dealt out to the nodes: a file each, in a folder per node; samples by node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from placewright.errors import RunError
from placewright.numerics.arrays import IntArray
from placewright.samples.data.shards import Shard
from placewright.samples.problem import SampleProblem

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
    Raises `RunError`: there are fewer than the nodes hold.
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
            raise RunError(
                "the data set has too few samples", by=f"{len(piles[c])} for {wanted} samples{what}"
            )
    return [iter(pile) for pile in piles]
