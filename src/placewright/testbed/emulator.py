"""One process that carries the packets of a testbed, each as late as its link says.

A packet waits until its channel is free, holds it for ``payload / rate``, and arrives
``delay_s`` later: the link of the judge, ``latency_s + bytes * seconds_per_byte``, for what an
application sends (headers are free). It does what the kernel's netem does, for kernels without it.

TCP is slowed by marks (ECN), not by losses: a packet that would wait longer than `MARK_S` and two
delays is marked; it is dropped only where it would wait `DROP_S` and the queue holds `DROP_BYTES`.

Run as ``python -m placewright.testbed.emulator FOLDER`` by `placewright.testbed.testbed`.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from pathlib import Path
from typing import Final

from placewright.testbed.link_table import LinkTable
from placewright.testbed.namespaces import INTERFACE, join
from placewright.testbed.packet import HEADER, payload_bytes, with_congestion_mark
from placewright.testbed.record import LINKS, read_record
from placewright.testbed.watch import watches

MARK_S: Final = 0.04
DROP_S: Final = 1.0
DROP_BYTES: Final = 1 << 20

OWN_S: Final = 25e-6
"""What reading, waking up and writing take by themselves, taken off every delay."""

_BATCH: Final = 32
_MOST_LATE_S: Final = 0.5e-3
_NAP_S: Final = 0.5e-3
_READ_BYTES: Final = HEADER + 65_536
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x1000, 0x4000
_OFFLOAD_CHECKSUM, _OFFLOAD_TCP4, _OFFLOAD_TCP_ECN = 0x1, 0x2, 0x8


def attach(interface: str) -> int:
    """A non-blocking file of the TUN device `interface` in the namespace we are in."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), flags))
    offload = _OFFLOAD_CHECKSUM | _OFFLOAD_TCP4 | _OFFLOAD_TCP_ECN
    fcntl.ioctl(file, _TUNSETOFFLOAD, offload)
    return file


class Emulator:
    """Carries packets between TUN devices until it is told to stop.

    Parameters
    ----------
    files
        One per device, in the order of the table; device k has the address ``x.x.h.l`` with
        ``256 * h + l == k + 1``.
    table
        What is asked of every way; read anew for every packet.
    clock
        Seconds.
    """

    def __init__(
        self, files: list[int], table: LinkTable, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._files, self._devices = files, len(files)
        self._row = {file: k * len(files) for k, file in enumerate(files)}
        self._rate, self._delay = table.square("rate"), table.square("delay_s")
        self._channel, self._cut = table.square("channel"), table.square("cut")
        self._packets, self._bytes = table.square("packets"), table.square("bytes")
        self._dropped, self._marked = table.square("dropped"), table.square("marked")
        self._free_s = [0.0] * len(files) ** 2
        self._last_s = [0.0] * len(files) ** 2
        self._due: list[tuple[float, int, int, bytes]] = []
        self._order = 0
        self._late_s = self._since_s = 0.0

    def run(self, watched: tuple[int, ...] = ()) -> None:
        """Carry packets until one of the `watched` files becomes readable."""
        waited = [*self._files, *watched]
        while True:
            due_s = self._due[0][0] - self._late_s if self._due else None
            began_s = self._clock()
            timeout = None if due_s is None else max(0.0, due_s - began_s)
            ready = select.select(waited, (), (), timeout)[0]
            now = self._clock()
            if timeout and not ready:
                self._learn_lateness(now - (due_s or 0.0))
            # What woke us up came before we noticed, as late as a timer would have been.
            self._since_s = self._late_s if now - began_s > _NAP_S else 0.0
            for file in ready:
                if file in watched:
                    return
                self.take(file)
            self.deliver()

    def _learn_lateness(self, refined_s: float) -> None:
        """How late we are woken up: by so much less we sleep, and poll for the rest.

        An idle virtual machine may need half a millisecond to wake up; a busy one needs none.
        """
        self._late_s += (min(refined_s, _MOST_LATE_S) - self._late_s) / 8

    def take(self, file: int) -> None:
        """Read what a device sends and note when each packet arrives."""
        row = self._row[file]
        for _ in range(_BATCH):
            try:
                packet = os.read(file, _READ_BYTES)
            except BlockingIOError:
                return
            if packet[HEADER] >> 4 != 4:
                continue
            target = packet[HEADER + 18] * 256 + packet[HEADER + 19] - 1
            if 0 <= target < self._devices:
                self._admit(row + target, packet)

    def _admit(self, way: int, packet: bytes) -> None:
        """Queue a packet on its way, mark it, or drop it."""
        now, rate, delay = self._clock() - self._since_s, self._rate[way], self._delay[way]
        channel = int(self._channel[way])
        wait = max(0.0, self._free_s[channel] - now)
        if rate <= 0 or self._cut[way] or (wait > DROP_S and wait * rate > DROP_BYTES):
            self._dropped[way] += 1
            return
        if wait > MARK_S + 2 * delay:
            marked = with_congestion_mark(packet)
            self._marked[way] += marked is not None
            packet = marked or packet
        self._free_s[channel] = now + wait + payload_bytes(packet) / rate
        # Never before its predecessor, also where the delay has just become shorter.
        arrival = max(self._free_s[channel] + delay - OWN_S, self._last_s[way])
        self._last_s[way] = arrival
        self._order += 1
        heappush(self._due, (arrival, self._order, way, packet))

    def deliver(self) -> None:
        """Hand over every packet whose time has come."""
        due, now = self._due, self._clock()
        while due and due[0][0] <= now:
            _, _, way, packet = heappop(due)
            if self._cut[way] or not _handed_over(self._files[way % self._devices], packet):
                self._dropped[way] += 1
                continue
            self._packets[way] += 1
            self._bytes[way] += payload_bytes(packet)


def _handed_over(file: int, packet: bytes) -> bool:
    try:
        os.write(file, packet)
    except OSError:
        return False  # its device is down or its queue is full
    return True


def main(folder: Path) -> None:
    """Attach to the devices of the testbed in `folder` and carry its packets.

    Ends when it is killed, or when the last process that owns the testbed is gone: then it takes
    the testbed down first.
    """
    record = read_record(folder)
    files = [_attach_in(namespace) for namespace in record.namespaces]
    table = LinkTable(folder / LINKS)
    _first_in_line(record.links_cpu)
    table.emulator_pid = os.getpid()
    emulator = Emulator(files, table)
    for watched in watches(folder):
        emulator.run(watched)


def _attach_in(namespace: str) -> int:
    join(namespace)
    return attach(INTERFACE)


def _first_in_line(cpu: int) -> None:
    """Wake up at once when a packet or its time comes, however busy the cores are."""
    gc.disable()
    with suppress(OSError):
        os.sched_setaffinity(0, {cpu})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
