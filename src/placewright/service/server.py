"""`serve_forever`: open the folder and the database, listen, and take up the jobs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from placewright.errors import InputError, UnsupportedError
from placewright.interpreter import python_environment
from placewright.io.arguments import Count, Range, checked
from placewright.numerics.collector import collector_paused
from placewright.ownership import open_to_others
from placewright.service.operations import Operation, offered
from placewright.web.listening import address_of, listen
from placewright.web.refusals import LOOPBACK

KEEP_ALIVE_S = 30
"""A connection without a request is closed then: a client's next one may be on its way."""

LAUNCH_S = 1.0
"""From listening to loading DBOS, which would keep the first page waiting for half a second."""

FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


Engine = Literal["local", "ray"]


@checked
@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How to serve.

    Attributes
    ----------
    folder
        Files, jobs and, without `database`, the databases.
    host, port, hosts
        Where to listen, and further names of that address.
    token
        Whether one is needed on loopback, too.
    new_token, end_token
        Names of a token that is made, and of one that ends.
    database
        URL of PostgreSQL; an SQLite file in the folder without it.
    models
        Factories that requests may name: ``package.module:factory``.
    language_models
        Folders of language models that request services may serve.
    engine
        Where jobs run: as processes of this machine, or on those of a Ray cluster.
    jobs
        That run at a time.
    """

    folder: Path
    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535)] = 8400
    hosts: tuple[str, ...] = ()
    token: bool = False
    new_token: str | None = None
    end_token: str | None = None
    database: str | None = None
    models: tuple[str, ...] = ()
    language_models: tuple[Path, ...] = ()
    engine: Engine = "local"
    jobs: Count = 1

    def __post_init__(self) -> None:
        for model in self.models:
            if not FACTORY.fullmatch(model):
                raise InputError(
                    "is no factory of a model",
                    where=f"--models {model:.100}",
                    hint="give package.module:factory",
                )
        if self.database is not None and not _is_postgresql(self.database):
            raise InputError(  # which is not shown: it may have a password
                "is no address of a PostgreSQL database",
                where="--database",
                hint="give postgresql://USER@HOST/NAME",
            )
        for each in self.language_models:
            if not (each / "config.json").is_file():
                raise InputError(
                    "is no language model",
                    where=f"--language-models {each!s:.100}",
                    by="there is no config.json in it",
                    hint="give the folder that save_pretrained has written",
                )
        names = [each.resolve().name for each in self.language_models]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(
                "two folders have the same name, by which requests would name them",
                where=f"--language-models {twice[0]:.100}",
                hint="rename one of them",
            )

    @property
    def needs_token(self) -> bool:
        """Whether others than users of this machine could ask."""
        named = self.new_token is not None or self.end_token is not None
        return self.token or named or self.host not in LOOPBACK


def _is_postgresql(url: str) -> bool:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).drivername == "postgresql"
    except (ArgumentError, ValueError):
        return False


def serve_forever(
    options: ServiceOptions,
    operations: Callable[[], Sequence[Operation]],
    *,
    on_ready: Callable[[str, str], object] = lambda url, token: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; jobs that run go on, and the next service takes them up.

    Parameters
    ----------
    operations
        Makes all verbs of the command line.
    on_ready
        Called with the address, and the token where one was made, once clients are listened to.

    Raises
    ------
    InputError
        Nobody can listen there, or another service has the folder.
    """
    if not Path("/proc/self/environ").exists():
        raise UnsupportedError("jobs are found again by /proc", hint="serve on Linux")
    os.umask(0o077)  # the folder may be one that others read
    with _locked(options.folder), listen(options.host, options.port) as listening:
        with collector_paused():  # a second is spent on imports
            service, server, made = _server(options, operations, listening)
        url = address_of(listening)
        for everywhere in ("//0.0.0.0:", "//[::]:"):
            url = url.replace(everywhere, "//localhost:")
        asyncio.run(_serve(server, service, options.folder, lambda: on_ready(url, made)))
        service.jobs.stop()
        service.store.close()


def _server(
    options: ServiceOptions,
    operations: Callable[[], Sequence[Operation]],
    listening: socket.socket,
) -> tuple[Any, Any, str]:
    from placewright.service.app import Service, api
    from placewright.service.files import FileStore
    from placewright.service.jobs import Jobs
    from placewright.service.pages import add_pages
    from placewright.service.process import JobFolder, ray_folders
    from placewright.service.serving import ServeOperation, add_services
    from placewright.service.store import Store, Tokens, sqlite_url
    from placewright.web.access import Access
    from placewright.web.connections import Server, allow_files

    folder = options.folder.resolve()
    store = Store(options.database or sqlite_url(folder / "service.sqlite"))
    store.lock()
    store.migrate()
    files = FileStore(folder, store)
    listed = operations()
    # Jobs work in folders without programs: factories are looked for here, behind other packages.
    variables = {"PYTHONPATH": f"{python_environment()['PYTHONPATH']}{os.pathsep}{os.getcwd()}"}
    jobs = Jobs(
        store,
        files,
        offered(listed) | ServeOperation.among(listed, options.language_models),
        workflows=options.database or sqlite_url(folder / "workflows.sqlite"),
        models=options.models,
        at_once=options.jobs,
        variables=variables if options.models else {},
        new_folder=ray_folders() if options.engine == "ray" else JobFolder,
    )
    tokens = Tokens(store) if options.needs_token else None
    made = "" if tokens is None else tokens.change(options.new_token, options.end_token)
    allow_files()
    service = Service(store, files, jobs, tokens)
    jobs.alone = service.ahead.paused
    application = api(service)
    add_services(application, service, add_pages(application, service))
    guarded = Access(
        application,
        host=options.host,
        hosts=options.hosts,
        owner=None if tokens is None else tokens.owner,
        refused=partial(store.audit, "", "refused"),
    )
    server = Server(
        guarded, listening, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=3
    )
    return service, server, made


async def _serve(server: Any, service: Any, folder: Path, ready: Callable[[], object]) -> None:
    """Listen at once; jobs are taken up a little later, and what commands have written there."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        service.stopping.set()
        server.should_exit = True

    def launch() -> None:
        service.jobs.launch()
        service.jobs.take_results(folder)
        service.ahead.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    serving = asyncio.ensure_future(server.serve())
    while not (server.started or serving.done()):
        await asyncio.sleep(0.01)
    ready()
    ended, _ = await asyncio.wait({serving}, timeout=LAUNCH_S)
    if ended:
        await serving
        return
    launching = asyncio.ensure_future(asyncio.to_thread(launch))
    done, _ = await asyncio.wait({serving, launching}, return_when=asyncio.FIRST_COMPLETED)
    if launching in done and launching.exception() is not None:
        end()
    await serving
    await launching


_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder for one service alone; `InputError` where another has it, or others write to it.

    Jobs are started by what the databases in it say, and files of it are shown.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if why := open_to_others(folder):
            hint = "name a folder of yours, or one that is not there yet"
            raise InputError("others could start jobs as you", where=str(folder), by=why, hint=hint)
        lock = os.fdopen(os.open(folder / "lock", _LOCK, 0o600), "w")
    except OSError as error:
        raise InputError(
            f"cannot be used: {error.strerror}", where=str(folder), hint="name another folder"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                "another service has this folder", where=str(folder), hint="name another folder"
            ) from None
        yield
