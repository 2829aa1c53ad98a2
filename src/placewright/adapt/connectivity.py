"""Which nodes of a testbed reach each other now: every pair tries a connection."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence, Set

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import RunError
from placewright.runtime.engines.engine import Engine
from placewright.runtime.engines.local import Local
from placewright.runtime.engines.ray_engine import Ray
from placewright.runtime.program import WorkerProgram, order
from placewright.runtime.worker import Worker
from placewright.testbed.node_handle import NodeHandle

PATIENCE_S = 2.0
"""A connection that takes longer does not count: two lost packets."""


def reachable_on(engine: Engine) -> Callable[[Sequence[str]], Collection[str]]:
    """What tells which of the named devices can all talk to each other; all where none can tell."""
    if isinstance(engine, Ray):
        return engine.reachable
    handles = engine.handles if isinstance(engine, Local) else None
    if handles is None:
        return frozenset
    return lambda names: all_talk([handles[name] for name in names])


def all_talk(handles: Sequence[NodeHandle]) -> frozenset[str]:
    """The largest set of devices of which every two reach each other; the first of equals.

    A process group needs a connection between every two of its members.

    Raises `RunError`: no node is there any more: the testbed has been taken down; or its link
    emulator has ended.
    """
    if handles and not any(handle.there for handle in handles):
        raise RunError(
            "the testbed has been taken down under the run",
            where=", ".join(handle.device for handle in handles),
            hint="`placewright testbed up` and run again; with --snapshots FOLDER a run goes on "
            "from its last snapshot",
        )
    handles = [handle for handle in handles if handle.there]
    for handle in handles[:1]:
        handle.demand_links()
    names = [handle.device for handle in handles]
    linked = {frozenset(pair) for pair in _connected(handles)}
    position = range(len(names))
    apart = {
        k: {j for j in position if j != k and frozenset((names[j], names[k])) not in linked}
        for k in position
    }
    return frozenset(names[k] for k in largest_clique(list(position), apart))


def largest_clique(nodes: list[int], apart: Mapping[int, Set[int]]) -> list[int]:
    """The largest part of ascending `nodes` without two that are `apart`; the first of equals.

    Branches on a node that most others are apart from, two at least: about 1.4^n calls at worst,
    and one where a few links are cut.
    """
    cut = {k: [j for j in nodes if j in apart[k]] for k in nodes}
    worst = max(nodes, key=lambda k: len(cut[k]), default=-1)
    if worst < 0 or len(cut[worst]) < 2:  # pairs: of each the first stays
        return [k for k in nodes if not any(j < k for j in cut[k])]
    with_it = largest_clique([k for k in nodes if k not in apart[worst]], apart)
    without = largest_clique([k for k in nodes if k != worst], apart)
    return min(with_it, without, key=lambda part: (-len(part), part))


def _connected(handles: Sequence[NodeHandle]) -> list[tuple[str, str]]:
    """Pairs of which the second accepted a connection of the first."""
    if not handles:
        return []
    names = [handle.device for handle in handles]
    nodes = Cluster(tuple(Device(name, node=name) for name in names), (), "nodes")
    engine = Local({handle.device: handle for handle in handles}, emulate=False)
    group, limit_s = engine.group(nodes, CONNECTIVITY_PROBE), 20 * PATIENCE_S
    try:
        group.launch()
        # A node whose testbed is going down, or whose process dies, is reached by no other one.
        ready = group.answers_of_the_living(range(len(names)), limit_s)
        for rank in ready:
            # Each pair once: the later one calls the earlier one.
            group.give(rank, "reach", group.addresses[:rank])
        found = group.answers_of_the_living(ready, limit_s)
    finally:
        group.close()
    return [(names[k], names[other]) for k, reached in found.items() for other in reached]


CONNECTIVITY_PROBE = "placewright.adapt.connectivity:ConnectivityProbe"


class ConnectivityProbe(WorkerProgram):
    """Listens on its node and tries to reach others."""

    noun = "node"
    listens = True

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._port = worker.port()

    @order("connecting to other nodes")
    def reach(self, addresses: Sequence[tuple[str, int]]) -> list[int]:
        """Which of these addresses, by position, accept a connection."""
        return [k for k, address in enumerate(addresses) if _reaches(address)]


def _reaches(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=PATIENCE_S):
            return True
    except OSError:
        return False
