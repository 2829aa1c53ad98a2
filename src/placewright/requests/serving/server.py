"""`serve_forever`: start servers, measure them, listen for clients, and drain at the end."""

from __future__ import annotations

import asyncio
import gc
import select
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from ctypes import addressof, create_string_buffer
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

from placewright.errors import InputError, MissingDependencyError, UnknownNameError
from placewright.io.arguments import Count, Range, checked
from placewright.planning.wing import TextModel
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import named_policy
from placewright.requests.policies import specification, start
from placewright.requests.policy import Policy
from placewright.requests.replay import plan_json
from placewright.requests.service import Service
from placewright.requests.serving.application import Application
from placewright.requests.serving.auto import AutoPolicy, follow, learn
from placewright.requests.serving.completions import Completions
from placewright.requests.serving.dispatcher import Dispatcher
from placewright.requests.serving.engines import ENGINES, open_engine, server_cluster, server_speeds
from placewright.requests.serving.families import Family
from placewright.requests.serving.models import SERVE
from placewright.requests.serving.observing import Observer, event
from placewright.requests.serving.priority import answer_first
from placewright.requests.serving.site import HttpLimits, Site
from placewright.requests.serving.workers import ended
from placewright.web.listening import address_of, check_tls, listen
from placewright.web.refusals import LOOPBACK, check_origin

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster
    from placewright.requests.serving.grpc_interface import GrpcInterface

TOKEN = "PLACEWRIGHT_TOKEN"
"""Environment variable of the token that clients have to send."""

TOKEN_CHARACTERS = 16
"""Of the shortest token: what is shorter can be guessed."""

FLUSH_S = 0.5

LAST_CONNECTIONS_S, ACCEPTING_S = 1.0, 0.05
"""At most for connections that are open when the server ends; between two looks for them."""

GRACE_S = 1.0
"""For gRPC calls that are answered when the server ends."""

ENDING_S = 10.0
"""Waited for processes at the end; one whose start hangs is left to the end of this process."""


