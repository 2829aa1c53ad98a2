"""Output, descendants, listening sockets, memory limits and preloaded modules of processes."""

from __future__ import annotations

import os
import resource
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def preload_training() -> None:
    """Let the fork server, which all tests of a process share, load what workers that train import.

    Else the first test says what it loads, and each of hundreds of workers takes a second for it.
    """
    from placewright.runtime.engines import process as worker_process

    of_program = worker_process.preloaded_for
    worker_process.preloaded_for = lambda program: (
        *of_program(program),
        "placewright.capturing.updates",
    )


def output_of(process: subprocess.Popen[str], limit_s: float = 60.0) -> str:
    """Wait for a process that must exit with 0, and return what it printed."""
    out, err = process.communicate(timeout=limit_s)
    assert process.returncode == 0, err
    return out


def listening_addresses(pid: int) -> dict[tuple[str, int], int]:
    """Addresses at which a process and its descendants listen, with the process of each."""
    inodes: dict[str, int] = {}
    for each in (pid, *descendants(pid)):
        with suppress(OSError):
            for link in Path(f"/proc/{each}/fd").iterdir():
                with suppress(OSError):
                    inodes[os.readlink(link)] = each
    return {
        address: inodes[f"socket:[{inode}]"]
        for address, inode in _listeners()
        if f"socket:[{inode}]" in inodes
    }


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    found = [pid]
    for each in found:
        found += children(each)
    return found[1:]


def limit_memory(pid: int, spare_bytes: int) -> None:
    """Let a process have no more data than it has now and `spare_bytes`."""
    status = Path(f"/proc/{pid}/status").read_text()
    held_bytes = int(status.split("VmData:")[1].split()[0]) * 1024
    resource.prlimit(pid, resource.RLIMIT_DATA, (held_bytes + spare_bytes,) * 2)


def _listeners() -> list[tuple[tuple[str, int], str]]:
    """Address and inode of every listening TCP socket; the host is ``""`` for all interfaces."""
    found: list[tuple[tuple[str, int], str]] = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
            found += [_entry(line.split()) for line in lines if line.split()[3] == "0A"]
    return found


def _entry(fields: list[str]) -> tuple[tuple[str, int], str]:
    host, port = fields[1].split(":")
    raw = bytes.fromhex(host)
    quad = ".".join(map(str, reversed(raw[-4:])))
    return ("" if not any(raw) else quad, int(port, 16)), fields[9]


def reachable_address(address: tuple[str, int]) -> tuple[str, int]:
    """The address to connect to: loopback for a socket that listens on every interface."""
    return (address[0] or "127.0.0.1", address[1])
