"""A few files move over a testbed's links: how much longer than the links alone that takes.

Reading, checking and writing files takes CPU time, of which a node with a quota has little.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.samples.data.dealing import deal
from placewright.samples.data.images import images
from placewright.samples.moving.move import move
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem
from placewright.testbed.node_handle import NodeHandle

FILES = 64
"""That each node sends to the next."""


def slowed(problem: SampleProblem, handles: Sequence[NodeHandle], folder: Path) -> FloatArray:
    """Shape (n,): how many times as long as its link says a sample takes from each node; >= 1.

    Every second node sends at a time, as nodes that give seldom take. A node without a link to
    the next is taken to be as fast as its link.
    """
    n = problem.n
    link_s = np.maximum(problem.send_s, problem.receive_s)
    times = np.ones(n)
    for turn in (0, 1):
        source = np.array([i for i in range(turn, n, 2) if np.isfinite(link_s[i, (i + 1) % n])])
        if not len(source):
            continue
        target = (source + 1) % n
        taken_s = files_moved(
            problem,
            SamplePlan(source, target, np.full(len(source), FILES)),
            handles,
            folder / f"{turn}",
        )
        times[source] = np.maximum(taken_s[source, target] / link_s[source, target], 1.0)
    return times


def files_moved(
    problem: SampleProblem, plan: SamplePlan, handles: Sequence[NodeHandle], folder: Path
) -> FloatArray:
    """Seconds of one sample, shape (n, n), of files that nobody keeps; ``nan`` where none go."""
    n = problem.n
    most = int(np.bincount(plan.source, plan.count, minlength=n).max())
    trial = problem.replace(
        samples=np.full((n, 1), most),
        keep=np.zeros((n, 1), dtype=np.int64),
        storage=np.full(n, np.inf),
        class_names=("samples",),
    )
    shards, digests = deal(trial, images(n * most), folder, file_bytes=problem.sample_bytes)
    return move(trial, plan, shards, digests, handles=handles).sample_s
