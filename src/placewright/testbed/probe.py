"""A process inside a testbed that measures: arrivals, a TCP transfer, a spin.

Run as ``python -m placewright.testbed.probe ROLE SEAT ...`` by `placewright.testbed.selftest`;
the seat is JSON, and so is the line that it prints. It imports nothing heavy, so that it starts
at once, and nothing of what is measured.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from typing import Any, Final

from placewright.testbed.node_handle import NodeHandle

ROUNDS: Final = 25
_RAMP: Final = 0.2
_LARGE: Final = 1 << 20
_PATIENCE_S: Final = 10.0
_ARRIVAL: Final = 35
"""``SO_TIMESTAMPNS``, and what the kernel then says beside every datagram: see socket(7)."""


def serve(handle: NodeHandle) -> dict[str, Any]:
    """Note when datagrams arrive, then take the transfer; its rate in bytes per second."""
    with socket.create_server((handle.address, 0)) as server:
        address = server.getsockname()
        with inbox(address) as letters:
            print(address[1], flush=True)
            connection, _ = server.accept()
            arrived_ns = [_answered_ns(letters) for _ in range(ROUNDS)]
    with connection:
        return {"arrived_ns": arrived_ns, "rate": _arrival_rate(connection)}


def inbox(address: tuple[str, int]) -> socket.socket:
    """A socket for datagrams whose arrivals the kernel notes."""
    letters = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    letters.setsockopt(socket.SOL_SOCKET, _ARRIVAL, 1)
    letters.bind(address)
    letters.settimeout(_PATIENCE_S)
    return letters


def _answered_ns(letters: socket.socket) -> int:
    """Answer a datagram; when it arrived."""
    arrived_ns, sender = arrival_ns(letters)
    letters.sendto(b"!", sender)
    return arrived_ns


def arrival_ns(letters: socket.socket) -> tuple[int, Any]:
    """When the next datagram came to its interface, nanoseconds since 1970, and its sender.

    By the kernel: a process that slept notices some time later, and that is not the link's.
    """
    _, ((_, _, stamp),), _, sender = letters.recvmsg(1, socket.CMSG_SPACE(16))
    seconds, nanoseconds = struct.unpack("@ll", stamp)
    return seconds * 10**9 + nanoseconds, sender


def _arrival_rate(connection: socket.socket) -> float:
    """Bytes per second after the first fifth, in which TCP finds its window."""
    arrived, log = 0, []
    while data := connection.recv(_LARGE):
        arrived += len(data)
        log.append((time.perf_counter(), arrived))
    (start_s, before), (end_s, total) = next(e for e in log if e[1] >= arrived * _RAMP), log[-1]
    return (total - before) / (end_s - start_s) if end_s > start_s else float("nan")


def call(handle: NodeHandle, address: str, port: int, size: int) -> dict[str, Any]:
    """Send datagrams, each when the one before was answered, then `size` bytes."""
    with (
        socket.create_connection((address, port), timeout=_PATIENCE_S) as connection,
        inbox((handle.address, 0)) as letters,
    ):
        sent_ns = [_sent_ns(letters, (address, port)) for _ in range(ROUNDS)]
        connection.settimeout(None)
        connection.sendall(bytes(size))
    return {"sent_ns": sent_ns}


def _sent_ns(letters: socket.socket, address: tuple[str, int]) -> int:
    """When a datagram was sent that has been answered, nanoseconds since 1970."""
    sent_ns = time.time_ns()
    letters.sendto(b"?", address)
    letters.recv(1)
    return sent_ns


def spin(wall_s: float) -> dict[str, Any]:
    """Compute for `wall_s` seconds; CPU time over wall time."""
    start, own = time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) - start < wall_s:
        pass
    return {"share": (time.process_time() - own) / (now - start)}


def main(role: str, seat_text: str, *rest: str) -> None:
    """Enter the seat, do one of the three, print what was measured."""
    handle = seat_from(seat_text)
    handle.enter()
    if role == "serve":
        measured = serve(handle)
    elif role == "call":
        measured = call(handle, rest[0], int(rest[1]), int(rest[2]))
    else:
        measured = spin(float(rest[0]))
    print(json.dumps(measured), flush=True)


def seat_from(text: str) -> NodeHandle:
    """A seat from the JSON of its fields."""
    data = json.loads(text)
    return NodeHandle(**data | {key: tuple(data[key]) for key in ("groups", "cpus")})


if __name__ == "__main__":
    main(*sys.argv[1:])
