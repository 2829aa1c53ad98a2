"""Engines of servers: where `ServerProcess`es run, by the names that ``--engine`` takes.

    local     processes of this machine; a server slower than it waits after each batch
    testbed   processes on emulated nodes: CPU quotas, and links from the node `DISPATCHER`
    ray       actors on the machines of a Ray cluster; the slower ones wait, too

On a testbed orders and answers travel over emulated links from the device `DISPATCHER` of the
cluster. A cluster without one gets one, with a fast link to every server:

    server a --- dispatcher --- server b

An actor of Ray is `placewright.runtime.engines.ray_engine.RayWorker` with the same program as a
local server's process; orders are its calls. Ray reports the death of an actor that has a call; so
an idle one gets a call now and then, which also finds machines that went away.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InputError, RunError, UnknownNameError
from placewright.requests.serving.models import VARIANT_SERVER, ServedModel
from placewright.requests.serving.workers import LocalProcess, OneByOne, ServerProcess
from placewright.runtime import limits
from placewright.runtime.engines.ray_engine import PLACED_S, RayWorker
from placewright.runtime.host import Host, is_stopped
from placewright.runtime.specs import WorkerSpec, worker_specs

if TYPE_CHECKING:
    from placewright.testbed.testbed import Testbed

ENGINES = ("local", "testbed", "ray")

DISPATCHER = "dispatcher"
"""Device of a cluster at which requests arrive; it is no server."""

LINK_BANDWIDTH, LINK_LATENCY_S = 1.25e9, 20e-6
"""Of links to servers that the cluster does not give: bytes/s, seconds."""


class ServerEngine(Protocol):
    """Makes the processes of servers.

    `beside`: whether a server may have a second process for a while.
    """

    @property
    def beside(self) -> bool:
        """See the class."""

    def process(self, name: str, speed: float, on_loss: Callable[[str], None]) -> ServerProcess:
        """The process of a server; it is not started yet.

        Raises `InputError`: this engine has no place for a server of this name.
        """


@dataclass(frozen=True, slots=True)
class LocalServers:
    """Processes of this machine."""

    beside: ClassVar[bool] = True

    def process(self, name: str, speed: float, on_loss: Callable[[str], None]) -> ServerProcess:
        """See `ServerEngine.process`."""
        return LocalProcess(name, speed, on_loss)


@dataclass(frozen=True, slots=True)
class TestbedServers:
    """Processes on the nodes of a testbed that is up."""

    bed: Testbed

    beside: ClassVar[bool] = True
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

    beside: ClassVar[bool] = False  # an actor has the resources of its machine for itself

    def process(self, name: str, speed: float, on_loss: Callable[[str], None]) -> ServerProcess:
        """See `ServerEngine.process`."""
        from placewright.runtime.engines.ray_engine import actor_options

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
        if not name.strip():
            raise InputError("a server needs a name", where="servers", by=f"got {name!r}")
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
    from placewright.runtime.engines.ray_engine import Ray, actor_options

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


IDLE_S = 1.0
"""Between two calls of an actor that computes nothing."""

UNHEARD_S = 5.0
"""An idle actor answers within it."""

_ENDING = OneByOne("placewright-ray")
"""Ends actors: Ray may wait for its head."""


class ServerActor(RayWorker):
    """The actor."""

    def where(self) -> tuple[int, Host]:
        """Its process and machine."""
        return os.getpid(), self.host()

    def alive(self) -> bool:
        """True: for a caller that wants to hear from it."""
        return True


class RayProcess(ServerProcess):
    """A server's process as an actor.

    `ray`: the module, connected.
    `options`: ray's options of the actor: CPUs, and the resource that names its machine.
    `lost_head`: see `placewright.runtime.engines.ray_engine.RayGroup`.
    """

    def __init__(
        self,
        name: str,
        speed: float,
        on_loss: Callable[[str], None],
        ray: Any,
        options: Mapping[str, Any],
        lost_head: Callable[[], RunError | None] = lambda: None,
    ) -> None:
        super().__init__(name, speed, on_loss)
        self._ray, self._options, self._lost_head = ray, dict(options), lost_head
        self._actor: Any = None
        self._pid: int | None = None
        self._here = False
        self._ping: Future[Any] | None = None
        self._pinged_s = 0.0

    @property
    def pid(self) -> int | None:
        """See `ServerProcess.pid`; of the machine that Ray has chosen."""
        return self._pid

    async def start(self, models: Mapping[str, ServedModel]) -> None:
        """See `ServerProcess.start`."""
        kind, limit_s = self._ray.remote(ServerActor), limits.patience(PLACED_S + limits.START_S)
        self._actor = actor = kind.options(**self._options).remote()
        try:
            async with asyncio.timeout(limit_s):
                pid, host = await asyncio.wrap_future(actor.where.remote().future())
                spec = self._spec(host)
                await asyncio.wrap_future(actor.begin.remote(spec).future())
        except TimeoutError:
            self.end()
            raise RunError(
                "Ray does not start the server",
                where=f"server {self.name!r}",
                by=f"asked for {self._options}, waited {limit_s:.0f} s",
                hint="`ray status` shows what is free; PLACEWRIGHT_PATIENCE=4 waits longer",
            ) from None
        except self._ray.exceptions.RayError as error:
            self.end()
            raise RunError(
                "the server's actor does not start",
                where=f"server {self.name!r}",
                by=self._cause(error),
            ) from None
        self._pid, self._here = pid, host.boot == Host.here().boot
        self._stopped_s, self._ping = 0.0, None
        await self.load(models)

    def give(self, name: str, *arguments: Any, limit_s: float) -> asyncio.Future[Any]:
        """See `ServerProcess.give`."""
        if self._actor is None:
            raise RunError("the server has no process", where=f"server {self.name!r}")
        answer, loop = self.expect(limit_s), asyncio.get_running_loop()

        def came(done: Future[Any]) -> None:  # in a thread of Ray
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._came, answer, done)

        self._actor.obey.remote(name, arguments).future().add_done_callback(came)
        return answer

    def failure(self) -> str:
        """See `ServerProcess.failure`."""
        now = self._here and self._pid is not None and is_stopped(self._pid)
        return self.stopped(now) or self._unheard(time.monotonic())

    def end(self) -> None:
        """See `ServerProcess.end`."""
        actor, self._actor, self._pid = self._actor, None, None
        if actor is not None:
            _ENDING.submit(_kill, self._ray, actor)

    def _unheard(self, now_s: float) -> str:
        """Call an idle actor, and say what is wrong where it does not answer."""
        # Its order is a call that Ray watches, and may keep the actor busy for longer than an
        # answer takes.
        if self._answer is not None:
            self._pinged_s = now_s
            return ""
        if self._ping is not None and self._ping.done():
            error, self._ping = self._ping.exception(), None
            if error is not None:
                return f"Ray has lost its process: {self._cause(error)}"
        if self._ping is not None:
            waited_s = now_s - self._pinged_s
            return f"it did not answer for {waited_s:.1f} s" if waited_s > UNHEARD_S else ""
        if now_s - self._pinged_s > IDLE_S:
            # The answer is looked at in a later call; this one must not wait.
            self._ping, self._pinged_s = self._actor.alive.remote().future(), now_s
        return ""

    def _came(self, answer: asyncio.Future[Any], done: Future[Any]) -> None:
        """Take the answer to an order; one of an actor that was given up is not read."""
        if self._answer is not answer:
            return
        error = done.exception()
        if error is None:
            self.answered(done.result())
        else:
            self.lose(f"Ray has lost its process: {self._cause(error)}")

    def _cause(self, error: BaseException) -> str:
        """What Ray itself has lost, or the last sentence of Ray's message."""
        if (head := self._lost_head()) is not None:
            return head.brief
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return lines[-1].partition(". ")[0][:200] if lines else type(error).__name__

    def _spec(self, host: Host) -> WorkerSpec:
        device = Device(self.name, node=self.name, speed=min(self.speed, 1.0))
        cluster = Cluster((device,), (), f"server {self.name}")
        (spec,) = worker_specs(cluster, [host], program=VARIANT_SERVER, pin=False)
        return spec


def _kill(ray: Any, actor: Any) -> None:
    with suppress(Exception):  # Ray may be gone
        ray.kill(actor)
