"""Workers that torchrun has started, on this machine and on others.

    torchrun --master-port 29500 --nproc-per-node 2 -m placewright operators run ...

Rendezvous and membership are torchrun's. Orders, state and results go through connections that
agents and workers open to rank 0 (`placewright.runtime.engines.torchrun_agent`), tensors from
worker to worker through torch.distributed; no disk is shared.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, RunError
from placewright.interpreter import environment_of
from placewright.io.scratch import Scratch
from placewright.runtime import limits
from placewright.runtime.connections import AuthenticatedListener, Channel, wait
from placewright.runtime.engines.engine import STARTING
from placewright.runtime.engines.piped import PipedGroup
from placewright.runtime.engines.torchrun_agent import (
    end_with_torchrun,
    given_number,
    is_coordinator,
    known_secret,
    listen_for_workers,
    on_one_machine,
    run_agent,
    warn_of_open_rendezvous,
)
from placewright.runtime.host import Host, assign_ranks, children_of, is_stopped, loopback
from placewright.runtime.program import codec_of
from placewright.runtime.specs import PLACED_STEPS, WorkerSpec, emulated, worker_specs

_END_S = 10.0
"""Agents take less to end their workers, mostly; a slow one is waited for by the next session."""

GONE = ("gone", -int(signal.SIGKILL))
"""The report of an agent whose process is gone."""


class Torchrun:
    """The engine, in the process of rank 0; a context manager that agents connect to.

    `cluster`: its devices are served by torchrun's processes, one each.
    Raises `InputError`: this is not torchrun's rank 0, its processes serve another placed model or
    have served one, there are more or fewer of them than devices, or they are on several machines
    and no secret is given.
    Warns with `OpenRendezvousWarning`: others can have torchrun itself execute what they send.
    """

    name = "torchrun"
    _opened: ClassVar[bool] = False

    def __init__(self, cluster: Cluster, *, emulate: bool = True) -> None:
        self._cluster, self._emulate = cluster, emulate
        self._world = _world(cluster)
        self._refuse_second()
        known_secret()
        end_with_torchrun()
        warn_of_open_rendezvous()
        self._sessions = 0
        self._ranks: dict[str, int] = {}
        self._agents: dict[int, Agent] = {}
        self._hosts: dict[int, Host] = {}
        self._listener: AuthenticatedListener
        self._folder: Scratch
        self._held: ExitStack

    def __enter__(self) -> Torchrun:
        self._refuse_second()
        Torchrun._opened = True
        with ExitStack() as stack:
            # torchrun's way to end us when another rank fails
            stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _leave))
            self._folder = Scratch()
            stack.callback(self._folder.cleanup)
            self._listener, secret = listen_for_workers(Path(self._folder.name))
            stack.callback(self._listener.close)
            stack.push(self._leave_agents)
            self._gather(secret)
            self._held = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._held.close()

    def _gather(self, secret: bytes) -> None:
        """Wait until every rank's agent has connected."""
        # Rank 0's own agent is a thread here: torchrun starts one process per rank.
        threading.Thread(target=run_agent, args=(self._listener.port, secret), daemon=True).start()
        while len(self._agents) < self._world:
            (rank, host), connection = self._next_call()
            self._agents[rank], self._hosts[rank] = Agent(connection), host
        self._ranks = assign_ranks(self._cluster, [self._hosts[r] for r in range(self._world)])

    def _next_call(self) -> tuple[Any, Channel]:
        """The next agent that connects.

        Raises `RunError`: none does, or a process of this machine is stopped; it is killed then.
        """
        left, stopped = limits.Countdown(limits.patience(limits.GATHER_S)), StoppedRanks()
        while not left.over:
            if (called := self._listener.accept(left.next_s)) is not None:
                return called
            stopped.look(left.look(), "before it had called")
        raise self._absent(left.limit_s)

    def _leave_agents(self, kind: type[BaseException] | None, *_error: object) -> None:
        """Let the other ranks end, and wait until their processes have.

        torchrun waits for all of them, for ever where one is stopped; where we fail it kills them.
        Raises `RunError`: one does not end, and nothing else is wrong.
        """
        others = {rank: agent for rank, agent in self._agents.items() if rank}
        for agent in others.values():
            agent.leave()
        limit_s = limits.GATHER_S if kind is None else limits.STOPPED_S
        left, stopped = limits.Countdown(limits.patience(limit_s)), StoppedRanks()
        try:
            while others and not left.over:
                others = {r: each for r, each in others.items() if not each.gone(left.next_s)}
                stopped.look(left.look(), "at the end of the run")
        except RunError:
            if kind is None:
                raise
        finally:
            for agent in self._agents.values():
                agent.channel.close()
        if others and kind is None:
            raise RunError(
                "processes that torchrun has started do not end",
                where=f"rank {', '.join(map(str, others))}",
                by=f"waited {left.limit_s:.0f} s",
                hint="everything else is done; torchrun kills them within 30 s",
            )

    def group(self, cluster: Cluster, program: str = PLACED_STEPS) -> TorchrunGroup:
        """Workers for devices of the cluster, each a child of its rank's agent.

        Raises `UnsupportedError`: a device that its host can neither be nor emulate.
        """
        self._sessions += 1
        ranks = [self._ranks[name] for name in cluster.device_names]
        hosts = [self._hosts[rank] for rank in ranks]
        specs = [
            replace(
                spec,
                rendezvous=self._meeting_point(),
                session=str(self._sessions),
                interface=loopback() if on_one_machine() else "",
            )
            for spec in worker_specs(cluster, hosts, emulate=self._emulate, program=program)
        ]
        agents = [self._agents[rank] for rank in ranks]
        return TorchrunGroup(specs, hosts, agents, self._listener)

    def _refuse_second(self) -> None:
        """Raise if the processes serve another engine of this script, or have and are gone."""
        if Torchrun._opened:
            raise InputError(
                "torchrun's processes serve one placed model",
                where=self._cluster.name,
                by="this script has opened the engine torchrun before",
                hint="train, evaluate and save inside of one `with` block, or start torchrun "
                "once for each model",
            )

    def _absent(self, limit_s: float) -> RunError:
        missing = [str(rank) for rank in range(self._world) if rank not in self._agents]
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
        """See `Engine.emulated`."""
        return emulated(cluster, hosts, emulate=self._emulate)


