"""A process inside a testbed that measures datagram arrivals, a TCP transfer, or its CPU share.

Run as ``python -m placewright.testbed.probe ROLE HANDLE ...`` by `placewright.testbed.status`;
the node handle is JSON, and so is the line that it prints. It imports nothing heavy, so that it
starts at once, and nothing of what is measured.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from typing import Any, Final

from placewright.testbed.record import NodeHandle

ROUNDS: Final = 25
_RAMP: Final = 0.2
_LARGE: Final = 1 << 20
_TIMEOUT_S: Final = 10.0
_ARRIVAL: Final = 35
"""``SO_TIMESTAMPNS``: the kernel adds its arrival time to every datagram, see socket(7)."""


def serve(handle: NodeHandle) -> dict[str, Any]:
    """Record when datagrams arrive, then receive a transfer; its rate in bytes per second."""
    with socket.create_server((handle.address, 0)) as server:
        address = server.getsockname()
        with datagram_socket(address) as datagrams:
            print(address[1], flush=True)
            connection, _ = server.accept()
            arrived_ns = [_answered_ns(datagrams) for _ in range(ROUNDS)]
    with connection:
        return {"arrived_ns": arrived_ns, "rate": _arrival_rate(connection)}


def datagram_socket(address: tuple[str, int]) -> socket.socket:
    """A socket for datagrams with arrival times by the kernel."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.SOL_SOCKET, _ARRIVAL, 1)
    datagrams.bind(address)
    datagrams.settimeout(_TIMEOUT_S)
    return datagrams


def _answered_ns(datagrams: socket.socket) -> int:
    """Answer a datagram; its time of arrival."""
    arrived_ns, sender = arrival_ns(datagrams)
    datagrams.sendto(b"!", sender)
    return arrived_ns


def arrival_ns(datagrams: socket.socket) -> tuple[int, Any]:
    """Arrival of the next datagram at its interface, nanoseconds since 1970, and its sender.

    By the kernel's clock: a process wakes up some time later, which is no delay of the link.
    """
    _, ((_, _, stamp),), _, sender = datagrams.recvmsg(1, socket.CMSG_SPACE(16))
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
        socket.create_connection((address, port), timeout=_TIMEOUT_S) as connection,
        datagram_socket((handle.address, 0)) as datagrams,
    ):
        sent_ns = [_sent_ns(datagrams, (address, port)) for _ in range(ROUNDS)]
        # A transfer over a slow link takes longer than a datagram's answer may.
        connection.settimeout(None)
        connection.sendall(bytes(size))
    return {"sent_ns": sent_ns}


def _sent_ns(datagrams: socket.socket, address: tuple[str, int]) -> int:
    """Send a datagram and wait for its answer; time of sending, nanoseconds since 1970."""
    sent_ns = time.time_ns()
    datagrams.sendto(b"?", address)
    datagrams.recv(1)
    return sent_ns


def spin(wall_s: float) -> dict[str, Any]:
    """Compute for `wall_s` seconds; CPU time over wall time."""
    start, own = time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) - start < wall_s:
        pass
    return {"share": (time.process_time() - own) / (now - start)}


def main(role: str, handle_json: str, *rest: str) -> None:
    """Enter the node, measure by `role`, print the result."""
    handle = handle_from_json(handle_json)
    handle.enter()
    if role == "serve":
        measured = serve(handle)
    elif role == "call":
        measured = call(handle, rest[0], int(rest[1]), int(rest[2]))
    else:
        measured = spin(float(rest[0]))
    print(json.dumps(measured), flush=True)


def handle_from_json(text: str) -> NodeHandle:
    """A node handle from the JSON of its fields."""
    data = json.loads(text)
    return NodeHandle(**data | {key: tuple(data[key]) for key in ("groups", "cpus")})


if __name__ == "__main__":
    main(*sys.argv[1:])
