"""What a testbed consists of, kept in a file so that nothing is ever left behind.

The record is written before anything is made and deleted after everything is removed. It knows
its boot: a reboot ends namespaces and groups, but not everywhere the files of ``/run``.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

HOME: Final = Path("/run/placewright")
"""One folder per testbed."""

RECORD: Final = "testbed.json"
LINKS: Final = "links"
LOG: Final = "emulator.log"
CHANGES: Final = "changes"
"""A pipe on which the emulator hears that the record has changed."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be mistaken for a later one of the same number."""

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
    """All that was made for one testbed.

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
        The machine's life in which it was made.
    made_ns
        When, since the epoch: tells it from a later one of its name.
    owners
        The processes with the last of which the testbed ends; none where it stays until ``down``.
    whole
        Whether all of it has been made: what was broken off before that cannot be trusted.
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
        """Where it is kept."""
        return HOME / self.id

    @property
    def abandoned(self) -> bool:
        """Whether its owners, or the machine, have ended without taking it down."""
        ended = bool(self.owners) and not any(owner.alive for owner in self.owners)
        return ended or self.boot != this_boot()

    def others(self, process: Process) -> tuple[Process, ...]:
        """The owners that still run, but for `process`."""
        return tuple(owner for owner in self.owners if owner != process and owner.alive)

    def joined(self, process: Process, *, keep: bool) -> Record:
        """With `process` among its owners; without any where it is to stay, or was."""
        if keep or not self.owners:
            return replace(self, owners=())
        return replace(self, owners=(*self.others(process), process))

    def now(self) -> Record | None:
        """What it has become, ``None`` where its testbed is down."""
        found = record_in(self.folder)
        return found if found is not None and found.made_ns == self.made_ns else None

    def write(self) -> None:
        """Keep it, all or nothing, and tell the emulator."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / (RECORD + ".new")
        # Versions that know a single owner leave alone what has none.
        data = {"schema_version": 1, "owner": None, **asdict(self)}
        draft.write_text(json.dumps(data), encoding="utf-8")
        draft.replace(self.folder / RECORD)
        _tell(self.folder / CHANGES)


def this_boot() -> str:
    """What tells this life of the machine from the one before a reboot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_record(folder: Path) -> Record:
    """The record in `folder`."""
    data = json.loads((folder / RECORD).read_text(encoding="utf-8"))
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
    """Hold off others who make or remove testbeds."""
    HOME.mkdir(parents=True, exist_ok=True)
    # Of mode 600: whoever can open it could hold the lock, and everybody up.
    with open(HOME / "lock", "w", opener=lambda p, f: os.open(p, f, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _tell(changes: Path) -> None:
    with suppress(OSError):  # nobody listens
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
    fields = stat[stat.rindex(")") + 2 :].split()
    return -1 if fields[0] in "ZX" else int(fields[19])