def _world(cluster: Cluster) -> int:
    """How many processes torchrun has started: one per device."""
    devices, where = len(cluster.devices), cluster.name
    launcher = f"torchrun --master-port 29500 --nproc-per-node {devices}"
    again = f"{launcher} -m placewright ... (the same arguments)"
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        raise InputError(
            "--engine torchrun needs processes that torchrun has started",
            where=where,
            by="RANK and WORLD_SIZE are not set",
            hint=f"start it with {again}, or {launcher} script.py for a script of your own",
        )
    if not is_coordinator():
        raise InputError(
            "only rank 0 gives orders to torchrun's processes",
            where=f"rank {os.environ['RANK']}",
            by="it opens the engine torchrun itself",
            hint="give engine='torchrun' to placewright.place or Trainer: ranks beyond 0 serve "
            "there, and do not return",
        )
    world = given_number("WORLD_SIZE")
    if world != devices:
        raise InputError(
            f"torchrun has started {world} processes for {devices} devices",
            where=where,
            by=f"{abs(world - devices)} too {'many' if world > devices else 'few'}",
            hint=f"start it with {again}, or so many over all nodes",
        )
    return world


class StoppedRanks:
    """Processes of torchrun on this machine that are stopped, and for how long some have been."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def look(self, passed_s: float, when: str) -> None:
        """Look for those that are stopped now; `passed_s`: since the last look.

        Raises `RunError`: some have been for too long. They are killed when this process ends:
        torchrun ends it, too, as soon as one of them is gone, and the error has to be told first.
        """
        found = stopped_ranks()
        self._seconds = self._seconds + passed_s if found else 0.0
        if self._seconds <= limits.patience(limits.STOPPED_S):
            return
        atexit.register(kill_stopped_ranks)
        raise RunError(
            "a process that torchrun has started is stopped (SIGSTOP)",
            where=f"rank {', '.join(found)}",
            by=f"for {self._seconds:.0f} s, {when}",
            hint="it is killed: start the run again",
        )


def stopped_ranks() -> dict[str, int]:
    """Numbers of those processes, by rank."""
    found = {}
    for pid in children_of(os.getppid()):
        if is_stopped(pid) and "TORCHELASTIC_RUN_ID" in (environment := environment_of(pid)):
            found[environment.get("RANK", "?")] = pid
    return found


def kill_stopped_ranks() -> None:
    """Kill them: torchrun would wait for them for 30 s."""
    for pid in stopped_ranks().values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _leave(number: int, frame: FrameType | None) -> Any:
    raise RunError(
        "torchrun has ended this run",
        by=f"signal {number}",
        hint="another rank has failed: torchrun prints below which one and how",
    )


@dataclass(slots=True)
class Agent:
    """A process that starts workers, as the coordinator sees it.

    `owed`: how many orders to end a worker it has not answered.
    """

    channel: Channel
    owed: int = 0

    def start(self, spec: WorkerSpec) -> bool:
        """Ask for a worker; whether the agent is there."""
        return self._send(spec)

    def end(self) -> None:
        """Ask for the end of the worker, if there is one; see `settled`."""
        self.owed += self._send(None)

    def settled(self, limit_s: float) -> bool:
        """Read its answers to `end`, before so long; whether all have come.

        A late one, read in the next session, would be taken for the end of a worker there.
        """
        deadline = time.monotonic() + limit_s
        while self.owed and wait([self.channel], max(0.0, deadline - time.monotonic())):
            # What comes before an answer is the report of an end that nobody has asked for.
            kind, _ = self.report()
            self.owed = 0 if kind == "gone" else self.owed - (kind == "ended")
        return not self.owed

    def leave(self) -> None:
        """Say that nothing more will be asked; it then ends."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.channel.fileno())) as end:
            end.shutdown(socket.SHUT_WR)

    def gone(self, limit_s: float) -> bool:
        """Whether its process has ended before so long."""
        deadline = time.monotonic() + limit_s
        while wait([self.channel], max(0.0, deadline - time.monotonic())):
            if self.report()[0] == "gone":
                return True
        return False

    def report(self) -> tuple[str, int | None]:
        """Of its worker: that it died and how, or that it was ended."""
        try:
            found: tuple[str, int | None] = self.channel.recv()
        except (EOFError, OSError):
            return GONE
        return found

    def _send(self, order: WorkerSpec | None) -> bool:
        try:
            self.channel.send(order)
        except OSError:
            return False
        return True


