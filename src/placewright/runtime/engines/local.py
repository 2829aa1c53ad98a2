"""Workers that are children of this process, on this machine or on nodes of its testbed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.cluster.cluster import Cluster
from placewright.errors import RunError, WorkerError
from placewright.io.scratch import Scratch
from placewright.runtime import limits
from placewright.runtime.connections import LOOPBACK, Channel, connection_between
from placewright.runtime.engines.engine import STARTING
from placewright.runtime.engines.piped import PipedGroup
from placewright.runtime.engines.process import WorkerProcess, start_process
from placewright.runtime.host import Host, is_stopped, loopback
from placewright.runtime.program import codec_of, load_program
from placewright.runtime.specs import (
    PLACED_STEPS,
    WorkerSpec,
    assign_processes,
    check_can_run,
    emulated,
    worker_specs,
)

if TYPE_CHECKING:
    from placewright.testbed.record import NodeHandle

TESTBED = "CPU quotas and links of a testbed on one machine"

RENDEZVOUS_PORTS = range(20000, 30000)
"""Free in a testbed, whose nodes have networks of their own, but for other sessions on it."""

LISTENING_PORTS = range(10000, 20000)
"""Likewise, of workers that listen."""

_PORTS_APART = 997
"""Sessions of one process. Processes that share a testbed have numbers close to each other."""

_END_S = 0.5
"""All workers together end by themselves in less; then they are killed."""

_opened = count()


@dataclass(frozen=True, slots=True)
class Local:
    """The engine that needs nothing: worker processes of this machine.

    Attributes
    ----------
    handles
        By device, where the cluster is up as a testbed.
    emulate
        Wait where devices and links are slower than this machine.
    together
        One process for all GPUs of a node, or one each; see `layout.assign_processes`.
    driven_by
        The rank that drives each device, where it is not left to `together`.
    pin
        Give every device cores of its own, where this machine has enough for all.
    caller
        On a testbed: the node from which orders are given, over its links; ``None``: through pipes.
    """

    handles: Mapping[str, NodeHandle] | None = None
    emulate: bool = True
    together: bool | None = None
    driven_by: tuple[int, ...] | None = None
    pin: bool = True
    caller: NodeHandle | None = None

    @property
    def name(self) -> str:
        """As on the command line."""
        return "local" if self.handles is None else "testbed"

    def group(self, cluster: Cluster, program: str = PLACED_STEPS) -> LocalGroup:
        """Workers that execute `program` for the devices of `cluster`; none is started yet.

        Raises `UnsupportedError`: a device that this machine can neither be nor emulate.
        """
        host = Host.here()
        hosts = [host] * len(cluster.devices)
        if self.handles is None:
            specs = worker_specs(
                cluster,
                hosts,
                emulate=self.emulate,
                processes=self.processes(cluster),
                program=program,
                pin=self.pin,
            )
            return LocalGroup(specs, host)
        check_can_run(cluster, hosts)
        plain = worker_specs(cluster, hosts, emulate=False, program=program, pin=False)
        placed = [replace(s, handle=self.handles[s.device_name]) for s in plain]
        return LocalGroup(placed, host, self.caller)

    def processes(self, cluster: Cluster) -> list[int]:
        """The rank that drives each device."""
        if self.driven_by is not None:
            return list(self.driven_by)
        devices = cluster.devices
        nodes, gpu = [d.node for d in devices], [d.kind == "gpu" for d in devices]
        return assign_processes(nodes, gpu, together=self.together)

    def emulated(self, cluster: Cluster, hosts: Sequence[Host]) -> str:
        """See `Engine.emulated`."""
        return TESTBED if self.handles else emulated(cluster, hosts, emulate=self.emulate)


class LocalGroup(PipedGroup):
    """One worker process per rank. Whatever happens to the caller, none outlives it.

    `addresses`: by rank, where workers listen whose program does. Ports on this machine are opened
    by this process and stay open when a worker dies: no other user can take one before the worker
    is started again. On a testbed each node has a network of its own, where its worker opens the
    port.

    `specs`: by rank; the rendezvous is filled in here.
    `caller`: see `Local`.
    """

    def __init__(
        self, specs: Sequence[WorkerSpec], host: Host, caller: NodeHandle | None = None
    ) -> None:
        super().__init__()
        self._caller = caller
        self._folder = Scratch()
        handle = specs[0].handle
        # Sessions of this process and of others that share the testbed get ports that differ.
        number = os.getpid() + _PORTS_APART * next(_opened)
        port = RENDEZVOUS_PORTS[number % len(RENDEZVOUS_PORTS)]
        inside = f"tcp://{handle.address}:{port}" if handle is not None else ""
        rendezvous = inside or f"file://{self._folder.name}/rendezvous"
        self.specs = tuple(
            replace(spec, rendezvous=rendezvous, interface=loopback()) for spec in specs
        )
        self.hosts = (host,) * len(specs)
        self.names = tuple(spec.device_name for spec in specs)
        self.program = specs[0].program
        self.addresses: tuple[tuple[str, int], ...] = ()
        self._ports: list[socket.socket] = []
        if load_program(self.program).listens:
            self._open_ports(LISTENING_PORTS[number % len(LISTENING_PORTS)])
        self._workers: list[WorkerProcess] = []
        self._links_stopped_s = 0.0
        self._killed: dict[int, int] = {}

    @property
    def processes(self) -> list[BaseProcess]:
        """By rank."""
        return [worker.process for worker in self._workers]

    def start(self) -> None:
        """See `WorkerGroup.start`."""
        self.launch()
        self.answers(self.start_limit_s, STARTING)

    def launch(self) -> None:
        """Start the processes; each sends an answer once it is ready."""
        for spec in self.specs:
            self._workers.append(self._started(spec))

    def restart(self, rank: int) -> None:
        """Replace a worker that has ended or was stopped; its answer to the start is still to come.

        Others of the group go on. A worker that has joined a process group cannot be replaced.
        """
        self._workers[rank].end()
        self.connections[rank].close()
        # What is remembered of the worker before would be held against the new one.
        self._stopped_s.pop(rank, None)
        self._raised.discard(rank)
        self._workers[rank] = self._started(self.specs[rank])

    def answers(self, limit_s: float, task: str) -> list[Any]:
        """See `PipedGroup.answers`.

        Raises `RunError`: the testbed's link emulator has ended, which workers die of.
        """
        try:
            return super().answers(limit_s, task)
        except WorkerError:
            self._demand_links()
            raise

    def _demand_links(self) -> None:
        handle = self.specs[0].handle
        if handle is not None:
            handle.demand_links()

    def stopped_too_long(self, ranks: Sequence[int], passed_s: float) -> list[int]:
        """See `PipedGroup.stopped_too_long`.

        Raises `RunError`: the testbed's link emulator has ended, or has been stopped for too long:
        nothing arrives any more.
        """
        handle = self.specs[0].handle
        self._demand_links()
        stopped = handle is not None and is_stopped(handle.emulator_pid)
        self._links_stopped_s = self._links_stopped_s + passed_s if stopped else 0.0
        if handle is not None and self._links_stopped_s > limits.patience(limits.STOPPED_S):
            raise RunError(
                "the testbed's link emulator is stopped (SIGSTOP): nothing arrives between devices",
                where=f"process {handle.emulator_pid}",
                by=f"for {self._links_stopped_s:.1f} s",
                hint="find out who stopped it, and run again",
            )
        return super().stopped_too_long(ranks, passed_s)

    def _started(self, spec: WorkerSpec) -> WorkerProcess:
        self._killed[spec.rank] = 0 if spec.handle is None else spec.handle.killed_for_memory
        return start_process(partial(self._worker, spec), self.worker_name(spec.rank))

    def _worker(self, spec: WorkerSpec) -> WorkerProcess:
        """One process, and our end of its pipe; a second attempt has a pipe of its own."""
        ours, theirs = (Channel(end, codec_of(self.program)) for end in self._ends(spec))
        # Appends where it is the first of this rank, else takes the place of the one before.
        self.connections[spec.rank : spec.rank + 1] = [ours]
        return WorkerProcess(spec, theirs, self._ports[spec.rank] if self._ports else None)

    def _ends(self, spec: WorkerSpec) -> tuple[Connection, Connection]:
        if self._caller is None or spec.handle is None:
            return Pipe()

        return connection_between(self._caller, spec.handle)

    def _open_ports(self, number: int) -> None:
        handles = [spec.handle for spec in self.specs if spec.handle is not None]
        if handles:
            self.addresses = tuple((handle.address, number) for handle in handles)
        else:
            self._ports = [socket.create_server((LOOPBACK, 0)) for _ in self.specs]
            self.addresses = tuple((LOOPBACK, port.getsockname()[1]) for port in self._ports)
        pairs = zip(self.specs, self.addresses, strict=True)
        self.specs = tuple(replace(spec, address=address) for spec, address in pairs)

    def watched(self, rank: int) -> int:
        """See `PipedGroup.watched`."""
        return self._workers[rank].sentinel

    def exit_code(self, rank: int, patience_s: float = 0.0) -> int | None:
        """See `PipedGroup.exit_code`."""
        return self._workers[rank].exit_code(patience_s)

    def memory_of(self, rank: int) -> float | None:
        """See `PipedGroup.memory_of`; known on a testbed."""
        handle = self.specs[rank].handle
        killed = handle is not None and handle.killed_for_memory > self._killed[rank]
        return handle.memory_bytes if handle is not None and killed else None

    def stopped(self, rank: int) -> bool:
        """See `PipedGroup.stopped`."""
        return self._workers[rank].stopped

    def distribute(self, file: Path) -> list[str]:
        """The file itself: workers see the same disk."""
        return [str(file)] * len(self.specs)

    def collect(self, name: str, files: Sequence[Path]) -> None:
        """Workers write where the caller reads."""
        self.check_written(self.order(name, [(str(file),) for file in files]))

    def kill(self) -> None:
        """End all processes with SIGKILL, without waiting; `close` is still to come."""
        for worker in self._workers:
            worker.kill()

    def close(self) -> None:
        """See `WorkerGroup.close`."""
        try:
            # All lifelines first: they end at the same time, and the wait below is for the last of
            # them.
            for worker in self._workers:
                worker.disconnect()
            countdown = limits.Countdown(_END_S)
            for worker in self._workers:
                worker.end(countdown.next_s)
                countdown.look()
        except KeyboardInterrupt:  # once more: they are not waited for
            self.kill()
            raise
        finally:
            for connection in self.connections:
                connection.close()
            for port in self._ports:
                port.close()
            self._folder.cleanup()


@contextmanager
def local(
    cluster: Cluster, *, emulate: bool = True, together: bool | None = None
) -> Iterator[Local]:
    """Workers of this machine, whichever cluster they stand for."""
    yield Local(emulate=emulate, together=together)


@contextmanager
def on_testbed(cluster: Cluster, *, emulate: bool = True) -> Iterator[Local]:
    """The cluster as a testbed, which is brought up if it is not, and workers on its nodes.

    `emulate`: no matter, the testbed does it.
    """
    from placewright.testbed.testbed import Testbed

    with Testbed.up(cluster) as bed:
        yield Local({name: bed.handle(name) for name in cluster.device_names})
