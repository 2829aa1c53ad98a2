"""What a worker process is told before its first order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from placewright.runtime.emulation import ShapedLink
from placewright.runtime.limits import GROUP_S
from placewright.runtime.messages.ways import Layout
from placewright.testbed.node_handle import NodeHandle


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a worker must know before its first order.

    Attributes
    ----------
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
    seat
        The node of a testbed to work in, ``None`` for this machine as it is.
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