class StartsPolicies(Protocol):
    """What gives a server its policy: `PlannedPolicy`, or an object of one's own."""

    def start(self, service: Service) -> Policy:
        """A policy object for one server."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedPolicy:
    """The policy of a plan, as `ServingOptions` takes it."""

    plan: RequestPlan

    def __post_init__(self) -> None:
        specification(self.plan)

    def start(self, service: Service) -> Policy:
        """A policy object."""
        return start(self.plan, service)


@checked
@dataclass(frozen=True, slots=True)
class ServingOptions:
    """How to serve.

    Attributes
    ----------
    policy
        What decides: a plan's policy, or one that is chosen for the requests that come.
    engine
        ``local``: slower servers wait; ``testbed``: CPU quotas and links, as root; ``ray``: actors.
    host, port
        Where to listen; port 0 takes a free one. Anything but loopback needs a `token`.
    token
        Bearer token that clients send; empty: none, and one that is made for ``/admin``.
    hosts
        Names in the ``Host`` of requests that are answered, besides loopback and `host`.
    origins
        Of other sites, ``https://example.org``, whose pages may send requests (CORS).
    tls_cert, tls_key
        PEM files of the certificates and of their key: clients are answered over TLS alone.
    grpc_port
        Where gRPC is answered too; 0 takes a free port, ``None``: nowhere.
    most_waiting, most_batch
        Rows that may wait, and of the largest batch.
    drain_s
        Seconds in which requests are finished at the end.
    log
        File of every request, one JSON object a line; appended to.
    limits
        What a client may ask.
    """

    policy: StartsPolicies = field(default_factory=AutoPolicy)
    engine: str = "local"
    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535)] = 8000
    token: str = ""
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    grpc_port: Annotated[int, Range(0, 65535)] | None = None
    most_waiting: Count = 1000
    most_batch: Count = 16
    drain_s: float = 10.0
    log: Path | None = None
    limits: HttpLimits = field(default_factory=HttpLimits)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UnknownNameError("engine", self.engine, ENGINES)
        if self.host not in LOOPBACK and not self.token:
            raise InputError(
                "clients of other machines need a token",
                where=f"host {self.host!r}",
                hint=f"set {TOKEN} to a long random text, or listen on 127.0.0.1",
            )
        check_tls(self.tls_cert, self.tls_key)
        for origin in self.origins:
            check_origin(origin)
        sendable = self.token.isascii() and self.token.isprintable() and " " not in self.token
        if self.token and not (len(self.token) >= TOKEN_CHARACTERS and sendable):
            raise InputError(
                "the token is too easy to guess, or cannot stand in a header",
                where=TOKEN,
                by=f"{len(self.token)} characters; at least {TOKEN_CHARACTERS}, ASCII, no spaces",
                hint="set it to what `openssl rand -hex 16` prints",
            )


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """An HTTP interface that takes requests.

    `url`: where.
    `grpc`: ``HOST:PORT`` where gRPC is answered; empty: nowhere.
    """

    url: str
    application: Site
    grpc: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class Running(Serving):
    """A server that takes requests."""

    application: Application
    dispatcher: Dispatcher
    observer: Observer


Opened = TypeVar("Opened", bound=Serving)


def check_start(servers: Mapping[str, float] | Cluster, options: ServingOptions) -> None:
    """Raise what can be known to be wrong before families are there, which may take long to make.

    Raises `InputError`: a server is wrong, or nobody can listen there.
    """
    server_cluster(servers)
    listen(options.host, options.port).close()


@checked
def serve_forever(
    families: Sequence[Family],
    servers: Mapping[str, float] | Cluster,
    options: ServingOptions | None = None,
    *,
    on_ready: Callable[[Running], None] = lambda running: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the requests that are here.

    While servers start, and where Ctrl-C comes twice, the signal does what it does elsewhere.

    Parameters
    ----------
    servers
        Name and speed relative to this machine, or a cluster of CPUs.
    on_ready
        Called once clients are listened to.

    Raises
    ------
    InputError
        A server, a family or an option is wrong.
    RunError
        A server does not start.
    """
    _until_signal(serving(families, servers, options), on_ready)


@checked
def serve_text_forever(
    model: TextModel,
    options: ServingOptions | None = None,
    *,
    on_ready: Callable[[Serving], None] = lambda running: None,
) -> None:
    """Serve texts of a language model by OpenAI's protocol; otherwise as `serve_forever`."""
    _until_signal(serving_text(model, options), on_ready)


