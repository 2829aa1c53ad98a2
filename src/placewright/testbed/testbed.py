"""Testbed: a cluster emulated on this machine; up, changed while jobs run, down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from placewright.cluster.cluster import Cluster
from placewright.cluster.files import cluster_to_text
from placewright.errors import InputError, RunError, UnsupportedError, look_up
from placewright.interpreter import python_command, python_environment
from placewright.testbed import namespaces
from placewright.testbed.blueprint import (
    Blueprint,
    DeviceSlot,
    blueprint,
    cpu_share,
    refuse_impossible,
)
from placewright.testbed.groups import Trees, find_trees, kill
from placewright.testbed.namespaces import LinkTable
from placewright.testbed.record import (
    LINKS,
    LOG,
    NodeHandle,
    Process,
    Record,
    emulator_pid,
    end,
    end_emulator,
    leave,
    one_at_a_time,
    record_in,
    records,
    remove,
    sweep,
    this_boot,
)


@dataclass(frozen=True, slots=True, eq=False)
class Testbed:
    """A testbed that is up. As a context manager it goes down at the end, unless others own it.

        with Testbed.up(Cluster.from_file("cluster.yaml")) as bed:
            bed.set_link("board-a", "board-b", bandwidth=1.25e6)

    Attributes
    ----------
    cluster
        The cluster that it emulates.
    record, plan, trees, links
        Its parts; see the modules of these names.
    held
        Whether this object owns it: not where this process owns it already, nor where it stays up
        until `down`.
    """

    cluster: Cluster
    record: Record
    plan: Blueprint
    trees: Trees
    links: LinkTable
    held: bool

    __test__ = False  # pytest would collect the name

    @classmethod
    def up(cls, cluster: Cluster, *, keep: bool = False) -> Testbed:
        """Make `cluster` on this machine; parts that are up are kept, others are made again.

        Parameters
        ----------
        keep
            Leave it up when this process ends, also if it was up before. Otherwise it goes down
            with the context manager, at the latest with this process; where several processes
            called `up`, with the last of them.

        Raises
        ------
        UnsupportedError
            Not Linux, not root, or something is missing; says what to do.
        InputError
            The cluster cannot be made here, or another one of its name is up.
        RunError
            The kernel refused; what had been made is removed again.
        """
        require()
        trees, cpus = find_trees(), tuple(sorted(os.sched_getaffinity(0)))
        sweep()
        with one_at_a_time():
            begun = _record(cluster, trees, cpus)
            found = record_in(begun.folder)
            if found is not None and found.whole:
                return cls._joined(found, cluster, trees, keep)
            if found is not None:
                remove(found)  # its making was interrupted
            return cls._made(begun, cluster, trees, keep)

    @classmethod
    def _made(cls, begun: Record, cluster: Cluster, trees: Trees, keep: bool) -> Testbed:
        """Make a new testbed; until it is complete this process owns it, whatever `keep` says."""
        plan = blueprint(cluster, begun.cpus)
        # Before anything is made: whatever happens from here on, what is there can be found and
        # removed.
        begun.write()
        try:
            links = make(begun, plan, trees)
            record = replace(begun, owners=() if keep else begun.owners, whole=True)
            record.write()
        except BaseException:
            remove(begun)
            raise
        return cls(cluster, record, plan, trees, links, not keep)

    @classmethod
    def _joined(cls, found: Record, cluster: Cluster, trees: Trees, keep: bool) -> Testbed:
        """Complete a testbed that is up, and add this process to its owners."""
        if found.cluster != cluster_to_text(cluster):
            raise InputError(
                "a testbed of this name is up, with another cluster",
                where=cluster.name,
                hint=f"`placewright testbed down {cluster.name}` first, or rename one",
            )
        plan, own = blueprint(cluster, found.cpus), Process.this()
        if not intact(found, plan, trees):
            # Broken off while it is completed, it is removed and made anew, as half a testbed would
            # be.
            replace(found, whole=False).write()
        links, record = make(found, plan, trees), found.joined(own, keep=keep)
        record.write()
        held = own in record.owners and own not in found.owners
        return cls(cluster, record, plan, trees, links, held)

    @classmethod
    def find(cls, name: str) -> Testbed:
        """The testbed that is up for the cluster `name`; `UnknownNameError` if there is none."""
        require()
        up = {bed.cluster.name: bed for bed in cls.all()}
        return look_up("testbed", name, up, where="testbeds that are up")

    @classmethod
    def all(cls) -> tuple[Testbed, ...]:
        """Every testbed of this machine that is up."""
        found = [record for record in records() if record.whole]
        return tuple(cls._of(record) for record in found if (record.folder / LINKS).exists())

    @classmethod
    def _of(cls, record: Record) -> Testbed:
        cluster = Cluster.from_text(record.cluster, where=str(record.folder))
        plan, links = blueprint(cluster, record.cpus), LinkTable(record.folder / LINKS)
        return cls(cluster, record, plan, find_trees(), links, False)

    def down(self) -> None:
        """Remove it, even if other processes own it too; idempotent."""
        end(self.record)

    def __enter__(self) -> Testbed:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.held:
            leave(self.record)

    def handle(self, device: str) -> NodeHandle:
        """The node handle of `device`: its processes call `NodeHandle.enter`."""
        position = self.cluster.index(device)
        slot = self.plan.slots[position]
        groups = tuple(str(path) for path in self.trees.group(slot.group))
        where = namespaces.address(position), namespaces.INTERFACE
        links = str(self.record.folder / LINKS)
        return NodeHandle(device, slot.namespace, groups, slot.cpus, *where, links)

    def address(self, device: str) -> str:
        """The IPv4 address of `device` inside the testbed."""
        return namespaces.address(self.cluster.index(device))

    def enter(self, device: str) -> None:
        """Move the calling process into `device`; see `NodeHandle.enter`."""
        self.handle(device).enter()

    def set_device(
        self, device: str, *, speed: float | None = None, memory_bytes: float | None = None
    ) -> None:
        """Change the limits of `device`, at once.

        Parameters
        ----------
        speed
            Relative to this machine, at most 1.
        memory_bytes
            ``inf`` for as much as there is.

        Raises
        ------
        InputError
            The speed is not one that this machine has.
        """
        position = self.cluster.index(device)
        slot, wanted = self.plan.slots[position], self.cluster.devices[position]
        if speed is not None:
            wanted = replace(wanted, speed=speed)
            refuse_impossible(wanted, len(self.record.cpus))
            self.trees.limit_cpu(slot.group, cpu_share(wanted))
        if memory_bytes is not None:
            self.trees.limit_memory(slot.group, memory_bytes)

    def cpu_share(self, device: str) -> float:
        """Cores' worth of CPU time that `device` gets now."""
        slot = self.plan.slots[self.cluster.index(device)]
        return min(len(slot.cpus), self.trees.cpu_limit(slot.group))

    def set_link(
        self,
        source: str,
        target: str,
        *,
        bandwidth: float | None = None,
        latency_s: float | None = None,
        cut: bool | None = None,
        both_ways: bool = True,
    ) -> None:
        """Change a link from the next packet on.

        Parameters
        ----------
        bandwidth
            Bytes per second.
        cut
            ``True``: every packet is lost, those on their way too. ``False``: as before the cut.

        Raises
        ------
        InputError
            No link joins the two.
        """
        i, j = self.cluster.index(source), self.cluster.index(target)
        for way in ((i, j), (j, i)) if both_ways else ((i, j),):
            self._refuse_no_way(*way)
            if bandwidth is not None:
                self.links.set("rate", *way, bandwidth)
            if latency_s is not None:
                self.links.set("delay_s", *way, latency_s)
            if cut is not None:
                self.links.set("cut", *way, float(cut))

    def _refuse_no_way(self, source: int, target: int) -> None:
        if target not in self.plan.reachable(source):
            names = self.cluster.device_names
            raise InputError(
                f"no link joins {names[source]!r} and {names[target]!r}",
                where=self.cluster.name,
                hint="a link can be changed, not made, while the testbed is up",
            )

    def cut(self, source: str, target: str) -> None:
        """Lose every packet between two devices, both ways, until `restore`."""
        self.set_link(source, target, cut=True)

    def restore(self, source: str, target: str) -> None:
        """End a cut."""
        self.set_link(source, target, cut=False)

    def power_off(self, device: str) -> None:
        """Kill every process of `device` and cut its links, as if its node lost power."""
        self._cut_off(device, True)
        for directory in self.handle(device).groups:
            kill(Path(directory))

    def power_on(self, device: str) -> None:
        """Restore the links of `device`; its processes stay dead."""
        self._cut_off(device, False)

    def _cut_off(self, device: str, cut: bool) -> None:
        position = self.cluster.index(device)
        for way in self.plan.ways:
            if position in (way.source, way.target):
                self.links.set("cut", way.source, way.target, float(cut))

    def kill_emulator(self) -> None:
        """Stop all links at once, as a switch that loses its power; `up` restarts it."""
        end_emulator(self.record)

    @property
    def alive(self) -> bool:
        """Whether all its namespaces exist and its emulator runs."""
        spaces = all(namespaces.exists(slot.namespace) for slot in self.plan.slots)
        return spaces and emulator_pid(self.record) != 0


