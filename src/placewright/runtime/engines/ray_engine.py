"""Workers that are Ray actors, one per device, on the machines of a Ray cluster.

Ray chooses the machine: one with ``cores`` free CPUs (and a GPU for a GPU), and, where the Ray
cluster has custom resources named as the nodes of ours, the one that offers the device's node.
A machine is given such a name when it joins:

    ray start --address HEAD:6379 --resources '{"node-a": 1}'

Tensors go from actor to actor through torch.distributed; orders, state and results are calls.

Ray executes what it receives, so the Ray cluster is one that the user has named: by
``RAY_ADDRESS``, or by a call of ``ray.init``. One that merely runs on this machine may be
anybody's. Where none is named, one is started here for as long as the run takes, on loopback and in
a folder that only this user can enter. Of the actors Ray reports deaths.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import (
    InputError,
    MissingDependencyError,
    PlacewrightError,
    RunError,
    WorkerError,
)
from placewright.io.scratch import (
    SOCKET_PATH_BYTES,
    Scratch,
    private_temporary_files,
    remove_all,
    scratch_for_sockets,
)
from placewright.runtime import limits
from placewright.runtime.engines.engine import STARTING, WorkerGroup
from placewright.runtime.engines.ray_keeper import Keeper
from placewright.runtime.host import Host, children_of, is_stopped, loopback
from placewright.runtime.program import start_program
from placewright.runtime.specs import PLACED_STEPS, WorkerSpec, emulated, worker_specs


class Ray:
    """The engine; a context manager that connects to Ray, or starts it.

    `cluster`: its devices become actors.
    Raises `MissingDependencyError`: Ray is not installed.
    """

    name = "ray"

    def __init__(self, cluster: Cluster, *, emulate: bool = True) -> None:
        self._cluster, self._emulate = cluster, emulate
        self._ray = _imported()
        self._own = False  # a caller's Ray outlives the engine
        self._keeper = Keeper()
        self._folder: Scratch | None = None  # of a Ray that is started here
        self._heads: frozenset[str] = frozenset()  # and its processes that all others need
        self._address = ""  # and where its head listens
        self._closing, self._closed = threading.Event(), threading.Event()

    def __enter__(self) -> Ray:
        if not self._ray.is_initialized():
            self._own = True
            self._silence()
            with _handlers_stay():
                self._connect()
            _install_again(signal.SIGTERM)  # Ray's C++ would print a page of stack before it
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        try:
            if self._own:
                with _handler_comes_back():
                    self._ray.shutdown()
                self._closed.set()
                self._end_rest()
                self._silence(False)
        finally:
            self._closed.set()

    @staticmethod
    def _silence(silent: bool = True) -> None:
        """Keep what Ray says of deaths, which are reported here, from stdout.

        There a caller may read JSON. Ray's own option is about what actors print.
        """
        printing: Any = import_module("ray._private.worker")
        printing._worker_logs_enabled = not silent

    @property
    def ray(self) -> Any:
        """The module `ray`, connected within the context."""
        return self._ray

    def group(self, cluster: Cluster, program: str = PLACED_STEPS) -> RayGroup:
        """Actors for devices of the cluster."""
        return RayGroup(
            self._ray, cluster, emulate=self._emulate, program=program, lost_head=self.lost_head
        )

    def lost_head(self) -> RunError | None:
        """The error of a Ray that was started here and has lost a process that all others need."""
        gone = sorted(self._heads.difference(heads_of(os.getpid()).values())) if self._heads else []
        return _head_error(gone[0]) if gone else None

    def reachable(self, names: Sequence[str]) -> frozenset[str]:
        """Which of the devices called `names` are on machines that Ray has now."""
        return served_devices(self._cluster, self._ray.cluster_resources()).intersection(names)

    def emulated(self, cluster: Cluster, hosts: Sequence[Host]) -> str:
        """See `Engine.emulated`."""
        return emulated(cluster, hosts, emulate=self._emulate)

    def _connect(self) -> None:
        """To the Ray that ``RAY_ADDRESS`` names, else to one of our own."""
        named = os.environ.get("RAY_ADDRESS", "").strip()
        if named == "auto":
            raise InputError(
                "which Ray is meant is not said",
                where="RAY_ADDRESS=auto",
                by="a Ray that runs on this machine may be another user's, and executes code here",
                hint="RAY_ADDRESS=HOST:PORT names one; without RAY_ADDRESS one is started here",
            )
        if named and named != "local":
            host, _, port = named.rpartition(":")
            known = re.fullmatch(r"[^/\s]+:[0-9]{1,5}", named)  # MODULE:// makes Ray import it
            if known is None or int(port) > 65_535:
                raise InputError(
                    "is no address of a Ray cluster",
                    where="RAY_ADDRESS",
                    by=f"got {named[:100]!r}",
                    hint="give HOST:PORT; without RAY_ADDRESS a Ray is started here",
                )
            self._join(named, host.strip("[]"), int(port))
        else:
            self._start()

    def _options(self) -> dict[str, Any]:
        # Else Ray puts the current folder before the standard library in every actor. The flag does
        # nothing else where no runtime environment is given. `RayGroup` hands the folder on.
        job = self._ray.job_config.JobConfig(_client_job=True)
        return {"log_to_driver": False, "logging_level": "ERROR", "job_config": job}

    def _join(self, address: str, host: str, port: int) -> None:
        try:
            # Where nobody listens Ray tries for minutes.
            socket.create_connection((host, port), limits.patience(limits.STOPPED_S)).close()
            self._ray.init(address=address, **self._options())
        except OSError as error:
            raise RunError(
                "no Ray cluster answers",
                where=f"RAY_ADDRESS={address}",
                by=(str(error).strip().splitlines() or [type(error).__name__])[0],
                hint="`ray start --head` starts one; without RAY_ADDRESS one is started here",
            ) from None

    def _start(self) -> None:
        _protect_own()
        _set_defaults()
        cores = sum(device.cores for device in self._cluster.devices)
        self._folder = _folder_for_ray()
        # Ray opens its own folder to all users (mode 777); nobody else comes through the outer one.
        folder = os.path.join(self._folder.name, _INNER)
        watched = self._closing, self._closed, self._head_answers
        threading.Thread(target=watch_head, args=watched, daemon=True).start()
        try:
            # Before Ray: a launcher that is killed in between leaves nothing behind.
            self._keeper.begin(folder)
            with _on_loopback(), private_temporary_files():
                self._ray.init(
                    address="local",
                    num_cpus=max(cores, os.cpu_count() or 1),
                    include_dashboard=False,
                    _node_ip_address=LOOPBACK,
                    _temp_dir=folder,
                    **self._options(),
                )
            self._heads = frozenset(heads_of(os.getpid()).values())
            self._address = self._ray.get_runtime_context().gcs_address
        except BaseException as error:
            self._closing.set()
            self._closed.set()
            self._end_rest()
            if isinstance(error, Exception) and not isinstance(error, PlacewrightError):
                raise _start_error(error) from None  # Ray's have no class of their own
            raise

    def _head_answers(self) -> bool:
        """Whether the head of a Ray that was started here listens, as far as that is known.

        One that was asked to end no longer does, and may then live on for longer than this process.
        """
        host, _, port = self._address.rpartition(":")
        if not host:
            return True
        try:
            socket.create_connection((host, int(port)), _LOOK_S).close()
        except TimeoutError:  # it is stopped, or the machine busy
            return True
        except OSError:
            return False
        return True

    def _end_rest(self) -> None:
        """Of the Ray that was started here: processes that have not ended yet, and files."""
        self._keeper.close()
        if self._folder is not None:
            self._folder.cleanup()


def _start_error(error: Exception) -> RunError:
    return RunError(
        "Ray does not start here",
        where=f"ray.init on {LOOPBACK}",
        by=" ".join(str(error).split())[:300] or type(error).__name__,
        hint="is the machine busy (Ray waits 30 s for its own start) or out of memory? Start the "
        "run again, or start Ray yourself and name it by RAY_ADDRESS",
    )


_INNER = "r"
_SOCKET = f"{_INNER}/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"


def _folder_for_ray() -> Scratch:
    """Where Ray's sockets have paths that are short enough.

    Raises `RunError`: it cannot be made.
    """
    try:
        return scratch_for_sockets(_SOCKET)
    except OSError as error:
        raise RunError(
            "there is no folder for Ray's sockets",
            where=str(error.filename or "the temporary folder"),
            by=f"{error.strerror}; a socket's path has at most {SOCKET_PATH_BYTES} bytes",
            hint="let TMPDIR be a folder with a short path, such as /tmp",
        ) from None


@contextmanager
def _handlers_stay() -> Iterator[None]:
    """Let SIGTERM do what it did before, also while Ray starts: Ray's own handlers exit silently.

    One of them would stand for the seconds of its start, with an exit code (15) of its own.
    """
    names: Any = import_module("ray._private.utils")
    install, names.set_sigterm_handler = names.set_sigterm_handler, lambda _: None
    try:
        yield
    finally:
        names.set_sigterm_handler = install


@contextmanager
def _handler_comes_back() -> Iterator[None]:
    """Hear SIGTERM while Ray ends its processes, and afterwards.

    When Ray's C++ lets go of its worker it takes the handler of the process away, of which Python
    knows nothing: SIGTERM would end the process at once, with its folders left behind.
    """
    node: Any = getattr(import_module("ray._private.worker"), "_global_node", None)
    end = getattr(node, "kill_all_processes", None)

    def end_heard(*args: Any, **keywords: Any) -> Any:
        _install_again(signal.SIGTERM)
        return end(*args, **keywords)  # type: ignore[misc]

    if end is not None:
        node.kill_all_processes = end_heard
    try:
        yield
    finally:
        _install_again(signal.SIGTERM)


def _install_again(number: signal.Signals) -> None:
    """Install the handler that Python has for a signal."""
    handler = signal.getsignal(number)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let all processes of a Ray that starts meanwhile listen on loopback only.

    Ray offers that for Windows and macOS, where firewalls ask the user otherwise, by a variable
    that it reads when it is imported. Without it, Ray takes 127.0.0.1 for the machine's address in
    the network, and listens on all interfaces.
    """
    constants: Any = import_module("ray._private.ray_constants")
    before, environment = constants.ENABLE_RAY_CLUSTER, os.environ.get(_CLUSTERS)
    constants.ENABLE_RAY_CLUSTER, os.environ[_CLUSTERS] = False, "0"
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        if environment is None:
            del os.environ[_CLUSTERS]
        else:
            os.environ[_CLUSTERS] = environment


