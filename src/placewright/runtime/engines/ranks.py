"""Which of the processes that a launcher has started serves which device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError
from placewright.runtime.host import NODE_VARIABLE, Host


def seating(cluster: Cluster, hosts: Sequence[Host]) -> dict[str, int]:
    """Device name -> rank of the process that serves it.

    By node where processes are on hosts named as the cluster's nodes, else in order: the first
    process serves the first device.

    Parameters
    ----------
    hosts
        By rank, as many as there are devices.

    Raises
    ------
    InputError
        Some hosts have the names of nodes, and a node has more or fewer processes than devices.
    """
    asked = Counter(device.node for device in cluster.devices)
    there = Counter(host.name for host in hosts)
    if not set(asked) & set(there):
        return {name: rank for rank, name in enumerate(cluster.device_names)}
    for node, count in asked.items():
        if there[node] != count:
            raise InputError(
                f"node {node!r} has {count} devices and {there[node]} processes",
                where=cluster.name,
                by="processes are on " + ", ".join(f"{n} ({c})" for n, c in there.items()),
                hint=f"start one process per device there; {NODE_VARIABLE}={node} in its "
                "environment says which node a machine is",
            )
    free = {n: [r for r, host in enumerate(hosts) if host.name == n] for n in asked}
    return {device.name: free[device.node].pop(0) for device in cluster.devices}
