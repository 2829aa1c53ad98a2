"""Engines: ways to start workers, by the names that ``--engine`` takes; ranks of devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, UnknownNameError
from placewright.runtime.engines.group import WorkerGroup
from placewright.runtime.host import NODE_VARIABLE, Host
from placewright.runtime.specs import PLACED_STEPS

ENGINES = ("local", "testbed", "torchrun", "ray")


class Engine(Protocol):
    """A way to have workers."""

    @property
    def name(self) -> str:
        """As on the command line."""

    def group(self, cluster: Cluster, program: str = PLACED_STEPS) -> WorkerGroup:
        """Workers that execute `program` for the devices of `cluster`; none is started yet.

        Raises
        ------
        PlacewrightError
            They cannot be had here.
        """

    def emulated(self, cluster: Cluster, hosts: Sequence[Host]) -> str:
        """What is emulated on these hosts, in words; empty if nothing."""


def open_engine(
    name: str, cluster: Cluster, *, emulate: bool = True, together: bool | None = None
) -> AbstractContextManager[Engine]:
    """The engine of that name, ready for sessions on `cluster` and on parts of it.

    Parameters
    ----------
    emulate
        Wait where devices and links are slower than the machines.
    together
        One process for all GPUs of a node, or one each (`layout.assign_processes`);
        torchrun and Ray start one each.

    Raises
    ------
    PlacewrightError
        It cannot be had here; the message names what is missing.
    """
    if name == "local":
        from placewright.runtime.engines.local import Local

        return nullcontext(Local(emulate=emulate, together=together))
    if name == "testbed":
        from placewright.runtime.engines.local import on_testbed

        return on_testbed(cluster)
    if name == "torchrun":
        from placewright.runtime.engines.torchrun import Torchrun

        return Torchrun(cluster, emulate=emulate)
    if name == "ray":
        from placewright.runtime.engines.ray_engine import Ray

        return Ray(cluster, emulate=emulate)
    raise UnknownNameError("engine", name, ENGINES)


def assign_ranks(cluster: Cluster, hosts: Sequence[Host]) -> dict[str, int]:
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
    wanted = Counter(device.node for device in cluster.devices)
    there = Counter(host.name for host in hosts)
    if not set(wanted) & set(there):
        return {name: rank for rank, name in enumerate(cluster.device_names)}
    for node, count in wanted.items():
        if there[node] != count:
            raise InputError(
                f"node {node!r} has {count} devices and {there[node]} processes",
                where=cluster.name,
                by="processes are on " + ", ".join(f"{n} ({c})" for n, c in there.items()),
                hint=f"start one process per device there; {NODE_VARIABLE}={node} in its "
                "environment names the node that a machine is",
            )
    free = {n: [r for r, host in enumerate(hosts) if host.name == n] for n in wanted}
    return {device.name: free[device.node].pop(0) for device in cluster.devices}
