"""A graph and a cluster on worker processes of this machine, ready to take placements."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from safetensors.torch import load_file, save, save_file

from placewright.arrays import FloatArray
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import UnsupportedError
from placewright.execute.emulation import ShapedLink
from placewright.execute.group import WorkerGroup
from placewright.execute.migration import random_home, state_moves
from placewright.execute.partition import Part, partition
from placewright.execute.probe import link_line
from placewright.execute.transport import wire_bytes
from placewright.execute.worker import StepLog, WorkerSpec
from placewright.graph.graph import Graph
from placewright.graph.program import Program
from placewright.testbed.seat import NodeSeat


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as all workers saw it, times from the step's start.

    Attributes
    ----------
    duration_s
        From the first start to the last end.
    logs
        One per device, times still on the machine's clock.
    """

    origin_s: float
    duration_s: float
    logs: tuple[StepLog, ...]

    @property
    def scalars(self) -> dict[str, float]:
        """Outputs of one element by name: the loss."""
        return {name: value for log in self.logs for name, value in log.scalars.items()}


class Session:
    """A context manager: starts the workers, loads placements, executes steps.

    Parameters
    ----------
    state
        A real tensor for every program input; inputs that are all zeros may be left out.
    seats
        By device, where the cluster is up as a testbed; without them slower devices and links
        are emulated by waiting.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        state: Mapping[str, torch.Tensor],
        seats: Mapping[str, NodeSeat] | None = None,
    ) -> None:
        check_can_run(cluster)
        self.graph, self.cluster = graph, cluster
        self.emulated = TESTBED if seats else emulated(cluster)
        self.group = WorkerGroup(_seated(cluster, seats) if seats else _specs(cluster))
        self._state_file = str(self.group.folder / "initial.safetensors")
        save_file({n: t.detach().contiguous().clone() for n, t in state.items()}, self._state_file)
        self.parts: tuple[Part, ...] = ()

    def __enter__(self) -> Session:
        self.group.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.group.__exit__(kind, error, trace)

    def load(self, placement: Sequence[int], order: Sequence[int], seed: int = 0) -> None:
        """Cut the program, hand out the parts and the initial state, set the seeds."""
        self.parts = partition(self.graph, placement, order, len(self.cluster.devices))
        self.group.order("load", [(part, self._state_file) for part in self.parts])
        self.group.order_all("seed", seed)

    def migrate(
        self, placement: Sequence[int], order: Sequence[int], *, limit_s: float | None = None
    ) -> int:
        """Change the placement between two steps, nothing lost; bytes that moved.

        State travels from worker to worker over the links that carry tensors, and the
        sequence of random numbers goes on where its operators now are.

        Raises
        ------
        WorkerError
            A worker was lost, or it took more than `limit_s` seconds.
        """
        after = partition(self.graph, placement, order, len(self.cluster.devices))
        moves = state_moves(self.parts, after)
        drawing = random_home(self.parts)
        if drawing != random_home(after):
            state = self.group.order_all("random_state")[drawing]
            self.group.order_all("set_random_state", state)
        self.group.order("migrate", [(part, moves) for part in after], limit_s=limit_s)
        self.parts = after
        return sum(wire_bytes(m.spec) for m in moves)

    def feed(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace inputs and targets (by program input) from the next step on."""
        assert isinstance(self.graph.program, Program)
        specs = {i.name: i.spec for i in self.graph.program.inputs if i.name in tensors}
        batch = save({n: t.detach().contiguous() for n, t in tensors.items()})
        self.group.order_all("feed", batch, specs)

    def random_state(self) -> bytes:
        """Where the sequence of random numbers stands."""
        states: list[bytes] = self.group.order_all("random_state")
        return states[random_home(self.parts)]

    def set_random_state(self, state: bytes) -> None:
        """Continue a sequence that was noted before."""
        self.group.order_all("set_random_state", state)

    def slowness(self) -> list[float]:
        """How many times slower each device is than when this was first asked."""
        factors: list[float] = self.group.order_all("slowness")
        return factors

    def probe_links(self) -> list[tuple[int, int, float, float]]:
        """Source, target, latency in seconds and seconds per byte of every link, as it is now."""
        latency, *_ = self.cluster.link_arrays()
        pairs = [(int(i), int(j)) for i, j in np.argwhere(np.isfinite(latency)) if i != j]
        answers = self.group.order_all("probe_links", pairs)
        return [(*pair, *link_line(s)) for found in answers for pair, s in found.items()]

    def disturb(self, factors: Sequence[float]) -> None:
        """Emulate other slownesses from the next step on, one per device."""
        self.group.order("disturb", [(factor,) for factor in factors])

    def run(
        self, steps: int, *, watched: bool = False, limit_s: float | None = None
    ) -> list[StepRecord]:
        """Execute steps of the loaded placement.

        Raises
        ------
        WorkerError
            A worker died, raised, or said nothing for `limit_s` seconds.
        """
        answers = self.group.order_all("steps", steps, watched, limit_s=limit_s)
        return [_record(logs) for logs in zip(*answers, strict=True)]

    def outputs(self) -> dict[str, torch.Tensor]:
        """Outputs of the last step."""
        return self._collect("outputs")

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the steps have changed: parameters, buffers, optimizer state."""
        return self._collect("state")

    def save_state(self, folder: Path) -> None:
        """Every worker writes the state that lives there into a file of `folder`."""
        ranks = range(len(self.parts))
        self.group.order("state", [(str(folder / f"worker-{r}.safetensors"),) for r in ranks])

    def _collect(self, verb: str) -> dict[str, torch.Tensor]:
        paths = [str(self.group.folder / f"{verb}-{r}") for r in range(len(self.parts))]
        self.group.order(verb, [(path,) for path in paths])
        found: dict[str, torch.Tensor] = {}
        for path in paths:
            found.update(load_file(path))
            os.unlink(path)
        return found


def check_can_run(cluster: Cluster) -> None:
    """Raise where this machine can neither be nor emulate a device.

    Raises
    ------
    UnsupportedError
        A device of a kind that is not here, or faster than this machine.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device in cluster.devices:
        gpus -= device.kind == "gpu"
        if device.kind not in ("cpu", "gpu") or (device.kind == "gpu" and gpus < 0):
            raise UnsupportedError(
                f"this machine has no device of kind {device.kind!r} to run on",
                where=f"{cluster.name}: device {device.name!r}",
                hint="plan for it with `operators plan`, run on a cluster of devices that are here",
            )
        if device.kind == "cpu" and device.speed > 1:
            raise UnsupportedError(
                "this machine cannot emulate a device faster than itself",
                where=f"{cluster.name}: device {device.name!r}",
                by=f"speed {device.speed}",
                hint="scale all speeds so that the fastest is 1",
            )