def _until_signal(
    opened: AbstractAsyncContextManager[Opened], on_ready: Callable[[Opened], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C."""

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with opened as running:
            # Not before: a signal has to end a start, which may take minutes.
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop.set)
            on_ready(running)
            await stop.wait()
            loop.remove_signal_handler(signal.SIGINT)
            event("draining", waiting=running.application.waiting)

    _run(main())


@checked
@contextmanager
def serve(
    families: Sequence[Family],
    servers: Mapping[str, float] | Cluster,
    options: ServingOptions | None = None,
) -> Iterator[Running]:
    """Serve from a thread for the length of a ``with`` block; errors as `serve_forever`."""
    with _in_thread(serving(families, servers, options)) as running:
        yield running


@checked
@contextmanager
def serve_text(model: TextModel, options: ServingOptions | None = None) -> Iterator[Serving]:
    """Serve texts of a language model from a thread, for the length of a ``with`` block."""
    with _in_thread(serving_text(model, options)) as running:
        yield running


@contextmanager
def _in_thread(opened: AbstractAsyncContextManager[Opened]) -> Iterator[Opened]:
    """Serve from a thread."""
    started = threading.Event()
    found: list[Opened] = []
    failed: list[BaseException] = []
    ends: list[Callable[[], object]] = []

    async def main() -> None:
        stop, loop, task = asyncio.Event(), asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        # While servers start nobody looks at `stop`: their start is broken off.
        end = partial(loop.call_soon_threadsafe, lambda: stop.set() if found else task.cancel())
        ends.append(end)
        async with opened as running:
            found.append(running)
            started.set()
            await stop.wait()

    def work() -> None:
        try:
            _run(main())
        except asyncio.CancelledError:
            pass  # the caller was interrupted before it had started
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work, name="placewright-requests")
    try:
        try:
            thread.start()
        except RuntimeError:  # no more threads can be had
            started.set()
            raise
        started.wait()
        if found:
            yield found[0]
    finally:
        _end_thread(thread, started, ends)
        if failed:
            raise failed[0]


def _end_thread(
    thread: threading.Thread, started: threading.Event, ends: Sequence[Callable[[], object]]
) -> None:
    """End the loop of a server's thread with the first of `ends`, which may be still to come."""
    # Ctrl-C may come while the thread starts: it cannot be ended before its loop runs.
    while not ends and not started.wait(0.01):
        pass
    if ends and thread.is_alive():
        with suppress(RuntimeError):  # its loop has just ended
            ends[0]()
    if thread.ident is not None:
        thread.join()


@asynccontextmanager
async def serving(
    families: Sequence[Family],
    servers: Mapping[str, float] | Cluster,
    options: ServingOptions | None = None,
) -> AsyncIterator[Running]:
    """A server in the running loop for the length of the block; drained at its end."""
    options = ServingOptions() if options is None else options
    listening = listen(options.host, options.port)
    cluster = server_cluster(servers)
    with listening, open_engine(options.engine, cluster) as engine:
        dispatcher = Dispatcher(
            families,
            options.policy.start,
            most_waiting=options.most_waiting,
            most_batch=options.most_batch,
            engine=engine,
        )
        observer = Observer(dispatcher, options.log)
        application = Application(
            dispatcher,
            observer,
            token=options.token,
            hosts=[name.lower() for name in (options.host, *options.hosts)],
            origins=options.origins,
            limits=options.limits,
        )
        calls = _grpc_interface(application, options)
        most = 0 if calls is None else calls.connections
        listener = Listener(application, listening, options.tls_cert, options.tls_key, most)
        try:
            async with _beside(dispatcher.watch(), _flush(observer)) as begin:
                for name, speed in server_speeds(cluster).items():
                    await dispatcher.fleet.add_server(name, speed)
                await _begin(options.policy, dispatcher, begin)
                url = listener.begin()
                place = "" if calls is None else await calls.begin()
                event(
                    "started",
                    url=url,
                    **({"grpc": place} if place else {}),
                    servers=list(server_speeds(cluster)),
                    models=[f.name for f in families],
                )
                yield Running(url, application, dispatcher, observer, grpc=place)
                await dispatcher.drain(options.drain_s)
                left = dispatcher.queue.count + dispatcher.under_way
                event("drained", unanswered=left, outcomes=dict(observer.totals))
        finally:
            dispatcher.close()
            if calls is not None:
                await calls.end(GRACE_S)
            await listener.end()
            observer.close()
            await ended(ENDING_S)


@asynccontextmanager
async def serving_text(
    model: TextModel, options: ServingOptions | None = None
) -> AsyncIterator[Serving]:
    """A server of texts in the running loop for the length of the block; drained at its end."""
    options = ServingOptions() if options is None else options
    with listen(options.host, options.port) as listening:
        application = Completions(
            model,
            most_waiting=options.most_waiting,
            token=options.token,
            hosts=[name.lower() for name in (options.host, *options.hosts)],
            origins=options.origins,
            limits=options.limits,
        )
        listener = Listener(application, listening, options.tls_cert, options.tls_key)
        try:
            url = listener.begin()
            event("started", url=url, models=application.models)
            yield Serving(url, application)
            await application.drain(options.drain_s)
            event("drained", outcomes=application.numbers.as_json()["outcomes"])
        finally:
            await asyncio.to_thread(application.close)
            await listener.end()


class Listener:
    """Connections of clients, from `begin` to `end`.

    `calls`: connections of gRPC that there may be beside them.
    """

    def __init__(
        self,
        application: Site,
        listening: socket.socket,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        calls: int = 0,
    ) -> None:
        self._listening = listening
        self._http = _http(application, listening, tls_cert, tls_key, calls)
        self._scheme = "http" if tls_cert is None else "https"
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> str:
        """Answer clients; the address."""
        self._task = asyncio.create_task(self._http.serve())
        gc.collect()
        # A collection of all that was imported would take some 50 ms of a request.
        gc.freeze()
        return address_of(self._listening, self._scheme)

    async def end(self) -> None:
        """Answer what has come, and no more."""
        gc.unfreeze()
        if self._task is not None:
            await _accept_the_last(self._listening)
            self._http.should_exit = True
            await self._task
            # Over TLS a client may leave the end of its connection unanswered, for half a minute.
            for connection in list(self._http.server_state.connections):
                connection.transport.abort()


async def _begin(
    policy: StartsPolicies,
    dispatcher: Dispatcher,
    begin: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """Choose the policy for the servers as they were measured, and learn, where that is asked for.

    `begin`: starts what goes on until the server ends.
    """
    if isinstance(policy, PlannedPolicy):
        dispatcher.decided_by = plan_json(policy.plan)
    if not isinstance(policy, AutoPolicy):
        return
    plan = named_policy("auto")
    dispatcher.decided_by = plan_json(plan)
    loop = asyncio.get_running_loop()
    choice = await loop.run_in_executor(None, policy.choose, dispatcher.service)
    if choice is not None:
        plan = choice.plan
        follow(choice, dispatcher)
    begin(learn(policy, plan, dispatcher))


async def _accept_the_last(listening: socket.socket) -> None:
    """Let nobody else connect, and wait until all who have are accepted.

    The system resets connections that nobody has accepted when the port is closed.
    """
    no_others = create_string_buffer(b"".join(pack("=HBBI", *line) for line in _DROP_SYN))
    with suppress(OSError):  # not Linux: those who connect in the last moment are reset
        program = pack("HL", len(_DROP_SYN), addressof(no_others))
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    waiting = select.poll()
    waiting.register(listening, select.POLLIN)
    deadline = time.monotonic() + LAST_CONNECTIONS_S
    await asyncio.sleep(ACCEPTING_S)  # a connection that is half open
    while waiting.poll(0) and time.monotonic() < deadline:
        await asyncio.sleep(ACCEPTING_S)


_SO_ATTACH_FILTER = 26

_DROP_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 2), (0x6, 0, 0, 0), (0x6, 0, 0, 0xFFFFFFFF))
"""Classic BPF: load the flags of a segment, drop it if it opens a connection, else take it."""


@asynccontextmanager
async def _beside(
    *works: Coroutine[Any, Any, None],
) -> AsyncIterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """Do these for the length of the block; an error in one of them ends the block with it.

    Yields what begins another.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
            yield lambda work: tasks.append(group.create_task(work))
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _run(main: Any) -> None:
    """On uvloop where it is installed: about half the time per request."""
    answer_first()
    factory: Any = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def _grpc_interface(application: Site, options: ServingOptions) -> GrpcInterface | None:
    """What answers gRPC, where that is asked for."""
    if options.grpc_port is None:
        return None
    from placewright.requests.serving.grpc_interface import GrpcInterface

    files = (options.tls_key, options.tls_cert)
    pem = [file.read_bytes() for file in files if file is not None]
    certificate = (pem[0], pem[1]) if pem else None
    return GrpcInterface(application, options.host, options.grpc_port, certificate)


def _http(
    application: Site,
    listening: socket.socket,
    tls_cert: Path | None,
    tls_key: Path | None,
    calls: int,
) -> Any:
    try:
        from placewright.web.connections import Server, allow_files, connections_beside
    except ImportError:
        raise MissingDependencyError("uvicorn", extra=SERVE, purpose="serving requests") from None
    allow_files(calls)
    return Server(
        application,
        listening,
        beside=connections_beside(calls) if calls else 0,
        date_header=False,
        timeout_graceful_shutdown=5,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )


async def _flush(observer: Observer) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        observer.flush()
