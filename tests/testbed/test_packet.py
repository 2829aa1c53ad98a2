"""Packet fields that the emulator reads and changes."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from placewright.testbed.emulator import HEADER, payload_bytes, with_congestion_mark


def checksum(header: bytes) -> int:
    """The Internet checksum as RFC 1071 defines it, the slow way."""
    words = struct.unpack(f">{len(header) // 2}H", header)
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def packet(
    payload: int = 100,
    *,
    service: int = 2,
    protocol: int = 6,
    to: int = 2,
    options: int = 0,
    offset: int = 0,
) -> bytes:
    """An IPv4 packet with a virtio header, as a TUN device gives it."""
    transport = {6: bytes(12) + bytes([5 + options << 4]) + bytes(7 + 4 * options), 17: bytes(8)}
    body = (b"" if offset else transport.get(protocol, b"")) + bytes(payload)
    fixed = struct.pack(">BBHHHBBH", 0x45, service, 20 + len(body), 0, offset, 64, protocol, 0)
    header = fixed + bytes([10, 78, 0, 1, 10, 78, to >> 8, to & 255])
    full = header[:10] + struct.pack(">H", checksum(header)) + header[12:]
    return bytes(HEADER) + full + body


@given(payload=st.integers(0, 5000), options=st.integers(0, 10))
def test_headers_are_free(payload: int, options: int) -> None:
    """What counts is what the application sent, over TCP (with options), UDP and bare IP."""
    assert payload_bytes(packet(payload, options=options)) == payload
    assert payload_bytes(packet(payload, protocol=17)) == payload
    assert payload_bytes(packet(payload, protocol=1)) == payload


@given(payload=st.integers(0, 1480), protocol=st.sampled_from([1, 6, 17]))
def test_later_fragments_have_no_header(payload: int, protocol: int) -> None:
    """All of a later fragment was sent, and a short one of TCP does not end the emulator."""
    for offset in (1, 185, 0x1FFF):
        assert payload_bytes(packet(payload, protocol=protocol, offset=offset)) == payload


@given(size=st.integers(0, 30), protocol=st.sampled_from([6, 17]))
def test_packets_that_are_cut_off_are_counted_all_the_same(size: int, protocol: int) -> None:
    """Raw sockets send whatever they like; nothing counts as less than nothing."""
    assert payload_bytes(packet(0, protocol=protocol)[: HEADER + 20 + size]) >= 0


@given(service=st.integers(0, 255), payload=st.integers(0, 3000))
def test_a_mark_keeps_the_checksum_right(service: int, payload: int) -> None:
    """Only packets of senders that understand are marked, and their header still adds up."""
    before = packet(payload, service=service)
    after = with_congestion_mark(before)
    if service & 3 in (0, 3):
        assert after is None
        return
    assert after is not None
    assert after[HEADER + 1] == service | 3
    assert checksum(after[HEADER : HEADER + 20]) == 0
    assert (
        after[: HEADER + 1] + after[HEADER + 12 :] == before[: HEADER + 1] + before[HEADER + 12 :]
    )
