"""The nodes of a problem as devices of a testbed: CPU quotas, shaped links, files of real size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InputError
from placewright.samples.problem import SampleProblem
from placewright.testbed import Testbed
from placewright.testbed.node_handle import NodeHandle

SPARE_CORES = 0.4
"""For the emulator of the links and for what else the machine does."""

SMALLEST_FILE_BYTES = 1_000
"""An image with its label takes about half of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Nodes that are up: the testbed, and where each node's processes sit."""

    bed: Testbed
    handles: tuple[NodeHandle, ...]


@contextmanager
def nodes_up(problem: SampleProblem) -> Iterator[Nodes]:
    """Make the nodes of `problem` real for the length of a ``with`` block.

    Raises
    ------
    UnsupportedError
        No testbed can be made here; says what is missing.
    InputError
        The problem does not say how large a file is, or two nodes are not joined.
    """
    with Testbed.up(cluster_of(problem, len(os.sched_getaffinity(0)))) as bed:
        yield Nodes(bed, tuple(bed.handle(name) for name in problem.node_names))


def cluster_of(problem: SampleProblem, cores: int) -> Cluster:
    """The cluster that a testbed makes: speeds in the problem's proportions, its links.

    The fastest node gets a whole core, or as much as leaves `SPARE_CORES` of the machine.

    Raises
    ------
    InputError
        See `nodes_up`.
    """
    _refuse_unreal(problem)
    ratio = problem.seconds_per_sample.min() / problem.seconds_per_sample
    share = np.floor(1000 * ratio * min(1.0, (cores - SPARE_CORES) / ratio.sum())) / 1000
    devices = tuple(
        Device(name, node=name, speed=float(max(share[i], 0.001)))
        for i, name in enumerate(problem.node_names)
    )
    sample_s = np.maximum(problem.send_s, problem.receive_s)
    links = tuple(
        Link(
            problem.node_names[i],
            problem.node_names[j],
            float(problem.sample_bytes / sample_s[i, j]),
            float(problem.latency_s[i, j]),
        )
        for i, j in np.argwhere(np.isfinite(sample_s)).tolist()
    )
    return Cluster(devices, links, f"samples {os.getpid()} {problem.name}")


def _refuse_unreal(problem: SampleProblem) -> None:
    if problem.sample_bytes < SMALLEST_FILE_BYTES:
        raise InputError(
            "files of real size need sample_bytes",
            where=problem.name,
            by=f"{problem.sample_bytes:g} bytes, at least {SMALLEST_FILE_BYTES}",
            hint="say sample_bytes in the file, or leave --engine testbed out",
        )
    linked = np.isfinite(problem.send_s) & np.isfinite(problem.receive_s)
    apart = np.argwhere(~(linked | linked.T | np.eye(problem.n, dtype=np.bool_)))
    if len(apart):
        i, j = apart[0].tolist()
        raise InputError(
            f"{problem.node_names[i]!r} and {problem.node_names[j]!r} are not joined",
            where=problem.name,
            hint="gradients go between all nodes: add a link",
        )
