"""A group of Ray actors: orders and answers are calls, and Ray reports deaths."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError, RunError, WorkerError
from placewright.runtime import limits
from placewright.runtime.engines.group import STARTING, WorkerGroup
from placewright.runtime.host import Host, loopback
from placewright.runtime.specs import PLACED_STEPS, WorkerSpec, worker_specs
from placewright.runtime.worker import start_program

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