_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def watch_head(
    closing: threading.Event, closed: threading.Event, answers: Callable[[], bool] = lambda: True
) -> None:
    """Kill head and workers of the Ray that this process has started where they are stopped.

    From `closing` to `closed` they are let go on instead: Ray ends them, and soon itself, unless it
    waits for a head that somebody else has ended.

    Calls of Ray wait inside of C++, without a limit, for as long as its connections are open, and
    those of a stopped process (SIGSTOP) are. Where the head is gone, or no longer `answers`, they
    wait until Ray ends this process from C++, which leaves its folders behind: it is ended here
    before. Of a stopped worker Ray knows nothing either, but reports its death to whoever waits.
    """
    since: dict[int, float] = {}
    seen = False
    gone_since: float | None = None
    while not closed.wait(_LOOK_S):
        now, ends = time.monotonic(), closing.is_set()
        heads = heads_of(os.getpid())
        for pid in (*heads, *workers_of(heads)):
            if not is_stopped(pid):
                since.pop(pid, None)
            elif ends:
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)
            elif now - since.setdefault(pid, now) >= limits.patience(limits.STOPPED_S):
                what = f"a process of Ray is stopped (SIGSTOP) for {now - since.pop(pid):.0f} s"
                print(f"error: {what}, process {pid}: killed", file=sys.stderr, flush=True)
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if HEAD in heads.values() and answers():
            seen, gone_since = True, None
        # Not before one was seen: Ray takes a while to start it, and to end it.
        elif seen and now - (gone_since := gone_since or now) >= limits.HEAD_S * (
            1.5 if ends else 1
        ):
            print(f"error: {_head_error(HEAD)}", file=sys.stderr, flush=True)
            remove_all()
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(1)


