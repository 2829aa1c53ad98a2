"""The few bytes of an IPv4 packet that a link emulator must read or change.

A packet comes from a TUN device with a virtio header of `HEADER` bytes in front, which says how
the kernel may cut it into segments later: one read carries up to 64 KiB.
"""

from __future__ import annotations

from typing import Final

HEADER: Final = 10
"""Bytes of ``struct virtio_net_hdr``."""

_TCP, _UDP = 6, 17


def payload_bytes(packet: bytes) -> int:
    """Bytes that an application sent: the packet without its IP and TCP or UDP headers."""
    ip = (packet[HEADER] & 15) * 4
    size = len(packet) - HEADER - ip
    protocol = packet[HEADER + 9]
    if protocol == _TCP:
        return size - (packet[HEADER + ip + 12] >> 4) * 4
    return size - 8 if protocol == _UDP else size


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
    checksum += (~service & 0xFFFF) + (service | 3)
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    marked[HEADER + 10 : HEADER + 12] = (~checksum & 0xFFFF).to_bytes(2, "big")
    return bytes(marked)
