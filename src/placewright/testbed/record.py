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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

HOME: Final = Path("/run/placewright")
"""One folder per testbed."""

RECORD: Final = "testbed.json"
LINKS: Final = "links"
LOG: Final = "emulator.log"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    start: int

    @classmethod
    def this(cls) -> Process:
        """The calling process."""
        return cls(os.getpid(), _start_of(os.getpid()))

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
    owner
        The process with which the testbed ends; ``None`` where it stays until ``down``.
    """

    id: str
    cluster: str
    namespaces: tuple[str, ...]
    groups: tuple[str, ...]
    cpus: tuple[int, ...]
    links_cpu: int
    boot: str
    owner: Process | None = None

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return HOME / self.id

    @property
    def abandoned(self) -> bool:
        """Whether its owner, or the machine, has ended without taking it down."""
        return self.boot != this_boot() or (self.owner is not None and not self.owner.alive)

    def write(self) -> None:
        """Keep it, all or nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / (RECORD + ".new")
        draft.write_text(json.dumps({"schema_version": 1, **asdict(self)}), encoding="utf-8")
        draft.replace(self.folder / RECORD)


def this_boot() -> str:
    """What tells this life of the machine from the one before a reboot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_record(folder: Path) -> Record:
    """The record in `folder`."""
    data = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    owner = data["owner"]
    return Record(
        data["id"],
        data["cluster"],
        tuple(data["namespaces"]),
        tuple(data["groups"]),
        tuple(data["cpus"]),
        data["links_cpu"],
        data.get("boot", this_boot()),
        Process(**owner) if owner else None,
    )


def records() -> tuple[Record, ...]:
    """Every testbed of this machine, by its id."""
    found = []
    for path in sorted(HOME.glob(f"*/{RECORD}")):
        with suppress(FileNotFoundError):  # it has just gone down
            found.append(read_record(path.parent))
    return tuple(found)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold off others who make or remove testbeds."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start_of(pid: int) -> int:
    """Clock ticks from boot to its start, -1 where it has ended (a zombie has)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    fields = stat[stat.rindex(")") + 2 :].split()
    return -1 if fields[0] in "ZX" else int(fields[19])
