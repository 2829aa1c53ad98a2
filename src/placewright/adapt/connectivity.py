"""Which nodes of a testbed reach each other now: every pair tries a connection."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import combinations

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import RunError
from placewright.runtime.engines.local import Local
from placewright.runtime.program import WorkerProgram, order
from placewright.runtime.worker import Worker
from placewright.testbed.node_handle import NodeHandle

PATIENCE_S = 2.0
"""A connection that takes longer does not count: two lost packets."""


def all_talk(handles: Sequence[NodeHandle]) -> frozenset[str]:
    """The largest set of devices of which every two reach each other; the first of equals.

    A process group needs a connection between every two of its members.

    Raises `RunError`: no node is there any more: the testbed has been taken down.
    """
    if handles and not any(handle.there for handle in handles):
        raise RunError(
            "the testbed has been taken down under the run",
            where=", ".join(handle.device for handle in handles),
            hint="`placewright testbed up` and run again; with --snapshots FOLDER a run goes on "
            "from its last snapshot",
        )
    handles = [handle for handle in handles if handle.there]
    pairs = {frozenset(p) for p in _connected(handles)}
    names = [handle.device for handle in handles]
    # A largest clique by trying: nodes are few, and mostly the first try or the one after it
    # succeeds.
    for size in range(len(names), 1, -1):
        for some in combinations(names, size):
            if all(frozenset(pair) in pairs for pair in combinations(some, 2)):
                return frozenset(some)
    return frozenset(names[:1])


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
