"""Worker specifications: the process of each device, its cores, its GPU, and how tensors travel.

copy    between devices of one process: straight from one memory to the other
nccl    between GPUs of two processes
gloo    everything else: through host memory
timed   as gloo, over an emulated link between processes that share a clock: with the moment at
        which the link delivers
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import UnsupportedError
from placewright.runtime.emulation import ShapedLink
from placewright.runtime.host import Host
from placewright.runtime.limits import GROUP_S
from placewright.testbed.record import NodeHandle

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


PLACED_STEPS = "placewright.runtime.executor:StepExecutor"
"""The program that executes steps of a placed `placewright.graph.graph.Program`."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a worker must know before its first order.

    Attributes
    ----------
    device_name
        What error messages call it: its devices, or what else it stands for.
    program
        What it executes, as ``"package.module:Class"``; see `placewright.runtime.program`.
    rendezvous
        Where the process group meets, for example ``file:///...`` or torchrun's ``env://``.
    layout
        All devices of the cluster; which of them this process drives, and how tensors travel.
    interface
        Network interface over which tensors travel, unless the environment names one; empty for
        that of the host's name.
    session
        What sets this group apart from others that met at the same place.
    threads
        Intra-operator threads.
    stretch
        How many times slower than this machine the devices are, 1 for not emulated.
    links
        Emulated outgoing links by target device.
    cores
        CPU numbers to pin the process to, empty for none.
    handle
        The node of a testbed to work in, ``None`` for this machine as it is.
    address
        Where other workers reach it, if its program listens; filled in by the group.
    """

    rank: int
    world: int
    rendezvous: str
    device_name: str
    layout: Layout
    threads: int = 1
    stretch: float = 1.0
    links: Mapping[int, ShapedLink] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    handle: NodeHandle | None = None
    session: str = "0"
    interface: str = ""
    timeout_s: float = GROUP_S
    program: str = PLACED_STEPS
    address: tuple[str, int] | None = None


def worker_specs(
    cluster: Cluster,
    hosts: Sequence[Host],
    *,
    emulate: bool = True,
    processes: Sequence[int] | None = None,
    program: str = PLACED_STEPS,
    pin: bool = True,
) -> list[WorkerSpec]:
    """Specifications of all worker processes; the group fills the rendezvous in.

    Raises `UnsupportedError`: a device that its host can neither be nor emulate.

    Parameters
    ----------
    hosts
        Where each device is.
    emulate
        Wait where devices and links are slower than the hosts; else they are what they are.
    processes
        The rank that drives each device; one each by default.
    program
        What the workers execute.
    pin
        Give every device cores of its own, where its host has enough for all.
    """
    check_can_run(cluster, hosts, emulate=emulate)
    devices = cluster.devices
    cores, gpus = _cores(devices, hosts), _gpus(devices, hosts)
    layout = Layout.of(
        range(len(devices)) if processes is None else processes,
        ["cpu" if gpu is None else f"cuda:{gpu}" for gpu in gpus],
        nccl=any(gpu is not None for gpu in gpus) and _nccl_available(),
    )
    shaped = [_shaped(cluster, d) if emulate else {} for d in range(len(devices))]
    layout = layout.timed(
        # Only where both ends have one clock: the moment that a message is due means nothing
        # elsewhere.
        {(a, b) for a, out in enumerate(shaped) for b in out if hosts[a].boot == hosts[b].boot}
    )
    groups = [layout.device_group(rank) for rank in sorted(set(layout.processes))]
    return [
        WorkerSpec(
            rank=rank,
            world=len(groups),
            rendezvous="",
            device_name="+".join(devices[d].name for d in device_group),
            threads=max(devices[d].cores for d in device_group),
            stretch=max(_stretch(devices[d]) for d in device_group) if emulate else 1.0,
            layout=layout,
            links=shaped[device_group[0]],
            cores=tuple(core for d in device_group for core in cores[d]) if pin else (),
            program=program,
        )
        for rank, device_group in enumerate(groups)
    ]


def check_can_run(
    cluster: Cluster, hosts: Sequence[Host] | None = None, *, emulate: bool = True
) -> None:
    """Raise where a host (by default this machine) can neither be nor emulate a device.

    Raises `UnsupportedError`: a device of a kind that is not there, or faster than what emulates
    it.
    """
    hosts = [Host.here()] * len(cluster.devices) if hosts is None else hosts
    gpus = _gpus(cluster.devices, hosts)
    for device, host, gpu in zip(cluster.devices, hosts, gpus, strict=True):
        if device.kind not in ("cpu", "gpu") or (device.kind == "gpu" and gpu is None):
            raise UnsupportedError(
                f"this machine has no device of kind {device.kind!r} to run on",
                where=f"{cluster.name}: device {device.name!r}",
                by=f"host {host.name} has {len(host.gpus)} GPUs and {len(host.cores)} cores",
                hint="plan for it with `operators plan`, run on a cluster of devices that are here",
            )
        if emulate and device.kind == "cpu" and device.speed > 1:
            raise UnsupportedError(
                "this machine cannot emulate a device faster than itself",
                where=f"{cluster.name}: device {device.name!r}",
                by=f"speed {device.speed}",
                hint="scale all speeds so that the fastest is 1, or give --no-emulate where "
                "devices really are as fast as in the cluster",
            )


def emulated(cluster: Cluster, hosts: Sequence[Host] | None = None, *, emulate: bool = True) -> str:
    """What a session on this cluster emulates, as text; empty if nothing."""
    hosts = [Host.here()] * len(cluster.devices) if hosts is None else hosts
    cpus = [d for d in cluster.devices if d.kind == "cpu"]
    slow = [f"{d.name} at {d.speed:g}x by waiting" for d in cpus if d.speed < 1]
    shaped = emulated_links(cluster)
    links = [f"{len(shaped)} links by waiting"] if shaped else []
    excess = _excess_cores(cluster.devices, hosts)
    shared = [f"{excess} more cores than this machine has by sharing"] if excess > 0 else []
    return ", ".join((slow + links if emulate else []) + shared)


def emulated_links(cluster: Cluster) -> list[Link]:
    """Given links between CPUs, and what the network makes of several of them."""
    cpus = {d.name for d in cluster.devices if d.kind == "cpu"}
    links = (*cluster.links, *cluster.routed_links())
    return [link for link in links if {link.source, link.target} <= cpus]


def _stretch(device: Device) -> float:
    return max(1.0, 1.0 / device.speed) if device.kind == "cpu" else 1.0


def _shaped(cluster: Cluster, source: int) -> dict[int, ShapedLink]:
    """Outgoing links that the cluster gives, by target device.

    A link of a GPU is what it is: it was given to plan with.
    """
    latency, per_byte, channel, _ = cluster.link_arrays()
    names = cluster.device_names
    given = {link.target for link in emulated_links(cluster) if link.source == names[source]}
    return {
        j: ShapedLink(
            float(latency[source, j]), float(per_byte[source, j]), int(channel[source, j])
        )
        for j in range(len(names))
        if names[j] in given
    }


def _nccl_available() -> bool:
    import torch.distributed as dist  # 200 MB, of which programs without tensors need nothing

    return dist.is_nccl_available()


def _cores(devices: Sequence[Device], hosts: Sequence[Host]) -> list[tuple[int, ...]]:
    """Cores of its own for every device whose host has enough for all, else none pinned."""
    free = {host.boot: list(host.cores) for host in hosts}
    wanted = {
        boot: sum(d.cores for d, h in zip(devices, hosts, strict=True) if h.boot == boot)
        for boot in free
    }
    taken: list[tuple[int, ...]] = []
    for device, host in zip(devices, hosts, strict=True):
        # All or none on a host: a pinned device beside free ones would lose its cores to them.
        enough = wanted[host.boot] <= len(host.cores)
        taken.append(tuple(free[host.boot][: device.cores]) if enough else ())
        del free[host.boot][: device.cores]
    return taken


def _gpus(devices: Sequence[Device], hosts: Sequence[Host]) -> list[int | None]:
    """For every GPU device the first of its host's that no other device has."""
    taken: set[tuple[str, str]] = set()
    found: list[int | None] = []
    for device, host in zip(devices, hosts, strict=True):
        own = [k for k, gpu in enumerate(host.gpus) if (host.boot, gpu) not in taken]
        use = own[0] if own and device.kind == "gpu" else None
        if use is not None:
            taken.add((host.boot, host.gpus[use]))
        found.append(use)
    return found


def _excess_cores(devices: Sequence[Device], hosts: Sequence[Host]) -> int:
    """Cores that CPU devices ask for beyond what their hosts have, over all hosts."""
    have = {host.boot: len(host.cores) for host in hosts}
    wanted = dict.fromkeys(have, 0)
    for device, host in zip(devices, hosts, strict=True):
        wanted[host.boot] += device.cores if device.kind == "cpu" else 0
    return sum(max(0, wanted[boot] - have[boot]) for boot in have)
