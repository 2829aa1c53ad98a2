"""Images dealt out to the nodes: a file each, in a folder per node; samples by node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from placewright.errors import RunError
from placewright.numerics.arrays import IntArray
from placewright.samples.data.images import Images
from placewright.samples.data.shards import Shard
from placewright.samples.problem import SampleProblem

Held = list[list[list[int]]]
"""Sample numbers by node and class."""

MOST_CHARACTERS = 48
"""Of a node's name in the name of its folder."""


def deal(
    problem: SampleProblem, data: Images, folder: Path, *, file_bytes: float = 0.0
) -> tuple[list[Shard], dict[int, str]]:
    """Each node's samples as files in a folder of its own, and all checksums.

    Sample numbers count through the nodes; with classes, class c has the images of label c.

    `file_bytes`: files are filled up to this size, as the pictures of a camera are larger than what
    the network looks at.
    Raises `RunError`: there are fewer images than samples.
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
                at = next(piles[c])
                label = int(data.labels[at])
                digests[sample] = shard.put(sample, data.pixels[at], label, file_bytes)
                sample += 1
        shards.append(shard)
    return shards, digests


def held_by(problem: SampleProblem, shards: list[Shard]) -> Held:
    """What is where now; the label is the class where there are several."""
    held: Held = [[[] for _ in range(problem.k)] for _ in shards]
    for node, shard in zip(held, shards, strict=True):
        for sample in shard.samples():
            node[shard.read(sample)[1] if problem.k > 1 else 0].append(sample)
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


def _piles(problem: SampleProblem, data: Images) -> list[Iterator[int]]:
    """Positions of the images of each class."""
    if problem.k == 1:
        piles = [list(range(len(data)))]
    else:
        piles = [np.flatnonzero(data.labels == c).tolist() for c in range(problem.k)]
    for c, wanted in enumerate(problem.samples.sum(axis=0).tolist()):
        if len(piles[c]) < wanted:
            what = f" of class {problem.class_names[c]}" if problem.k > 1 else ""
            raise RunError(
                "there are too few images", by=f"{len(piles[c])} for {wanted} samples{what}"
            )
    return [iter(pile) for pile in piles]