def _record(cluster: Cluster, trees: Trees, cpus: tuple[int, ...]) -> Record:
    plan = blueprint(cluster, cpus)
    inner = [path for slot in plan.slots for path in trees.group(slot.group)]
    groups = (*inner, *trees.group(plan.id))
    return Record(
        id=plan.id,
        cluster=cluster_to_text(cluster),
        namespaces=tuple(slot.namespace for slot in plan.slots),
        groups=tuple(str(path) for path in groups),
        cpus=cpus,
        links_cpu=plan.links_cpu,
        boot=this_boot(),
        made_ns=time.time_ns(),
        owners=(Process.this(),),
        whole=False,
    )


_TIMEOUT_S = 20.0
_PAUSE_S = 0.02


def intact(record: Record, plan: Blueprint, trees: Trees) -> bool:
    """Whether all of it exists; the emulator may be dead."""
    return (record.folder / LINKS).exists() and all(
        namespaces.exists(slot.namespace) and _grouped(slot, trees) for slot in plan.slots
    )


def make(record: Record, plan: Blueprint, trees: Trees) -> LinkTable:
    """Make what does not exist yet; limits and links of what exists stay as they are."""
    if not emulator_pid(record):
        _start_detached(record, "placewright.testbed.record", subprocess.DEVNULL)
    for slot in plan.slots:
        if not _grouped(slot, trees):
            trees.make(slot.group)
            trees.limit_cpu(slot.group, slot.cpu_share)
            trees.limit_memory(slot.group, slot.memory_bytes)
    lost = [k for k, slot in enumerate(plan.slots) if not namespaces.exists(slot.namespace)]
    for position in lost:
        namespaces.make(plan.slots[position].namespace, position, _routes(plan, position))
    if not (record.folder / LINKS).exists():
        fill(LinkTable.create(record.folder / LINKS, len(plan.slots)), plan)
    if lost:
        end_emulator(record)  # it holds devices that do not exist any more
    if not emulator_pid(record):
        _start_emulator(record)
    return LinkTable(record.folder / LINKS)


