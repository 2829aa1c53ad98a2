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
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from placewright.cluster.cluster import Cluster
from placewright.errors import MissingDependencyError, RunError
from placewright.runtime.engines.ray_group import RayGroup, served_devices
from placewright.runtime.host import Host
from placewright.runtime.specs import PLACED_STEPS, emulated


class Ray:
    """The engine; a context manager that connects to Ray, or starts it.

    Parameters
    ----------
    cluster
        Its devices become actors.

    Raises
    ------
    MissingDependencyError
        Ray is not installed.
    """

    name = "ray"

    def __init__(self, cluster: Cluster, *, emulate: bool = True) -> None:
        self._cluster, self._emulate = cluster, emulate
        self._ray = _imported()
        self._own = False  # a caller's Ray outlives the engine

    def __enter__(self) -> Ray:
        if not self._ray.is_initialized():
            self._own = True
            before = signal.getsignal(signal.SIGTERM)
            self._connect()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)  # Ray's would end the process without a word
        return self

    def __exit__(self, *exception: object) -> None:
        if self._own:
            self._ray.shutdown()

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
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
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
            cores = sum(device.cores for device in self._cluster.devices)
            cpus = max(cores, os.cpu_count() or 1)
            self._ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)


def _protect_own() -> None:
    """Give a Ray that is started here a token, without which it executes what anyone sends it.

    Ray makes one by itself, but in a file that other users may be able to read. A choice in the
    environment is respected.
    """
    if not any(name in os.environ for name in _TOKENS):
        os.environ[_TOKENS[0]] = secrets.token_hex(32)


_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Of several workers that fail, one is reported: Ray need not print the others.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        return import_module("ray")
    except ModuleNotFoundError:
        raise MissingDependencyError("ray", extra="ray", purpose="--engine ray") from None
