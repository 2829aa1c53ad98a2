"""The nodes of a problem as worker processes: on this machine alone, or on a testbed.

On a testbed nodes are real: CPU quotas, shaped links, files of real size.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InputError, WorkerError, WorkerLostError
from placewright.runtime.engines.local import Local, LocalGroup
from placewright.samples.problem import SampleProblem
from placewright.testbed import Testbed
from placewright.testbed.record import NodeHandle

SAMPLE_NODE = "placewright.samples.training.node_training:SampleNode"
"""The worker program of a node, by name: this module only starts it."""

SPARE_CORES = 0.4
"""For the emulator of the links and for what else the machine does."""

SMALLEST_FILE_BYTES = 1_000
"""An image with its label takes about half of it."""


class NodeLeft(WorkerLostError):  # noqa: N818  (it is the node that has left)
    """A node's process was killed or stopped, or its node lost power: those of `ranks`."""

    ranks: tuple[int, ...] = ()


class NodeWorkers:
    """One worker process per node, started when first needed and used until the block ends.

    Where one of them dies, or an order to them is interrupted, all are ended: the others may wait
    for it, and still owe answers. New ones are started when they are needed again.

    `handles`: by node, where the nodes are up as a testbed; elsewhere slowness is emulated.

    `real`: whether nodes and links are as slow as they are by themselves.
    `secret`: by which these nodes know each other.
    """

    def __init__(self, handles: Mapping[str, NodeHandle] | None = None) -> None:
        self.real = handles is not None
        self._engine = Local(handles, emulate=False, pin=False)
        self._group: LocalGroup | None = None
        self.secret = secrets.token_bytes(32)

    def __enter__(self) -> NodeWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def group(self, names: Sequence[str]) -> Iterator[LocalGroup]:
        """The workers of these nodes, in this order; the same ones as before where that can be.

        Raises `NodeLeft`: some were killed or stopped (`ranks` in `names`).
        Raises `WorkerError`: one raised an error, cannot be started, or did not answer in time.
        """
        try:
            yield self._started(tuple(names))
        except BaseException as error:
            lost = isinstance(error, WorkerError) and self._group is not None
            # Before they are ended: behind `close` all are dead.
            left = self._group.dead() if lost and self._group is not None else ()
            self.close()
            if isinstance(error, WorkerError) and left:
                raise _node_left(error, left) from error
            raise

    def close(self) -> None:
        """End the processes."""
        if self._group is not None:
            self._group.close()
        self._group = None

    def _started(self, names: tuple[str, ...]) -> LocalGroup:
        if self._group is None or self._group.names != names:
            self.close()
            nodes = Cluster(tuple(Device(name, node=name) for name in names), (), "nodes")
            self._group = self._engine.group(nodes, SAMPLE_NODE)
            self._group.start()
        return self._group


def _node_left(error: WorkerError, ranks: tuple[int, ...]) -> NodeLeft:
    left = NodeLeft(error.what, where=error.where, by=error.by, hint=error.hint)
    left.ranks = ranks
    return left


@contextmanager
def workers_or_own(workers: NodeWorkers | None) -> Iterator[NodeWorkers]:
    """The caller's `workers`, or where there are none others that end with the block."""
    if workers is not None:
        yield workers
        return
    with NodeWorkers() as own:
        yield own


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Nodes of a testbed that is up."""

    bed: Testbed
    workers: NodeWorkers


@contextmanager
def nodes_up(problem: SampleProblem) -> Iterator[Nodes]:
    """Make the nodes of `problem` real for the length of a ``with`` block.

    Raises `UnsupportedError`: no testbed can be made here; the message names what is missing.
    Raises `InputError`: the problem has no size of a file, or two nodes are not joined.
    """
    with Testbed.up(cluster_of(problem, len(os.sched_getaffinity(0)))) as bed:
        handles = {name: bed.handle(name) for name in problem.node_names}
        with NodeWorkers(handles) as workers:
            yield Nodes(bed, workers)


def cluster_of(problem: SampleProblem, cores: int) -> Cluster:
    """The cluster that a testbed makes: speeds in the problem's proportions, its links.

    The fastest node gets a whole core, or as much as leaves `SPARE_CORES` of the machine.

    Raises `InputError`: see `nodes_up`.
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
            hint="give sample_bytes in the file, or leave --engine testbed out",
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
