"""Engines of servers: where `ServerProcess`es run, by the names that ``--engine`` takes.

    local     processes of this machine; a server slower than it waits after each batch
    testbed   processes on emulated nodes: CPU quotas, and links from the node `DISPATCHER`
    ray       actors on the machines of a Ray cluster; the slower ones wait, too

On a testbed orders and answers travel over emulated links from the device `DISPATCHER` of the
cluster. A cluster without one gets one, with a fast link to every server:

    server a --- dispatcher --- server b
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InputError, RunError, UnknownNameError
from placewright.requests.serving.workers import LocalProcess, ServerProcess

if TYPE_CHECKING:
    from placewright.testbed.testbed import Testbed

ENGINES = ("local", "testbed", "ray")

DISPATCHER = "dispatcher"
"""Device of a cluster at which requests arrive; it is no server."""

LINK_BANDWIDTH, LINK_LATENCY_S = 1.25e9, 20e-6
"""Of links to servers that the cluster does not give: bytes/s, seconds."""


class ServerEngine(Protocol):
    """Makes the processes of servers."""

    def process(self, name: str, speed: float, on_loss: Callable[[str], None]) -> ServerProcess:
        """The process of a server; it is not started yet.

        Raises `InputError`: this engine has no place for a server of this name.
        """


@dataclass(frozen=True, slots=True)
class LocalServers:
    """Processes of this machine."""

    def process(self, name: str, speed: float, on_loss: Callable[[str], None]) -> ServerProcess:
        """See `ServerEngine.process`."""
        return LocalProcess(name, speed, on_loss)


@dataclass(frozen=True, slots=True)
class TestbedServers:
    """Processes on the nodes of a testbed that is up."""

    bed: Testbed

    __test__ = False  # pytest would collect the name

    def process(self, name: str, speed: float, on_loss: Callable[[str], None]) -> ServerProcess:
        """See `ServerEngine.process`."""
        if name not in self.bed.cluster.device_names or name == DISPATCHER:
            raise InputError(
                "a testbed's nodes are fixed when it starts",
                where=f"server {name!r}",
                hint="name it with --server at the start, or serve with --engine local",
            )
        handle, caller = self.bed.handle(name), self.bed.handle(DISPATCHER)
        return LocalProcess(name, speed, on_loss, handle, caller)


@dataclass(frozen=True, slots=True)
class RayServers:
    """Actors of Ray.

    `ray`: the module, connected.
    `options`: by server, of those that the cluster names: see `ray_group.actor_options`.
    `lost_head`: see `ray_group.RayGroup`.
    """

    ray: Any
    options: Mapping[str, Mapping[str, Any]]
    lost_head: Callable[[], RunError | None]

    def process(self, name: str, speed: float, on_loss: Callable[[str], None]) -> ServerProcess:
        """See `ServerEngine.process`."""
        from placewright.requests.serving.ray_workers import RayProcess
        from placewright.runtime.engines.ray_group import actor_options

        options = self.options.get(name)
        if options is None:  # added later: on the machine of its name, if there is one
            alone = Cluster((Device(name, node=name),), (), f"server {name}")
            (options,) = actor_options(alone, self.ray.cluster_resources())
        return RayProcess(name, speed, on_loss, self.ray, options, self.lost_head)


def server_cluster(servers: Mapping[str, float] | Cluster) -> Cluster:
    """Servers as the devices of a cluster.

    Raises `InputError`: there is none, or a speed is not in (0, 1].
    """
    if not isinstance(servers, Cluster):
        if not servers:
            raise InputError("there is no server", where="servers", hint="name one at least")
        devices = tuple(Device(name, node=name, speed=speed) for name, speed in servers.items())
        servers = Cluster(devices, (), f"requests {os.getpid()}")
    if not server_speeds(servers):
        raise InputError("there is no server", where=servers.name)
    for name, speed in server_speeds(servers).items():
        check_speed(name, speed)
    return servers


def check_speed(name: str, speed: float) -> None:
    """Raise `InputError` for a server faster than this machine, or one that never ends."""
    if not 0 < speed <= 1:
        raise InputError("speed must be in (0, 1]", where=f"server {name!r}", by=f"{speed}")


def server_speeds(cluster: Cluster) -> dict[str, float]:
    """Speed of each server, without `DISPATCHER`."""
    return {device.name: device.speed for device in cluster.devices if device.name != DISPATCHER}


@contextmanager
def open_engine(name: str, cluster: Cluster) -> Iterator[ServerEngine]:
    """The engine of that name, ready to make the processes of a cluster's servers.

    Raises `PlacewrightError`: it cannot be had here; the message names what is missing.
    """
    if name == "local":
        yield LocalServers()
    elif name == "testbed":
        from placewright.testbed.testbed import Testbed

        with Testbed.up(with_dispatcher(cluster)) as bed:
            yield TestbedServers(bed)
    elif name == "ray":
        with _ray(cluster) as servers:
            yield servers
    else:
        raise UnknownNameError("engine", name, ENGINES)


@contextmanager
def _ray(cluster: Cluster) -> Iterator[RayServers]:
    from placewright.runtime.engines.ray_engine import Ray
    from placewright.runtime.engines.ray_group import actor_options

    servers = replace(
        cluster, devices=tuple(d for d in cluster.devices if d.name != DISPATCHER), links=()
    )
    with Ray(servers) as engine:
        options = actor_options(servers, engine.ray.cluster_resources())
        named = dict(zip(servers.device_names, options, strict=True))
        yield RayServers(engine.ray, named, engine.lost_head)


def with_dispatcher(cluster: Cluster) -> Cluster:
    """The cluster with a device `DISPATCHER` that is joined to every server.

    Raises `InputError`: the cluster has one, from which no link leads to some server.
    """
    if DISPATCHER in cluster.device_names:
        joined = {
            k.target
            for k in (*cluster.links, *cluster.local_links(), *cluster.routed_links())
            if k.source == DISPATCHER
        }
        apart = [name for name in server_speeds(cluster) if name not in joined]
        if apart:
            raise InputError(
                f"no link leads from {DISPATCHER!r} to server {apart[0]!r}",
                where=f"{cluster.name}: links",
                hint="add one, or leave the dispatcher out: it gets fast links then",
            )
        return cluster
    links = tuple(
        Link(source, target, LINK_BANDWIDTH, LINK_LATENCY_S)
        for name in cluster.device_names
        for source, target in ((DISPATCHER, name), (name, DISPATCHER))
    )
    device = Device(DISPATCHER, node=DISPATCHER, speed=0.01)  # it is where sockets are, no process
    return replace(cluster, devices=(*cluster.devices, device), links=(*cluster.links, *links))
