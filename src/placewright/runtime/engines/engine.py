"""Engines: ways to start workers, by the names that ``--engine`` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Annotated, Protocol, TypeAlias

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, UnknownNameError
from placewright.io.arguments import OneOf
from placewright.runtime.engines.group import WorkerGroup
from placewright.runtime.host import Host
from placewright.runtime.specs import PLACED_STEPS

ENGINES = {
    "local": "placewright.runtime.engines.local:local",
    "testbed": "placewright.runtime.engines.local:on_testbed",
    "torchrun": "placewright.runtime.engines.torchrun:Torchrun",
    "ray": "placewright.runtime.engines.ray_engine:Ray",
}
"""Where each is: what opens it for a cluster, with `emulate` as a keyword."""

EngineName: TypeAlias = Annotated[str, OneOf(*ENGINES)]


class Engine(Protocol):
    """A way to have workers."""

    @property
    def name(self) -> str:
        """As on the command line."""

    def group(self, cluster: Cluster, program: str = PLACED_STEPS) -> WorkerGroup:
        """Workers that execute `program` for the devices of `cluster`; none is started yet.

        Raises `PlacewrightError`: they cannot be had here.
        """

    def emulated(self, cluster: Cluster, hosts: Sequence[Host]) -> str:
        """What is emulated on these hosts, in words; empty if nothing."""


def open_engine(
    name: str, cluster: Cluster, *, emulate: bool = True, together: bool | None = None
) -> AbstractContextManager[Engine]:
    """The engine of that name, ready for sessions on `cluster` and on parts of it.

    Raises `PlacewrightError`: it cannot be had here; the message names what is missing. Or it has
    one process for each GPU, and `together` wants another number.

    Parameters
    ----------
    emulate
        Wait where devices and links are slower than the machines.
    together
        One process for all GPUs of a node, or one each (`layout.assign_processes`);
        torchrun and Ray start one each.
    """
    if together and name in ENGINES and name != "local":
        raise InputError(
            "one process for all GPUs of a node is for the engine local",
            where=f"engine {name}",
            by="it has one process for each device",
            hint="use --engine local, or leave out --gpus together",
        )
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    module, _, attribute = ENGINES[name].partition(":")
    opened: Callable[..., AbstractContextManager[Engine]]
    opened = getattr(import_module(module), attribute)
    if name == "local":
        return opened(cluster, emulate=emulate, together=together)
    return opened(cluster, emulate=emulate)
