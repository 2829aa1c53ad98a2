"""Network namespaces with one TUN device each, and the table of the links between them.

Namespaces are made and removed by iproute2's ``ip``. The table has rate, delay and counters of
every directed link: one small file, mapped into memory by the emulator and by other processes: a
change is one aligned eight-byte store, in force with the next packet, without a message or a lock.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placewright.errors import RunError

INTERFACE: Final = "pw0"
"""The device by which a namespace reaches the others."""

MTU: Final = 1500

_MOST_SEGMENTS: Final = 20_000

_FOLDER: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000

_TCP_SETTINGS: Final = {
    "ipv4/tcp_ecn": "1",  # the emulator slows senders by marks
    "ipv4/tcp_slow_start_after_idle": "0",  # training steps pause between bursts
    "ipv4/tcp_rmem": "4096 4194304 67108864",
    "ipv4/tcp_wmem": "4096 4194304 67108864",
}
_IPV6_OFF: Final = "ipv6/conf/all/disable_ipv6"


def address(position: int) -> str:
    """The IPv4 address of the device at `position` of the cluster."""
    return f"10.78.{(position + 1) >> 8}.{(position + 1) & 255}"


@dataclass(frozen=True, slots=True)
class Route:
    """A device that can be reached, and the initial TCP window to it.

    The window is the bandwidth-delay product: the link has its rate from the first byte on.
    """

    peer: int
    window_bytes: float

    @property
    def line(self) -> str:
        """The route as ``ip`` takes it."""
        segments = min(_MOST_SEGMENTS, 10 + round(self.window_bytes / (MTU - 52)))
        window = f"initcwnd {segments} initrwnd {segments}"
        return f"route add {address(self.peer)}/32 dev {INTERFACE} {window}"


def make(name: str, position: int, routes: Sequence[Route]) -> None:
    """A namespace with its device up and its routes; one that exists is kept."""
    if exists(name):
        return
    _ip("netns", "add", name)
    # The device is `/32`, so the kernel adds no route of its own: only given links lead anywhere.
    lines = [
        "link set lo up",
        f"tuntap add dev {INTERFACE} mode tun vnet_hdr",
        f"addr add {address(position)}/32 dev {INTERFACE}",
        f"link set {INTERFACE} mtu {MTU} txqueuelen 10000 up",
        *(route.line for route in routes),
    ]
    _ip("-n", name, "-batch", "-", text="\n".join(lines))
    _ip("netns", "exec", name, "sh", "-c", settings())


def settings(kernel: Path = Path("/proc/sys/net")) -> str:
    """Shell commands that configure TCP; they stop at the first that the kernel refuses.

    IPv6 is switched off where there is any: a kernel may have been started without.
    """
    ipv6 = f"{kernel}/{_IPV6_OFF}"
    tcp = (f"echo {value} > {kernel}/{key}" for key, value in _TCP_SETTINGS.items())
    return "\n".join(("set -e", *tcp, f"if [ -e {ipv6} ]; then echo 1 > {ipv6}; fi"))


def exists(name: str) -> bool:
    """Whether there is a namespace of this name."""
    return (_FOLDER / name).exists()


def remove(name: str) -> None:
    """Remove a namespace and all in it; one that is not there is fine."""
    if exists(name):
        _ip("netns", "del", name)


def join(name: str) -> None:
    """Move the calling thread into a namespace; `RunError` without one, or if not root."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        with (_FOLDER / name).open("rb") as file:
            if libc.setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        raise RunError(
            f"the namespace cannot be entered: {error.strerror}",
            where=name,
            hint="is the testbed up? see `placewright testbed status`",
        ) from None


def _ip(*arguments: str, text: str | None = None) -> None:
    command = shutil.which("ip") or "/sbin/ip"
    done = subprocess.run(
        [command, *arguments], input=text, text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise RunError(
            done.stderr.strip() or f"exit code {done.returncode}",
            where=f"ip {' '.join(arguments)}",
            hint="`placewright testbed down` removes what was made so far",
        )


FIELDS: Final = (
    "rate",  # bytes per second, 0 where there is no way
    "delay_s",
    "channel",  # index of the shared resource
    "cut",  # 1 while the way is cut
    "packets",  # counted by the emulator from here on
    "bytes",
    "dropped",
    "marked",
)
_HEADER: Final = ("devices", "emulator_pid")
_SIZE: Final = 8


class LinkTable:
    """A table of `FIELDS` for every pair of devices, in the file `path` that `create` made."""

    __slots__ = ("count", "values")

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            # The mapping lives on when the file is closed, and as long as a view of it.
            self.values = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        self.count = int(self.values[0])

    @classmethod
    def create(cls, path: Path, count: int) -> LinkTable:
        """A file for `count` devices in which no way leads anywhere yet."""
        values = len(_HEADER) + len(FIELDS) * count * count
        temporary = path.with_name(path.name + ".new")  # a file cut short could not even be removed
        temporary.write_bytes(struct.pack("=d", count).ljust(_SIZE * values, b"\0"))
        temporary.replace(path)
        return cls(path)

    @property
    def emulator_pid(self) -> int:
        """Process number of the emulator that attached last, 0 before the first."""
        return int(self.values[1])

    @emulator_pid.setter
    def emulator_pid(self, pid: int) -> None:
        self.values[1] = float(pid)

    def square(self, field: str) -> memoryview[float]:
        """All values of one field, row by row: the way from i to j is at ``i * count + j``."""
        ways = self.count * self.count
        start = len(_HEADER) + FIELDS.index(field) * ways
        return self.values[start : start + ways]

    def get(self, field: str, source: int, target: int) -> float:
        """One field of the way from `source` to `target`."""
        return self.square(field)[source * self.count + target]

    def set(self, field: str, source: int, target: int, value: float) -> None:
        """Change one field; in force with the next packet."""
        self.square(field)[source * self.count + target] = value
