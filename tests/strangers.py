"""Another user of this machine, who has no rights of ours and talks to every port he can find.

Needs root, who alone can become somebody else. Python may lie in a folder that only root can
read: what a stranger needs is imported before he becomes one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

UID = 1001

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

_BECOME = f"""
import encodings.idna, hashlib, hmac, os, pickle, socket, struct, sys, time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
{{imports}}
os.setgroups([])
os.setgid({UID})
os.setuid({UID})
os.chdir("/")

class Evil:
    def __reduce__(self):
        return os.system, ("id > " + MARK,)

MARK, PAIRS = sys.argv[1], [a.rpartition(":") for a in sys.argv[2:]]
ADDRESSES = [(host, int(port)) for host, _, port in PAIRS]
"""


def stranger(
    script: str, mark: Path, addresses: list[tuple[str, int]], imports: str = ""
) -> subprocess.Popen[str]:
    """A process of another user's that runs `script`.

    Parameters
    ----------
    script
        Knows ``Evil``, whose pickle makes whoever loads it create `mark`, and ``ADDRESSES``.
    """
    where = [f"{host}:{port}" for host, port in addresses]
    return subprocess.Popen(
        [sys.executable, "-c", _BECOME.format(imports=imports) + script, str(mark), *where],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], limit_s: float = 60.0) -> str:
    """What a stranger printed, who must not have failed by himself."""
    out, err = process.communicate(timeout=limit_s)
    assert process.returncode == 0, err
    return out


def listening(pid: int) -> dict[tuple[str, int], int]:
    """Addresses at which a process and all that it has started listen, with the process of each."""
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


def descendants(pid: int) -> list[int]:
    """Processes that this one has started, theirs too."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def _listeners() -> list[tuple[tuple[str, int], str]]:
    """Address and inode of every TCP socket that listens, ``""`` for every interface."""
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


def reach(address: tuple[str, int]) -> tuple[str, int]:
    """The address to call: whoever listens on every interface is reached on loopback."""
    return (address[0] or "127.0.0.1", address[1])


def unhurt(mark: Path) -> bool:
    """Whether nobody has executed what a stranger sent."""
    return not mark.exists()


def owner(mark: Path) -> Any:
    """Whose process was made to execute it."""
    return mark.stat().st_uid