HEAD = "gcs_server"

_ROLES = {HEAD: "head", "raylet": "agent, which starts the actors and reports their deaths,"}

_LOOK_S = 0.25
"""Shorter than the head lives: it may be killed while Ray is still starting."""


def _head_error(name: str) -> RunError:
    return RunError(
        f"Ray's {_ROLES[name]} has ended",
        where=f"process {name} on this machine",
        by="all workers are lost with it",
        hint="start the run again; with --snapshots it continues from the last one. If it was "
        "killed for memory, lower --batch",
    )


def heads_of(launcher: int) -> dict[int, str]:
    """The processes of the Ray that a process has started which all others need, by identifier."""
    return {pid: name for pid, name in _living(launcher).items() if name in _ROLES}


def workers_of(heads: Mapping[int, str]) -> list[int]:
    """Processes that the raylet among them has started for actors, whatever they do now."""
    raylets = [pid for pid, name in heads.items() if name != HEAD]
    found = [item for pid in raylets for item in _living(pid).items()]
    return [pid for pid, name in found if name.startswith(_WORKER) and name not in _AGENTS]


_WORKER, _AGENTS = "ray::", ("ray::DashboardA", "ray::RuntimeEnv")
"""Names of its children, of which the kernel keeps 15 bytes."""


def _living(parent: int) -> dict[int, str]:
    """Names of its child processes, zombies aside."""
    found = {}
    for pid in children_of(parent):
        with suppress(OSError, IndexError):
            name, state = Path(f"/proc/{pid}/stat").read_text().split("(", 1)[1].rsplit(") ", 1)
            if state[0] not in "ZX":
                found[pid] = name
    return found


