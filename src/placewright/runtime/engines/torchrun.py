"""Workers that torchrun has started, on this machine and on others.

    torchrun --master-port 29500 --nproc-per-node 2 -m placewright operators run ...

Rendezvous and membership are torchrun's. Orders, state and results go through the connections
that keepers and workers have dialled (see `placewright.runtime.engines.agent`), tensors from
worker to worker through torch.distributed; no disk is shared.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, RunError
from placewright.runtime import limits
from placewright.runtime.connections.authentication import Listener
from placewright.runtime.connections.channel import Channel
from placewright.runtime.engines.agent import end_with_agent, keep
from placewright.runtime.engines.connecting import (
    known_secret,
    listen,
    on_one_machine,
    warn_of_open_rendezvous,
)
from placewright.runtime.engines.ranks import seating
from placewright.runtime.engines.torchrun_group import TorchrunGroup
from placewright.runtime.host import Host, loopback
from placewright.runtime.scratch import Scratch
from placewright.runtime.specs import emulated, worker_specs


class Torchrun:
    """The engine, in the process of rank 0; a context manager that the keepers dial.

    Parameters
    ----------
    cluster
        Its devices are served by torchrun's processes, one each.

    Raises
    ------
    InputError
        This is not a process of torchrun's, there are more or fewer of them than devices, or they
        are on several machines and no secret is given.

    Warns
    -----
    OpenRendezvousWarning
        Others can have torchrun itself execute what they send.
    """

    name = "torchrun"

    def __init__(self, cluster: Cluster, *, emulate: bool = True) -> None:
        self._cluster, self._emulate = cluster, emulate
        self._world = _world(cluster)
        known_secret()
        end_with_agent()
        warn_of_open_rendezvous()
        self._sessions = 0
        self._seats: dict[str, int] = {}
        self._keepers: dict[int, Channel] = {}
        self._hosts: dict[int, Host] = {}
        self._door: Listener
        self._folder: Scratch
        self._before: Any = signal.SIG_DFL

    def __enter__(self) -> Torchrun:
        # torchrun's way to end us when another rank fails
        self._before = signal.signal(signal.SIGTERM, _leave)
        self._folder = Scratch()
        self._door, secret = listen(Path(self._folder.name))
        threading.Thread(target=keep, args=(self._door.port, secret), daemon=True).start()
        limit_s = limits.patience(limits.GATHER_S)
        while len(self._keepers) < self._world:
            called = self._door.accept(limit_s)
            if called is None:
                raise self._absent(limit_s)
            (rank, host), connection = called
            self._keepers[rank], self._hosts[rank] = connection, host
        self._seats = seating(self._cluster, [self._hosts[r] for r in range(self._world)])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for agent in self._keepers.values():
            agent.close()
        self._door.close()
        self._folder.cleanup()
        signal.signal(signal.SIGTERM, self._before)

    def group(self, cluster: Cluster) -> TorchrunGroup:
        """Workers for devices of the cluster, each with its keeper.

        Raises
        ------
        UnsupportedError
            A device that its host can neither be nor emulate.
        """
        self._sessions += 1
        ranks = [self._seats[name] for name in cluster.device_names]
        hosts = [self._hosts[rank] for rank in ranks]
        specs = [
            replace(
                spec,
                rendezvous=self._meeting_point(),
                session=str(self._sessions),
                interface=loopback() if on_one_machine() else "",
            )
            for spec in worker_specs(cluster, hosts, emulate=self._emulate)
        ]
        keepers = [self._keepers[rank] for rank in ranks]
        return TorchrunGroup(specs, hosts, keepers, self._door)

    def _absent(self, limit_s: float) -> RunError:
        missing = [str(rank) for rank in range(self._world) if rank not in self._keepers]
        self.__exit__(None, None, None)
        return RunError(
            "processes that torchrun has started do not call",
            where=f"rank {', '.join(missing)}",
            by=f"waited {limit_s:.0f} s for each of {self._world}",
            hint="are they stopped, or is their way to rank 0's machine closed? "
            f"{limits.VARIABLE}=4 waits four times as long",
        )

    def _meeting_point(self) -> str:
        """A file of ours on one machine; among several machines torchrun's store."""
        if on_one_machine():
            return f"file://{self._folder.name}/session-{self._sessions}"
        return "env://"

    def emulated(self, cluster: Cluster, hosts: Sequence[Host]) -> str:
        """What is emulated, in words; empty if nothing."""
        return emulated(cluster, hosts, emulate=self._emulate)


def _world(cluster: Cluster) -> int:
    """How many processes torchrun has started: one per device."""
    devices, where = len(cluster.devices), cluster.name
    again = (
        f"torchrun --master-port 29500 --nproc-per-node {devices} -m placewright operators run ..."
    )
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        raise InputError(
            "--engine torchrun needs processes that torchrun has started",
            where=where,
            by="RANK and WORLD_SIZE are not set",
            hint=f"start it with {again}",
        )
    world = int(os.environ["WORLD_SIZE"])
    if world != devices:
        raise InputError(
            f"torchrun has started {world} processes for {devices} devices",
            where=where,
            by=f"{abs(world - devices)} too {'many' if world > devices else 'few'}",
            hint=f"start it with {again}, or so many over all nodes",
        )
    return world


def _leave(number: int, frame: FrameType | None) -> Any:
    raise RunError(
        "torchrun has ended this run",
        by=f"signal {number}",
        hint="another rank has failed: torchrun tells below which one and how",
    )
