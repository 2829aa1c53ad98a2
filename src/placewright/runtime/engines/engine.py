"""Engines: ways to start workers, by the names that ``--engine`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Protocol, TypeAlias

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, UnknownNameError
from placewright.io.arguments import OneOf
from placewright.runtime.engines.group import WorkerGroup
from placewright.runtime.host import Host
from placewright.runtime.specs import PLACED_STEPS

ENGINES = ("local", "testbed", "torchrun", "ray")

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