def _protect_own() -> None:
    """Give a Ray that is started here a token, without which it executes what anyone sends it.

    Ray makes one by itself, but in a file that other users may be able to read. A choice in the
    environment is respected.
    """
    if not any(name in os.environ for name in _TOKENS):
        os.environ[_TOKENS[0]] = secrets.token_hex(32)


def _set_defaults() -> None:
    """Settings of a Ray that is started here, where the environment has none."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


_DEFAULTS = {
    # Its processes end soon after its head, not in a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
    # Ray would begin a process for each CPU and use none of them: 9 of 23 s of CPU time.
    "RAY_enable_worker_prestart": "0",
    # Workers of other engines give way to nobody, either; with 15 they starve on a busy machine.
    "RAY_worker_niceness": "0",
}

_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Of several workers that fail, one is reported: Ray need not print the others.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        import_module("ray.dag.compiled_dag_node")  # else at exit, where Ctrl-C has no handler
        return import_module("ray")
    except ModuleNotFoundError:
        raise MissingDependencyError("ray", extra="ray", purpose="--engine ray") from None


JOB_ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Environment variables that name the cluster, as for ``ray job submit``: ``http://HEAD:8265``."""


def job_client() -> Any:
    """What submits jobs to the cluster that the environment names.

    Raises
    ------
    InputError
        It names none.
    RunError
        Nobody answers there.
    MissingDependencyError
        Ray's job API is not installed.
    """
    address = next(filter(None, map(os.environ.get, JOB_ADDRESSES)), "")
    name = JOB_ADDRESSES[0]
    if not address.startswith(("http://", "https://")):
        raise InputError(
            "the Ray cluster is not named",
            where="--engine ray",
            by=f"{name} is {address!r:.100}" if address else f"{name} is not set",
            hint=f"{name}=http://HEAD:8265, as `ray start --head` prints it",
        )
    try:
        return import_module("ray.job_submission").JobSubmissionClient(address)
    except ModuleNotFoundError as error:
        purpose = "--engine ray"
        raise MissingDependencyError(str(error.name), extra="ray", purpose=purpose) from None
    except (ConnectionError, RuntimeError) as error:
        words = (str(error).strip().splitlines() or [""])[0]
        hint = "start it: ray start --head"
        raise RunError("no Ray cluster answers", where=address, by=words, hint=hint) from None


PLACED_S = 60.0
"""An actor that Ray has not placed by then finds no machine."""

_SETTLE_S = 1.0
"""Until Ray knows which actor has died."""

LOOPBACK = "127.0.0.1"

JOIN = "ray start --address HEAD:6379"

_SHARE = 0.001
"""Of a node's resource: enough to be placed there, and any number of devices may be."""


class RayWorker:
    """One worker as a Ray actor: the same program, whose orders are calls.

    `path`: folders in which modules are looked for that are found nowhere else.
    """

    def __init__(self, path: Sequence[str] = ()) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]

    def host(self) -> Host:
        """The machine that Ray has chosen."""
        return Host.here()

    def meeting_point(self) -> str:
        """Where the others find this worker: an address and a port that is free now."""
        from ray.util import get_node_ip_address

        address: str = get_node_ip_address()  # type: ignore[no-untyped-call]
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"tcp://{address}:{probe.getsockname()[1]}"

    def begin(self, spec: WorkerSpec) -> None:
        """Start the program; returns when all workers have met."""
        self._program = start_program(spec)

    def obey(self, name: str, arguments: Sequence[Any]) -> Any:
        """Carry out one order and return its answer."""
        return self._program.obey(name, arguments)


