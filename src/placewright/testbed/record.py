"""Record: the parts of a testbed, kept in a file so that all of them can be removed.

That happens with the last process that owns it, after a reboot, or by ``down``.
It is written before anything is made and deleted after everything is removed. It holds the boot id:
a reboot ends namespaces and groups, but not everywhere the files of ``/run``.

A `NodeHandle` has the namespace, groups and CPUs of one device, as plain data that can be pickled.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Final

from placewright.errors import InputError, RunError
from placewright.io.boundary import unreadable
from placewright.testbed import groups, namespaces
from placewright.testbed.namespaces import LinkTable, join

HOME: Final = Path("/run/placewright")
"""One folder per testbed."""

RECORD: Final = "testbed.json"
LINKS: Final = "links"
LOG: Final = "emulator.log"
CHANGES: Final = "changes"
"""A pipe that notifies the emulator of changes of the record."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process by number and start time, distinct from a later one of the same number."""

    pid: int
    start: int

    @classmethod
    def this(cls) -> Process:
        """The calling process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this number now."""
        return cls(pid, _start_of(pid))

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return _start_of(self.pid) == self.start


@dataclass(frozen=True, slots=True)
class Record:
    """The parts of one testbed.

    Attributes
    ----------
    id
        The prefix of every name that was made.
    cluster
        The cluster file's text.
    namespaces
        One network namespace per device.
    groups
        Directories of control groups, the inner ones first.
    cpus
        CPU numbers of the machine that its devices are spread over.
    links_cpu
        The one that the emulator runs on.
    boot
        Boot id of the machine when it was made.
    made_ns
        Time of making, since the epoch: identifies it among testbeds of one name.
    owners
        It is removed when the last of these processes ends; empty where it stays until ``down``.
    whole
        Whether all of it has been made; else its making was interrupted.
    """

    id: str
    cluster: str
    namespaces: tuple[str, ...]
    groups: tuple[str, ...]
    cpus: tuple[int, ...]
    links_cpu: int
    boot: str
    made_ns: int = 0
    owners: tuple[Process, ...] = ()
    whole: bool = True

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return HOME / self.id

    @property
    def abandoned(self) -> bool:
        """Whether all owners ended, or the machine rebooted, without removing it."""
        ended = bool(self.owners) and not any(owner.alive for owner in self.owners)
        return ended or self.boot != this_boot()

    def others(self, process: Process) -> tuple[Process, ...]:
        """The other owners that still run."""
        return tuple(owner for owner in self.owners if owner != process and owner.alive)

    def joined(self, process: Process, *, keep: bool) -> Record:
        """With `process` among its owners; without any if it stays up until ``down``."""
        if keep or not self.owners:
            return replace(self, owners=())
        return replace(self, owners=(*self.others(process), process))

    def now(self) -> Record | None:
        """Its current version, ``None`` where the testbed is down."""
        found = record_in(self.folder)
        return found if found is not None and found.made_ns == self.made_ns else None

    def write(self) -> None:
        """Write it atomically and notify the emulator."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / (RECORD + ".new")
        # Older versions, which know a single owner, leave testbeds without one alone.
        data = {"schema_version": 1, "owner": None, **asdict(self)}
        temporary.write_text(json.dumps(data), encoding="utf-8")
        # The emulator is notified below, when the new record is what it finds.
        temporary.replace(self.folder / RECORD)
        _notify(self.folder / CHANGES)


def this_boot() -> str:
    """The boot id of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_record(folder: Path) -> Record:
    """The record in `folder`.

    Raises `InputError`: it is damaged, or cannot be read.
    Raises `FileNotFoundError`: there is none.
    """
    try:
        return _record_of(json.loads((folder / RECORD).read_bytes()))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(folder / RECORD, error) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            "is no record of a testbed, or a damaged one",
            where=str(folder / RECORD),
            by=f"{type(error).__name__}: {error}",
            hint="reboot, or remove what `ip netns` and /sys/fs/cgroup list of it, then its folder",
        ) from None


def _record_of(data: Any) -> Record:
    alone = [data["owner"]] if data.get("owner") else []
    return Record(
        data["id"],
        data["cluster"],
        tuple(data["namespaces"]),
        tuple(data["groups"]),
        tuple(data["cpus"]),
        data["links_cpu"],
        data.get("boot", this_boot()),
        data.get("made_ns", 0),
        tuple(Process(**owner) for owner in data.get("owners", alone)),
        data.get("whole", True),
    )


def record_in(folder: Path) -> Record | None:
    """The record in `folder`, if there is one."""
    with suppress(FileNotFoundError):  # it has gone down
        return read_record(folder)
    return None


def records() -> tuple[Record, ...]:
    """Every testbed of this machine, by its id."""
    found = (record_in(path.parent) for path in sorted(HOME.glob(f"*/{RECORD}")))
    return tuple(record for record in found if record is not None)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the lock under which testbeds are made and removed."""
    HOME.mkdir(parents=True, exist_ok=True)
    # Mode 600: any user that can open the file could hold the lock.
    with open(HOME / "lock", "w", opener=lambda p, f: os.open(p, f, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _notify(changes: Path) -> None:
    with suppress(OSError):  # no emulator runs
        file = os.open(changes, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(file, b"!")
        finally:
            os.close(file)


def _start_of(pid: int) -> int:
    """Clock ticks from boot to its start, -1 where it has ended (a zombie has)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    # Behind the last bracket: the name in brackets may hold brackets and spaces. Field 22 of
    # proc(5) is the 20th from there.
    fields = stat[stat.rindex(")") + 2 :].split()
    return -1 if fields[0] in "ZX" else int(fields[19])


