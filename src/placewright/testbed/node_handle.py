"""NodeHandle: namespace, groups and CPUs of one device, as plain data that can be pickled."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import inf
from pathlib import Path

from placewright.errors import RunError
from placewright.testbed import groups
from placewright.testbed.namespaces import LinkTable, join
from placewright.testbed.record import is_emulator


@dataclass(frozen=True, slots=True)
class NodeHandle:
    """Where the processes of one device run.

    Attributes
    ----------
    device
        Its name in the cluster.
    namespace
        Network namespace.
    groups
        Directories of the control groups.
    cpus
        CPU numbers that its processes run on.
    address, interface
        Its address for others: for gloo, ``GLOO_SOCKET_IFNAME=interface``.
    links
        File of the testbed's link table.
    """

    device: str
    namespace: str
    groups: tuple[str, ...]
    cpus: tuple[int, ...]
    address: str
    interface: str
    links: str = ""

    @property
    def there(self) -> bool:
        """Whether its testbed is up."""
        return all(Path(group).is_dir() for group in self.groups)

    @property
    def emulator_pid(self) -> int:
        """The process that carries what is sent between devices; 0 where none runs."""
        path = Path(self.links)
        return LinkTable(path).emulator_pid if self.links and path.exists() else 0

    def demand_links(self) -> None:
        """Raise if nothing is carried between devices any more.

        Raises `RunError`: the link emulator has ended while the testbed is up.
        """
        pid = self.emulator_pid
        if pid and self.there and not is_emulator(pid, Path(self.links).parent):
            raise RunError(
                "the testbed's link emulator has ended: nothing arrives between devices",
                where=f"process {pid}",
                by="it was killed, or crashed; see `dmesg` for the kernel's reasons",
                hint="run again, which starts another one; with --snapshots FOLDER a run that "
                "adapts goes on from its last snapshot",
            )

    @property
    def killed_for_memory(self) -> int:
        """How many processes here the kernel has killed because there was no memory left."""
        return max((groups.killed_for_memory(Path(group)) for group in self.groups), default=0)

    @property
    def memory_bytes(self) -> float:
        """Memory for a model, ``inf`` for as much as there is."""
        return min((groups.memory_limit(Path(group)) for group in self.groups), default=inf)

    def enter(self) -> None:
        """Move the calling process here: control groups, the network namespace, then CPUs.

        Call it first thing in a fresh process: the namespace is joined by the calling thread
        and those that it starts later; threads from before keep the network they had.

        Raises `RunError`: the testbed is not up, or the caller is not root.
        """
        for group in self.groups:
            _join_group(Path(group))
        join(self.namespace)
        # Each by itself: the call changes one thread, and libraries have started some already.
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), self.cpus)


def _join_group(group: Path) -> None:
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise RunError(
            f"the control group cannot be joined: {error.strerror}",
            where=str(group),
            hint="is the testbed up? see `placewright testbed status`",
        ) from None