class RayGroup(WorkerGroup):
    """One actor per device. Ray ends them with the process that made them.

    `lost_head`: the error that explains the loss of any number of actors, where Ray itself is lost.
    """

    def __init__(
        self,
        ray: Any,
        cluster: Cluster,
        *,
        emulate: bool,
        program: str = PLACED_STEPS,
        lost_head: Callable[[], RunError | None] = lambda: None,
    ) -> None:
        self._ray, self._cluster, self._emulate = ray, cluster, emulate
        self._lost_head = lost_head
        self.program = program
        self.names = cluster.device_names
        self.actors: list[Any] = []
        self._posted: deque[tuple[str, list[Any]]] = deque()

    def start(self) -> None:
        """See `WorkerGroup.start`."""
        offered = self._ray.cluster_resources()
        self._check_head()  # which has taken this machine with it
        kind = self._ray.remote(RayWorker)
        needs = actor_options(self._cluster, offered)
        path = [os.path.abspath(folder) for folder in sys.path]
        self.actors = [kind.options(**need).remote(path) for need in needs]
        self.hosts = tuple(self._placed([a.host.remote() for a in self.actors], needs, offered))
        specs = worker_specs(self._cluster, self.hosts, emulate=self._emulate, program=self.program)
        call = self.actors[0].meeting_point.remote()
        (meeting,) = self._answers([call], self.start_limit_s, STARTING)
        here = loopback() if urlsplit(meeting).hostname == LOOPBACK else ""
        self.specs = tuple(replace(spec, rendezvous=meeting, interface=here) for spec in specs)
        pairs = zip(self.actors, self.specs, strict=True)
        begun = [actor.begin.remote(spec) for actor, spec in pairs]
        self._answers(begun, self.start_limit_s, STARTING)

    def post(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """See `WorkerGroup.post`."""
        pairs = zip(self.actors, arguments, strict=True)
        calls = [actor.obey.remote(name, values) for actor, values in pairs]
        self._posted.append((name, calls))

    @property
    def unanswered(self) -> int:
        """See `WorkerGroup.unanswered`."""
        return len(self._posted)

    def collect_answers(self, limit_s: float | None = None) -> list[Any]:
        """See `WorkerGroup.collect_answers`."""
        name, calls = self._posted.popleft()
        limit_s = self.limit_s if limit_s is None else limit_s
        return self._answers(calls, limit_s, self.describe(name))

    def dead(self) -> tuple[int, ...]:
        """See `WorkerGroup.dead`; an actor that is busy is not dead."""
        calls = [actor.host.remote() for actor in self.actors]
        done, _ = self._ray.wait(calls, num_returns=len(calls), timeout=_SETTLE_S)
        return tuple(rank for rank, call in enumerate(calls) if call in done and self._lost(call))

    def dismiss(self) -> None:
        """See `WorkerGroup.dismiss`; nothing of theirs is left to be done."""

    def close(self) -> None:
        """See `WorkerGroup.close`."""
        for actor in self.actors:
            self._ray.kill(actor)

    def _answers(self, calls: Sequence[Any], limit_s: float, task: str) -> list[Any]:
        """One answer per actor; the first death or error ends the wait, and so does the limit."""
        answers: dict[int, Any] = {}
        countdown = limits.Countdown(limit_s)
        waiting = list(calls)
        while waiting:
            # One at a time: the first death or error ends the wait for all.
            done, waiting = self._ray.wait(waiting, num_returns=1, timeout=countdown.next_s)
            countdown.look()
            if not done:
                self._check_head()
            if not done and countdown.over:
                raise self.silent_error([calls.index(call) for call in waiting], limit_s, task)
            for call in done:
                answers[calls.index(call)] = self._answer(calls.index(call), call)
        return [answers[rank] for rank in range(len(calls))]

    def _answer(self, rank: int, call: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.RayTaskError as error:
            self._check_head()
            traceback = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Ray's colours
            raise self._first_cause(rank, traceback) from None
        except errors.RayError as error:
            self._check_head()
            raise self._death(rank, error) from None

    def _check_head(self) -> None:
        """Not an actor's fault, though Ray reports that its actors have died."""
        if (error := self._lost_head()) is not None:
            raise error

    def _first_cause(self, rank: int, traceback: str) -> WorkerError:
        """A peer's death makes the others raise too: blame the dead one if there is one."""
        gone = self.dead()
        return (
            self.died_error(gone[0], "Ray has lost its process")
            if gone
            else self.raised_error(rank, traceback)
        )

    def _death(self, rank: int, error: Exception) -> WorkerError:
        """The first sentence of the last paragraph of Ray's message is what happened."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        how = lines[-1].partition(". ")[0] if lines else type(error).__name__
        return self.died_error(rank, how)

    def _lost(self, call: Any) -> bool:
        try:
            self._ray.get(call)
        except self._ray.exceptions.RayActorError:
            return True
        return False

    def _placed(
        self,
        calls: Sequence[Any],
        needs: Sequence[Mapping[str, Any]],
        offered: Mapping[str, float],
    ) -> list[Any]:
        """The hosts, or an error that names the device for which there is none."""
        limit_s = limits.patience(PLACED_S)
        _, waiting = self._ray.wait(list(calls), num_returns=len(calls), timeout=limit_s)
        if waiting and self._have_cpus(needs, offered):
            # What takes so long is the start of their processes.
            _, waiting = self._ray.wait(list(calls), num_returns=len(calls), timeout=2 * limit_s)
        if not waiting:
            return [self._answer(rank, call) for rank, call in enumerate(calls)]
        rank = calls.index(waiting[0])
        raise InputError(
            "Ray finds no machine for a device",
            where=f"{self._cluster.name}: device {self._cluster.device_names[rank]!r}",
            by=f"needs {describe_resources(needs[rank])}; all of Ray's machines have "
            f"{describe_resources(offered)}, waited {limit_s:.0f} s",
            hint=f"`ray status` shows what is free; another machine joins by `{JOIN} ...`",
        )

    def _have_cpus(self, needs: Sequence[Mapping[str, Any]], offered: Mapping[str, float]) -> bool:
        """Whether Ray has given every actor its CPUs."""
        free = self._ray.available_resources().get("CPU", 0)
        return bool(free + sum(need["num_cpus"] for need in needs) <= offered.get("CPU", 0))


def actor_options(cluster: Cluster, offered: Mapping[str, float]) -> list[dict[str, Any]]:
    """Ray's ``options`` of each device's actor.

    `offered`: ray's resources; where one is named as a node of the cluster, all nodes must have
    one.
    Raises `InputError`: some nodes have a machine of their name and others have none, or there are
    fewer CPUs than cores.
    """
    nodes = [node.name for node in cluster.nodes]
    cores, cpus = sum(device.cores for device in cluster.devices), offered.get("CPU", 0)
    if cores > cpus:
        raise InputError(
            "Ray's machines have too few CPUs",
            where=cluster.name,
            by=f"its devices ask for {cores} cores and Ray has {cpus:g}",
            hint=f"start another machine: `{JOIN} --num-cpus {cores - int(cpus)}`",
        )
    named = any(node in offered for node in nodes)
    absent = [node for node in nodes if named and node not in offered]
    if absent:
        raise InputError(
            f"Ray has no machine for node {absent[0]!r}",
            where=cluster.name,
            by=f"resources are {describe_resources(offered)}",
            hint=f"start it with `{JOIN} --resources '{{\"{absent[0]}\": 1}}'`",
        )
    return [_options(device, named) for device in cluster.devices]


def served_devices(cluster: Cluster, offered: Mapping[str, float]) -> frozenset[str]:
    """Devices whose node's machine is there, by name.

    All of them where no machine is named as a node: which one is whose, Ray decides.
    """
    nodes = {node.name for node in cluster.nodes}
    there = nodes & offered.keys() or nodes
    return frozenset(device.name for device in cluster.devices if device.node in there)


def _options(device: Device, named: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": device.cores}
    if device.kind == "gpu":
        options["num_gpus"] = 1
    return options | (
        {"resources": {device.node: _SHARE}} if named else {"scheduling_strategy": "SPREAD"}
    )


def describe_resources(resources: Mapping[str, Any]) -> str:
    """Resources as text, without those that every Ray machine has."""
    shown = {k: v for k, v in resources.items() if not k.startswith("node:") and "memory" not in k}
    return ", ".join(f"{key} {value}" for key, value in sorted(shown.items(), key=str))