def emulated(cluster: Cluster) -> str:
    """What a session on this cluster emulates, in words; empty if nothing."""
    cpus = [d for d in cluster.devices if d.kind == "cpu"]
    slow = [f"{d.name} at {d.speed:g}x by waiting" for d in cpus if d.speed < 1]
    links = [f"{len(cluster.links)} links by waiting"] if cluster.links else []
    crowd = sum(d.cores for d in cpus) - len(os.sched_getaffinity(0))
    crowded = [f"{crowd} more cores than this machine has by sharing"] if crowd > 0 else []
    return ", ".join(slow + links + crowded)


TESTBED = "CPU quotas and links of a testbed on one machine"


def _seated(cluster: Cluster, seats: Mapping[str, NodeSeat]) -> list[WorkerSpec]:
    """Workers on a testbed, where devices and links really are what the cluster says."""
    return [
        WorkerSpec(
            rank=i,
            world=len(cluster.devices),
            rendezvous="",
            device_name=device.name,
            threads=device.cores,
            seat=seats[device.name],
        )
        for i, device in enumerate(cluster.devices)
    ]


def _specs(cluster: Cluster) -> list[WorkerSpec]:
    cores = _cores(cluster.devices)
    latency, per_byte, channel, _ = cluster.link_arrays()
    given = {(link.source, link.target) for link in cluster.links}
    names = cluster.device_names
    gpus = itertools.count()
    return [
        WorkerSpec(
            rank=i,
            world=len(names),
            rendezvous="",
            device_name=device.name,
            threads=device.cores,
            stretch=max(1.0, 1.0 / device.speed) if device.kind == "cpu" else 1.0,
            torch_device=f"cuda:{next(gpus)}" if device.kind == "gpu" else "cpu",
            links={
                j: ShapedLink(float(latency[i, j]), float(per_byte[i, j]), int(channel[i, j]))
                for j in range(len(names))
                if (device.name, names[j]) in given
            },
            cores=cores[i],
        )
        for i, device in enumerate(cluster.devices)
    ]


def _cores(devices: Sequence[Device]) -> list[tuple[int, ...]]:
    """Cores of its own for every device where there are enough, else none pinned."""
    free = sorted(os.sched_getaffinity(0))
    if sum(d.cores for d in devices) > len(free):
        return [()] * len(devices)
    taken = []
    for device in devices:
        taken.append(tuple(free[: device.cores]))
        free = free[device.cores :]
    return taken


def _record(logs: tuple[StepLog, ...]) -> StepRecord:
    origin = min(log.start_s for log in logs)
    return StepRecord(origin, max(log.end_s for log in logs) - origin, logs)


def operator_seconds(records: Sequence[StepRecord], operators: int) -> FloatArray:
    """Median seconds of every operator over watched steps, shape (operators,)."""
    times = np.full((len(records), operators), np.nan)
    for row, record in zip(times, records, strict=True):
        for log in record.logs:
            spans = np.asarray(log.spans_s).reshape(-1, 2)
            row[list(log.operators)] = spans[:, 1] - spans[:, 0]
    median: FloatArray = np.median(times, axis=0)
    return median
