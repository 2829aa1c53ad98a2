"""Workers that are Ray actors, one per device, on the machines of a Ray cluster.

Ray chooses the machine: one with ``cores`` free CPUs (and a GPU for a GPU), and, where the Ray
cluster has custom resources named as the nodes of ours, the one that offers the device's node.
A machine is given such a name when it joins:

    ray start --address HEAD:6379 --resources '{"node-a": 1}'

Tensors go from actor to actor through torch.distributed; orders, state and results are calls.

Ray executes what it receives, so the Ray cluster is one that the user has named: by
``RAY_ADDRESS``, or by a call of ``ray.init``. One that merely runs on this machine may be
anybody's. Where none is named, one is started here for as long as the run takes, on loopback and in
a folder that only this user can enter.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, MissingDependencyError, PlacewrightError, RunError
from placewright.runtime import limits
from placewright.runtime.engines.ray_group import LOOPBACK, RayGroup, served_devices
from placewright.runtime.engines.ray_keeper import Keeper
from placewright.runtime.host import Host, children_of, is_stopped
from placewright.runtime.scratch import (
    SOCKET_PATH_BYTES,
    Scratch,
    private_temporary_files,
    remove_all,
    scratch_for_sockets,
)
from placewright.runtime.specs import PLACED_STEPS, emulated


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
        self._closing = threading.Event()

    def __enter__(self) -> Ray:
        if not self._ray.is_initialized():
            self._own = True
            before = signal.getsignal(signal.SIGTERM)
            self._connect()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)  # Ray's would end the process without a word
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        if self._own:
            self._ray.shutdown()
            self._end_rest()

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
            self._join(named)
        else:
            self._start()

    def _options(self) -> dict[str, Any]:
        # Else Ray puts the current folder before the standard library in every actor. The flag does
        # nothing else where no runtime environment is given. `RayGroup` hands the folder on.
        job = self._ray.job_config.JobConfig(_client_job=True)
        return {"log_to_driver": False, "logging_level": "ERROR", "job_config": job}

    def _join(self, address: str) -> None:
        try:
            self._ray.init(address=address, **self._options())
        except ConnectionError as error:
            raise RunError(
                "no Ray cluster answers",
                where=f"RAY_ADDRESS={address}",
                by=str(error).strip().splitlines()[0],
                hint="`ray start --head` starts one; without RAY_ADDRESS one is started here",
            ) from None

    def _start(self) -> None:
        _protect_own()
        _set_defaults()
        cores = sum(device.cores for device in self._cluster.devices)
        self._folder = _folder_for_ray()
        # Ray opens its own folder to all users (mode 777); nobody else comes through the outer one.
        folder = os.path.join(self._folder.name, _INNER)
        threading.Thread(target=watch_head, args=(self._closing,), daemon=True).start()
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
        except BaseException as error:
            self._closing.set()
            self._end_rest()
            if isinstance(error, Exception) and not isinstance(error, PlacewrightError):
                raise _start_error(error) from None  # Ray's have no class of their own
            raise

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


def watch_head(closing: threading.Event) -> None:
    """Kill the head of the Ray that this process has started once it has been stopped for long.

    Calls of Ray wait inside of C++, without a limit, for as long as its connections are open, and
    those of a stopped process (SIGSTOP) are. Where the head is gone, they wait until Ray ends this
    process from C++, which leaves its folders behind: it is ended here before.
    """
    since: dict[int, float] = {}
    seen = False
    gone_since: float | None = None
    while not closing.wait(_LOOK_S):
        now = time.monotonic()
        heads = heads_of(os.getpid())
        for pid in heads:
            if not is_stopped(pid):
                since.pop(pid, None)
            elif now - since.setdefault(pid, now) >= limits.patience(limits.STOPPED_S):
                what = f"a process of Ray is stopped (SIGSTOP) for {now - since.pop(pid):.0f} s"
                print(f"error: {what}, process {pid}: killed", file=sys.stderr, flush=True)
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if HEAD in heads.values():
            seen, gone_since = True, None
        # Not before one was seen: Ray takes a while to start it.
        elif seen and now - (gone_since := gone_since or now) >= limits.HEAD_S:
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
    found = {}
    for pid in children_of(launcher):
        with suppress(OSError, IndexError):
            name, state = Path(f"/proc/{pid}/stat").read_text().split("(", 1)[1].rsplit(") ", 1)
            if name in _ROLES and state[0] not in "ZX":
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
