"""Workers that are Ray actors, one per device, on the machines of a Ray cluster.

Ray chooses the machine: one with ``cores`` free CPUs (and a GPU for a GPU), and, where the Ray
cluster has custom resources named as the nodes of ours, the one that offers the device's node.
A machine is given such a name when it joins:

    ray start --address HEAD:6379 --resources '{"node-a": 1}'

Tensors go from actor to actor through torch.distributed; orders, state and results are calls.
Where no Ray cluster is running, one is started on this machine for as long as the run takes.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from placewright.cluster.cluster import Cluster
from placewright.errors import MissingDependencyError, RunError
from placewright.runtime import limits
from placewright.runtime.engines.ray_group import RayGroup, served_devices
from placewright.runtime.engines.ray_keeper import Keeper
from placewright.runtime.host import Host
from placewright.runtime.proc import children_of, is_stopped
from placewright.runtime.scratch import remove_all
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
            self._keeper.close()

    @property
    def ray(self) -> Any:
        """The module `ray`, connected within the context."""
        return self._ray

    def group(self, cluster: Cluster, program: str = PLACED_STEPS) -> RayGroup:
        """Actors for devices of the cluster."""
        return RayGroup(self._ray, cluster, emulate=self._emulate, program=program)

    def reachable(self, names: Sequence[str]) -> frozenset[str]:
        """Which of the devices called `names` are on machines that Ray has now."""
        return served_devices(self._cluster, self._ray.cluster_resources()).intersection(names)

    def emulated(self, cluster: Cluster, hosts: Sequence[Host]) -> str:
        """See `Engine.emulated`."""
        return emulated(cluster, hosts, emulate=self._emulate)

    def _connect(self) -> None:
        """To the cluster that ``RAY_ADDRESS`` names or that runs here, else to one of our own."""
        # Else Ray puts the current folder before the standard library in every actor. The flag does
        # nothing else where no runtime environment is given. `RayGroup` hands the folder on.
        job = self._ray.job_config.JobConfig(_client_job=True)
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "job_config": job}
        try:
            self._ray.init(address="auto", **quiet)
        except ConnectionError as error:
            if "RAY_ADDRESS" in os.environ:
                raise RunError(
                    "no Ray cluster answers",
                    where=f"RAY_ADDRESS={os.environ['RAY_ADDRESS']}",
                    by=str(error).strip().splitlines()[0],
                    hint="`ray start --head` starts one; without RAY_ADDRESS one is started here",
                ) from None
            _protect_own()
            _end_without_head()
            cores = sum(device.cores for device in self._cluster.devices)
            cpus = max(cores, os.cpu_count() or 1)
            threading.Thread(target=watch_head, args=(self._closing,), daemon=True).start()
            try:
                # Before Ray: a launcher that is killed in between leaves nothing behind.
                self._keeper.begin()
                self._ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
            except BaseException:
                self._closing.set()
                self._keeper.close()
                raise


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
        heads = _heads()
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
            print(f"error: {_GONE}", file=sys.stderr, flush=True)
            remove_all()
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(1)


HEAD = "gcs_server"

_LOOK_S = 0.25
"""Shorter than the head lives: it may be killed while Ray is still starting."""

_GONE = RunError(
    "Ray's head has ended",
    where=f"its process {HEAD} on this machine",
    by=f"for {limits.HEAD_S:g} s",
    hint="start the run again; with --snapshots it continues from the last one",
)


def _heads() -> dict[int, str]:
    """The processes of a Ray started here that all others need, by identifier."""
    found = {}
    for pid in children_of(os.getpid()):
        with suppress(OSError, IndexError):
            name, state = Path(f"/proc/{pid}/stat").read_text().split("(", 1)[1].rsplit(") ", 1)
            if name in (HEAD, "raylet") and state[0] not in "ZX":
                found[pid] = name
    return found


def _protect_own() -> None:
    """Give a Ray that is started here a token, without which it executes what anyone sends it.

    Ray makes one by itself, but in a file that other users may be able to read. A choice in the
    environment is respected.
    """
    if not any(name in os.environ for name in _TOKENS):
        os.environ[_TOKENS[0]] = secrets.token_hex(32)


def _end_without_head() -> None:
    """Let the processes of a Ray that is started here end soon after its head, not in a minute."""
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "15")


_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Of several workers that fail, one is reported: Ray need not print the others.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        return import_module("ray")
    except ModuleNotFoundError:
        raise MissingDependencyError("ray", extra="ray", purpose="--engine ray") from None