MODULE = b"placewright.testbed.emulator"
"""In the arguments of an emulator, before the folder of its testbed."""


def remove(record: Record) -> None:
    """End the processes in its groups and its emulator; remove groups, namespaces and record.

    Where something cannot be removed (`RunError`) the record stays, to try ``down`` again.
    """
    # Processes first, which may hold the namespaces; the record last: until then `down` finds all
    # of it.
    for group in record.groups:
        groups.remove(Path(group))
    for namespace in record.namespaces:
        namespaces.remove(namespace)
    end_emulator(record)
    shutil.rmtree(record.folder)


def end_emulator(record: Record) -> None:
    """Kill its emulator, unless this process is it; wait until its devices are released.

    One that has not yet written its number into the link table, because it is stopped or starts
    slowly, is found by its arguments.
    """
    processes = (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit())
    found = [p for p in processes if p != os.getpid() and is_emulator(p, record.folder)]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(is_emulator(pid, record.folder) for pid in found):
        time.sleep(0.002)


def emulator_pid(record: Record) -> int:
    """The process number of its emulator, 0 where none runs."""
    path = record.folder / LINKS
    if not path.exists():
        return 0
    pid = LinkTable(path).emulator_pid
    return pid if pid and is_emulator(pid, record.folder) else 0


def is_emulator(pid: int, folder: Path) -> bool:
    """Whether that process is the emulator, not a later one of the same number (or a zombie)."""
    with suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return MODULE in arguments and str(folder).encode() in arguments
    return False


def leave(record: Record) -> None:
    """Give up ownership; remove the testbed unless another process owns it, or it is to stay."""
    with one_at_a_time():
        # Under the lock the record is read anew: another process may have joined or removed it.
        now, own = record.now(), Process.this()
        if now is None or own not in now.owners:
            return
        others = now.others(own)
        if others:
            replace(now, owners=others).write()
        else:
            remove(now)


def end(record: Record) -> None:
    """Remove the testbed, whichever process owns it; idempotent."""
    with one_at_a_time():
        now = record.now()
        if now is not None:
            remove(now)


def end_all(only: str | None = None) -> tuple[Record, ...]:
    """Remove every testbed, or the one with the id `only`, those made in part included."""
    with one_at_a_time():
        found = tuple(record for record in records() if only in (None, record.id))
        for record in found:
            remove(record)
    return found


def sweep() -> None:
    """Remove every testbed whose owners ended, or whose machine rebooted, without removing it."""
    with one_at_a_time():
        for record in records():
            if record.abandoned:
                remove(record)


def still_needed(folder: Path) -> Record | None:
    """The record in `folder`; ``None`` where it is down, or was abandoned and is down now."""
    record = record_in(folder)
    if record is None or not record.abandoned:
        return record  # without the lock, which the making of another testbed holds for seconds
    with one_at_a_time():
        record = record_in(folder)
        if record is not None and record.abandoned:
            remove(record)
            return None
    return record


def owner_events(folder: Path) -> Iterator[tuple[int, ...]]:
    """Files, one of which becomes readable when an owner ends or the record changes; repeatedly.

    Ends when the testbed in `folder` is down: it is removed here where its last owner ended
    without doing so.
    """
    changes = _open_pipe(folder / CHANGES)
    while (record := still_needed(folder)) is not None:
        # Without an end to wait for, all owners are gone: the next turn of the loop removes the
        # testbed.
        ends = _ends_of(record)
        if ends or not record.owners:
            yield (changes, *ends)
        for file in ends:
            os.close(file)
        with suppress(BlockingIOError):
            os.read(changes, 4096)
    os.close(changes)


def watch_making(folder: Path) -> None:
    """Remove the testbed in `folder` where its maker ends before the emulator runs.

    From then on the emulator does.
    """
    while (record := still_needed(folder)) is not None and not emulator_pid(record):
        ends = _ends_of(record)
        select.select(ends, [], [], _LOOK_S)
        for file in ends:
            os.close(file)


_LOOK_S = 0.2


def _open_pipe(pipe: Path) -> int:
    """Open for reading, and for writing: a pipe without a writer is always ready to be read."""
    with suppress(FileExistsError):
        os.mkfifo(pipe, 0o600)  # other users could read its messages away
    return os.open(pipe, os.O_RDWR | os.O_NONBLOCK)


def _ends_of(record: Record) -> list[int]:
    """Files, each of which becomes readable when an owner ends; of those that run."""
    return [file for owner in record.owners if (file := _end_of(owner)) is not None]


def _end_of(owner: Process) -> int | None:
    """A file that becomes readable when `owner` ends, ``None`` if it has ended."""
    try:
        file = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        return None
    if owner.alive:
        return file
    os.close(file)  # it belongs to a later process of the same number
    return None


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


if __name__ == "__main__":
    watch_making(Path(sys.argv[1]))
