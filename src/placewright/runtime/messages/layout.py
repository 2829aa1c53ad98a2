"""Which process drives each device, and how tensors travel between any two of them.

copy    between devices of one process: straight from one memory to the other
nccl    between GPUs of two processes
gloo    everything else: through host memory
timed   as gloo, over an emulated link between processes that share a clock: with the moment at
        which the link delivers
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Way = Literal["copy", "nccl", "gloo", "timed"]

THROUGH_HOST: frozenset[Way] = frozenset({"gloo", "timed"})
"""Ways through the memory of both hosts, which take any tensor at any time."""


@dataclass(frozen=True, slots=True)
class Driven:
    """A device as the engine sees it.

    Attributes
    ----------
    process
        Rank of the worker process that drives it.
    torch_device
        Where its operators run, in that process: ``cpu`` or ``cuda:0``.
    shares
        Whether the process drives another GPU too. NCCL knows one GPU per process.
    """

    process: int
    torch_device: str = "cpu"
    shares: bool = False

    @property
    def is_gpu(self) -> bool:
        """Whether it is a CUDA device."""
        return self.torch_device.startswith("cuda")


def through_host(ways: Sequence[Sequence[Way]]) -> list[list[Way]]:
    """The same ways with gloo for NCCL, whose messages have no tags."""
    return [["gloo" if way == "nccl" else way for way in row] for row in ways]


def backend_of(source: Driven, target: Driven, *, nccl: bool = True) -> Way:
    """How a tensor goes from one device to another.

    `nccl`: whether PyTorch has NCCL in every process that drives a GPU.
    """
    if source.process == target.process:
        return "copy"
    if nccl and source.is_gpu and target.is_gpu and not (source.shares or target.shares):
        return "nccl"
    return "gloo"


@dataclass(frozen=True, slots=True)
class Layout:
    """All devices of a cluster, and the way between any two: what both ends must agree on.

    `ways`: by source and target device.
    `direct`: backend of the messages whose way is ``nccl``.
    """

    devices: tuple[Driven, ...]
    ways: tuple[tuple[Way, ...], ...]
    direct: str = "nccl"

    @classmethod
    def of(cls, processes: Sequence[int], torch_devices: Sequence[str], *, nccl: bool) -> Layout:
        """From the process and the torch device of every device."""
        pairs = tuple(zip(processes, torch_devices, strict=True))
        gpus = Counter(process for process, name in pairs if name.startswith("cuda"))
        devices = tuple(Driven(p, t, t.startswith("cuda") and gpus[p] > 1) for p, t in pairs)
        ways = tuple(tuple(backend_of(a, b, nccl=nccl) for b in devices) for a in devices)
        return cls(devices, ways)

    def timed(self, links: Collection[tuple[int, int]]) -> Layout:
        """The layout in which messages over these links carry the moment at which they are due."""
        ways = tuple(
            tuple(
                "timed" if way == "gloo" and (a, b) in links else way for b, way in enumerate(row)
            )
            for a, row in enumerate(self.ways)
        )
        return replace(self, ways=ways)

    @property
    def processes(self) -> tuple[int, ...]:
        """By device."""
        return tuple(d.process for d in self.devices)

    def device_group(self, process: int) -> tuple[int, ...]:
        """The devices that a process drives."""
        return tuple(k for k, d in enumerate(self.devices) if d.process == process)

    @property
    def direct_processes(self) -> tuple[int, ...]:
        """Processes with messages that have no tags."""
        pairs = (
            (a, b) for a, row in enumerate(self.ways) for b, way in enumerate(row) if way == "nccl"
        )
        return tuple(sorted({self.devices[d].process for pair in pairs for d in pair}))

    def __str__(self) -> str:
        """Which links use what; ways that no pair uses are left out."""
        used = Counter[Way](
            "gloo" if way == "timed" else way
            for a, row in enumerate(self.ways)
            for b, way in enumerate(row)
            if a != b
        )
        if set(used) <= {"gloo"}:
            return "gloo, one process per device"
        counted = [f"{_NAMES[way]} on {used[way]} links" for way in _NAMES if used[way]]
        return f"{', '.join(counted)}; {len(set(self.processes))} processes"


def assign_processes(
    nodes: Sequence[str], gpu: Sequence[bool], *, together: bool | None = None
) -> list[int]:
    """The process of every device: each CPU has its own, and so has each GPU or each node's GPUs.

    One process for all GPUs of a node copies straight between them, without NCCL's kernels and
    its order of messages, and holds one CUDA context per GPU. It starts the kernels of all its
    GPUs from one thread, some microseconds each: small kernels on several GPUs want a process
    each. A CPU never shares: while it computes, no GPU would be given work.

    Parameters
    ----------
    nodes, gpu
        Of every device: its host, and whether it is a GPU.
    together
        One process for the GPUs of a node, or one each. By default together where all GPUs are
        on one node; on several nodes one each, so that NCCL can join them.
    """
    hosts = {node for node, is_gpu in zip(nodes, gpu, strict=True) if is_gpu}
    share = len(hosts) <= 1 if together is None else together
    ranks: dict[object, int] = {}
    pairs = enumerate(zip(nodes, gpu, strict=True))
    keys = [node if share and is_gpu else k for k, (node, is_gpu) in pairs]
    return [ranks.setdefault(key, len(ranks)) for key in keys]


_NAMES: dict[Way, str] = {"copy": "copies", "nccl": "NCCL", "gloo": "gloo"}