class TorchrunGroup(PipedGroup):
    """One worker per device, a child of the device's agent.

    `agents`: by rank, the processes that start the workers.
    `listener`: where workers connect to.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        hosts: Sequence[Host],
        agents: Sequence[Agent],
        listener: AuthenticatedListener,
    ) -> None:
        super().__init__()
        self.specs, self.hosts = tuple(specs), tuple(hosts)
        self.names = tuple(spec.device_name for spec in specs)
        self.program = specs[0].program
        self._agents, self._listener = tuple(agents), listener
        self._codes: dict[int, int | None] = {}

    def start(self) -> None:
        """See `WorkerGroup.start`."""
        for rank, agent in enumerate(self._agents):
            if not agent.settled(self.start_limit_s):
                raise self.silent_error([rank], self.start_limit_s, "ending the worker before")
            if not agent.start(self.specs[rank]):
                raise self.died_error(rank, "with the process that torchrun had started")
        self.connections = self._connected_workers()
        self.answers(self.start_limit_s, STARTING)

    def _connected_workers(self) -> list[Channel]:
        """The workers' connections; a late one, of a session before, is left out."""
        found: dict[int, Channel] = {}
        deadline = time.monotonic() + self.start_limit_s
        while missing := [r for r in range(len(self.specs)) if r not in found]:
            called = self._listener.accept(deadline - time.monotonic())
            if called is None:
                raise self.silent_error(missing, self.start_limit_s, STARTING)
            (session, rank), connection = called
            # A worker of a session that was broken off may have been on its way.
            if session == self.specs[0].session:
                found[rank] = replace(connection, codec=codec_of(self.program))
        return [found[rank] for rank in range(len(self.specs))]

    def watched(self, rank: int) -> Channel:
        """See `PipedGroup.watched`."""
        return self._agents[rank].channel

    def exit_code(self, rank: int, patience_s: float = 0.0) -> int | None:
        """See `PipedGroup.exit_code`; an agent that is gone took its worker along."""
        if rank not in self._codes and wait([self.watched(rank)], timeout=patience_s):
            self._codes[rank] = self._agents[rank].report()[1]
        return self._codes.get(rank)

    def close(self) -> None:
        """See `WorkerGroup.close`; the agents stay."""
        for agent in self._agents:
            agent.end()
        # Asked all at once, so waited for together: torchrun kills what ends too slowly.
        deadline = time.monotonic() + _END_S
        for agent in self._agents:
            agent.settled(deadline - time.monotonic())
        for connection in self.connections:
            connection.close()