def _grouped(slot: DeviceSlot, trees: Trees) -> bool:
    return all(path.exists() for path in trees.group(slot.group))


def _routes(plan: Blueprint, position: int) -> list[namespaces.Route]:
    """To every reachable device, with a TCP window for the link and the pause of a late process."""
    ways = [way for way in plan.ways if way.source == position]
    return [namespaces.Route(w.target, w.rate * (2 * w.delay_s + _PAUSE_S)) for w in ways]


def fill(table: LinkTable, plan: Blueprint) -> None:
    """Write every way of the blueprint into the table."""
    for way in plan.ways:
        table.set("rate", way.source, way.target, way.rate)
        table.set("delay_s", way.source, way.target, way.delay_s)
        table.set("channel", way.source, way.target, way.channel)


def _start_emulator(record: Record) -> None:
    """Start it detached, so that it may outlive this process, and wait until it runs."""
    # The new one writes its number when it runs; the number of a dead one must not be taken for it.
    LinkTable(record.folder / LINKS).emulator_pid = 0
    with (record.folder / LOG).open("wb") as log:
        _start_detached(record, "placewright.testbed.emulator", log)
    deadline = time.monotonic() + _TIMEOUT_S
    while not emulator_pid(record):
        output = (record.folder / LOG).read_text(errors="replace").strip()
        if output or time.monotonic() > deadline:
            raise RunError(
                "the link emulator did not start",
                where=record.id,
                by=output.splitlines()[-1] if output else f"no answer in {_TIMEOUT_S:g} s",
                hint=f"its output:\n{output}" if output else "is the machine overloaded?",
            )
        time.sleep(0.005)


def _start_detached(record: Record, module: str, output: int | IO[bytes]) -> None:
    """Start a module's program on the testbed's folder, so that it may outlive this process."""
    subprocess.run(
        ["setsid", "--fork", *python_command("-m", module, str(record.folder))],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=python_environment(),
        check=True,
    )


_WITHOUT = (
    "without a testbed, `placewright operators run` emulates slower devices and links by waiting"
)


def missing() -> str | None:
    """The first requirement that this machine misses, ``None`` if it has all."""
    if not sys.platform.startswith("linux"):
        return f"it runs on Linux, not on {sys.platform}"
    if os.geteuid() != 0:
        return f"it needs root, and this is user {os.geteuid()}"
    for command in ("ip", "setsid"):
        if shutil.which(command) is None:
            return f"the command `{command}` is not installed"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun is not there"
    return None


def require() -> None:
    """Raise `UnsupportedError` where testbeds cannot be made; names what is missing."""
    reason = missing()
    if reason is not None:
        raise UnsupportedError(
            "a testbed cannot be made here", where="testbed", by=reason, hint=_remedy(reason)
        )


def _remedy(reason: str) -> str:
    if "root" in reason:
        return f"run it as root; {_WITHOUT}"
    if "command" in reason:
        return f"apt-get install iproute2 util-linux; {_WITHOUT}"
    return _WITHOUT
