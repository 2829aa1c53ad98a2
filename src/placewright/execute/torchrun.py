"""Workers that torchrun has started, on this machine and on others.

    torchrun --nproc-per-node 2 -m placewright operators run ... --engine torchrun

Rendezvous and membership are torchrun's. Orders, state and results go through the connections
that keepers and workers have dialled (see `placewright.execute.keeper`), tensors from worker to
worker through torch.distributed; no disk is shared.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, RunError
from placewright.execute import parcels
from placewright.execute.host import Host
from placewright.execute.keeper import PORT_KEY, SECRET_KEY, at_once, keep, store
from placewright.execute.piped import PipedGroup
from placewright.execute.seating import seating
from placewright.execute.specs import emulated, worker_specs
from placewright.execute.worker import WorkerSpec

_END_S = 10.0
"""A keeper takes less to end its worker."""


class Torchrun:
    """The engine, in the process of rank 0; a context manager that the keepers dial.

    Parameters
    ----------
    cluster
        Its devices are served by torchrun's processes, one each.

    Raises
    ------
    InputError
        This is not a process of torchrun's, or there are more or fewer of them than devices.
    """

    name = "torchrun"

    def __init__(self, cluster: Cluster, *, emulate: bool = True) -> None:
        self._cluster, self._emulate = cluster, emulate
        self._world = _world(cluster)
        self._sessions = 0
        self._seats: dict[str, int] = {}
        self._keepers: dict[int, Connection] = {}
        self._hosts: dict[int, Host] = {}
        self._listener: Listener

    def __enter__(self) -> Torchrun:
        signal.signal(signal.SIGTERM, _leave)  # torchrun's way to end us when another rank fails
        secret = secrets.token_hex(32).encode()
        self._listener = Listener(("", 0), backlog=2 * self._world, authkey=secret)
        port = int(self._listener.address[1])
        meeting = store()
        meeting.set(PORT_KEY, str(port))
        meeting.set(SECRET_KEY, secret.decode())
        threading.Thread(target=keep, args=(port, secret), daemon=True).start()
        while len(self._keepers) < self._world:
            connection = _accepted(self._listener)
            rank, host = connection.recv()
            self._keepers[rank], self._hosts[rank] = connection, host
        self._seats = seating(self._cluster, [self._hosts[r] for r in range(self._world)])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for keeper in self._keepers.values():
            keeper.close()
        self._listener.close()

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
            replace(spec, rendezvous="env://", session=str(self._sessions))
            for spec in worker_specs(cluster, hosts, emulate=self._emulate)
        ]
        keepers = [self._keepers[rank] for rank in ranks]
        return TorchrunGroup(specs, hosts, keepers, self._listener)

    def emulated(self, cluster: Cluster, hosts: Sequence[Host]) -> str:
        """What is emulated, in words; empty if nothing."""
        return emulated(cluster, hosts, emulate=self._emulate)


class TorchrunGroup(PipedGroup):
    """One worker per device, a child of the device's keeper.

    Parameters
    ----------
    keepers
        By rank, connections to those who start the workers.
    listener
        Where workers dial.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        hosts: Sequence[Host],
        keepers: Sequence[Connection],
        listener: Listener,
    ) -> None:
        self.specs, self.hosts = tuple(specs), tuple(hosts)
        self.names = tuple(spec.device_name for spec in specs)
        self.connections = []
        self._keepers, self._listener = tuple(keepers), listener
        self._codes: dict[int, int | None] = {}

    def start(self) -> None:
        """See `WorkerGroup.start`."""
        for rank, keeper in enumerate(self._keepers):
            if not _tell(keeper, self.specs[rank]):
                raise self.died(rank, "with the process that torchrun had started")
        found: dict[int, Connection] = {}
        while len(found) < len(self.specs):
            connection = _accepted(self._listener)
            found[connection.recv()] = connection
        self.connections = [found[rank] for rank in range(len(self.specs))]
        self.answers(float("inf"))

    def watched(self, rank: int) -> Connection:
        """See `PipedGroup.watched`."""
        return self._keepers[rank]

    def exit_code(self, rank: int, patience_s: float = 0.0) -> int | None:
        """See `PipedGroup.exit_code`; a keeper that is gone took its worker along."""
        if rank not in self._codes and wait([self._keepers[rank]], timeout=patience_s):
            self._codes[rank] = _told(self._keepers[rank])[1]
        return self._codes.get(rank)

    def hand_out(self, file: Path) -> list[str]:
        """A copy for every worker, sent in pieces."""
        return parcels.hand_out(self, file)

    def collect(self, verb: str, files: Sequence[Path]) -> None:
        """What workers write comes back in pieces."""
        parcels.collect(self, verb, files)

    def close(self) -> None:
        """See `WorkerGroup.close`; the keepers stay."""
        for keeper in self._keepers:
            _tell(keeper, None)
        for keeper in self._keepers:
            while wait([keeper], timeout=_END_S) and _told(keeper)[0] == "died":
                pass
        for connection in self.connections:
            connection.close()


GONE = ("gone", -int(signal.SIGKILL))
"""What is noted of a keeper that says nothing any more."""


def _tell(keeper: Connection, spec: WorkerSpec | None) -> bool:
    """Have a worker started or, told nothing, ended; whether the keeper is there."""
    try:
        keeper.send(spec)
    except OSError:
        return False
    return True


def _told(keeper: Connection) -> tuple[str, int | None]:
    """What a keeper says of its worker: that it died and how, or that it has ended it."""
    try:
        said: tuple[str, int | None] = keeper.recv()
    except (EOFError, OSError):
        return GONE
    return said


def _accepted(listener: Listener) -> Connection:
    """The next one who knows the secret."""
    while True:
        try:
            connection = listener.accept()
        except (AuthenticationError, EOFError, ConnectionError):
            continue
        assert isinstance(connection, Connection)
        at_once(connection)
        return connection


def _world(cluster: Cluster) -> int:
    """How many processes torchrun has started: one per device."""
    devices, where = len(cluster.devices), cluster.name
    again = f"torchrun --nproc-per-node {devices} -m placewright operators run ..."
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
