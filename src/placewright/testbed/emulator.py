"""Link emulator: one process that forwards the packets of a testbed with each link's delay.

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

from placewright.testbed.namespaces import INTERFACE, LinkTable, join
from placewright.testbed.record import LINKS, owner_events, read_record

HEADER: Final = 10
"""Bytes of ``struct virtio_net_hdr``, which a TUN device puts before each packet: it says how the
kernel may cut the packet into segments later, so that one read carries up to 64 KiB."""

_TCP, _UDP = 6, 17

MARK_S: Final = 0.04
DROP_S: Final = 1.0
DROP_BYTES: Final = 1 << 20

OWN_S: Final = 25e-6
"""Time of reading, waking up and writing, subtracted from every delay."""

_BATCH: Final = 32
_MOST_LATE_S: Final = 0.5e-3
_SLEPT_S: Final = 0.5e-3
_READ_BYTES: Final = HEADER + 65_536
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x1000, 0x4000
_OFFLOAD_CHECKSUM, _OFFLOAD_TCP4, _OFFLOAD_TCP_ECN = 0x1, 0x2, 0x8


def attach(interface: str) -> int:
    """A non-blocking file of the TUN device `interface` in the current namespace."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), flags))
    offload = _OFFLOAD_CHECKSUM | _OFFLOAD_TCP4 | _OFFLOAD_TCP_ECN
    fcntl.ioctl(file, _TUNSETOFFLOAD, offload)
    return file


class Emulator:
    """Forwards packets between TUN devices.

    Parameters
    ----------
    files
        One per device, in the order of the table; device k has the address ``x.x.h.l`` with
        ``256 * h + l == k + 1``.
    table
        Rates, delays and cuts; read anew for every packet.
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
        """Forward packets until one of the `watched` files becomes readable."""
        files = [*self._files, *watched]
        while True:
            due_s = self._due[0][0] - self._late_s if self._due else None
            began_s = self._clock()
            timeout = None if due_s is None else max(0.0, due_s - began_s)
            ready = select.select(files, (), (), timeout)[0]
            now = self._clock()
            if timeout and not ready:
                self._learn_lateness(now - (due_s or 0.0))
            # The packet arrived before the process woke up, as late as a timer would have been.
            self._since_s = self._late_s if now - began_s > _SLEPT_S else 0.0
            # As many packets of each device as `_BATCH`, then the next one: no sender keeps out
            # others.
            for file in ready:
                if file in watched:
                    return
                self.take(file)
            self.deliver()

    def _learn_lateness(self, late_s: float) -> None:
        """Estimate the wake-up latency: sleep that much less, and poll for the rest.

        An idle virtual machine may need half a millisecond to wake up; a busy one needs none.
        """
        self._late_s += (min(late_s, _MOST_LATE_S) - self._late_s) / 8

    def take(self, file: int) -> None:
        """Read the packets that a device sends and schedule the delivery of each."""
        row = self._row[file]
        for _ in range(_BATCH):
            try:
                packet = os.read(file, _READ_BYTES)
            except BlockingIOError:
                return
            if packet[HEADER] >> 4 != 4:
                continue
            # The last two bytes of the destination: see `namespaces.address`.
            target = packet[HEADER + 18] * 256 + packet[HEADER + 19] - 1
            if 0 <= target < self._devices:
                self._admit(row + target, packet)

    def _admit(self, way: int, packet: bytes) -> None:
        """Queue a packet on its way, mark it, or drop it."""
        now, rate, delay = self._clock() - self._since_s, self._rate[way], self._delay[way]
        channel = int(self._channel[way])
        wait = max(0.0, self._free_s[channel] - now)
        # Both limits: a slow link may take a packet for longer than a second, a fast one may queue
        # more than a megabyte.
        if rate <= 0 or self._cut[way] or (wait > DROP_S and wait * rate > DROP_BYTES):
            self._dropped[way] += 1
            return
        if wait > MARK_S + 2 * delay:
            marked = with_congestion_mark(packet)
            self._marked[way] += marked is not None
            packet = marked or packet
        # The whole simulation of a link: its channel is taken until then, and the packet arrives a
        # delay later.
        self._free_s[channel] = now + wait + payload_bytes(packet) / rate
        # Never before its predecessor, also where the delay has just become shorter.
        arrival = max(self._free_s[channel] + delay - OWN_S, self._last_s[way])
        self._last_s[way] = arrival
        # Ties in the heap go by order of arrival, and never compare packets.
        self._order += 1
        heappush(self._due, (arrival, self._order, way, packet))

    def deliver(self) -> None:
        """Deliver every packet that is due."""
        due, now = self._due, self._clock()
        while due and due[0][0] <= now:
            _, _, way, packet = heappop(due)
            # Looked at again: a cut loses what was on its way.
            if self._cut[way] or not _written(self._files[way % self._devices], packet):
                self._dropped[way] += 1
                continue
            self._packets[way] += 1
            self._bytes[way] += payload_bytes(packet)


def _written(file: int, packet: bytes) -> bool:
    try:
        os.write(file, packet)
    except OSError:
        return False  # its device is down or its queue is full
    return True


def payload_bytes(packet: bytes) -> int:
    """Bytes that an application sent: the packet without its IP and TCP or UDP headers."""
    ip = (packet[HEADER] & 15) * 4
    size, protocol = len(packet) - HEADER - ip, packet[HEADER + 9]
    # Of a datagram in fragments only the first has its header: behind it the offset is not 0.
    if (packet[HEADER + 6] & 0x1F) << 8 | packet[HEADER + 7]:
        return size
    header = 8 if protocol == _UDP else 0
    if protocol == _TCP and size > 12:  # else it is cut off before its length
        header = (packet[HEADER + ip + 12] >> 4) * 4
    return max(0, size - header)


def with_congestion_mark(packet: bytes) -> bytes | None:
    """The packet with "congestion experienced" set (RFC 3168), ``None`` where it is not capable.

    The header checksum is corrected by RFC 1624.
    """
    service = packet[HEADER + 1]
    if service & 3 in (0, 3):
        return None
    marked = bytearray(packet)
    marked[HEADER + 1] = service | 3
    checksum = ~int.from_bytes(packet[HEADER + 10 : HEADER + 12], "big") & 0xFFFF
    # RFC 1624, equation 3, HC' = ~(~HC + ~m + m'), where m is the 16-bit word of version and
    # service; the version is the same in m and m' and cancels out.
    checksum += (~service & 0xFFFF) + (service | 3)
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    marked[HEADER + 10 : HEADER + 12] = (~checksum & 0xFFFF).to_bytes(2, "big")
    return bytes(marked)


def main(folder: Path) -> None:
    """Attach to the devices of the testbed in `folder` and forward its packets.

    Ends when it is killed, or when the last process that owns the testbed has ended: then it
    removes the testbed first.
    """
    record = read_record(folder)
    files = [_attach_in(namespace) for namespace in record.namespaces]
    table = LinkTable(folder / LINKS)
    _set_realtime(record.links_cpu)
    table.emulator_pid = os.getpid()
    emulator = Emulator(files, table)
    for watched in owner_events(folder):
        emulator.run(watched)


def _attach_in(namespace: str) -> int:
    join(namespace)
    return attach(INTERFACE)


def _set_realtime(cpu: int) -> None:
    """Wake up at once when a packet arrives or is due, however busy the cores are."""
    # A collection would hold up packets, and nothing here makes cycles.
    gc.disable()
    with suppress(OSError):
        os.sched_setaffinity(0, {cpu})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
