"""A process inside a testbed that measures: round trips, a TCP transfer, a spin.

Run as ``python -m placewright.testbed.probe ROLE SEAT ...`` by `placewright.testbed.selftest`;
the seat is JSON, and so is the line that it prints. It imports nothing heavy, so that it starts
at once, and nothing of what is measured.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time
from typing import Final

from placewright.testbed.seat import NodeSeat

ROUNDS: Final = 25
_RAMP: Final = 0.2
_SMALL, _LARGE = 64, 1 << 20


def serve(seat: NodeSeat) -> dict[str, float]:
    """Answer the round trips, then take the transfer; its rate in bytes per second."""
    with socket.create_server((seat.address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUNDS):
            connection.sendall(connection.recv(_SMALL))
        return {"rate": _arrival_rate(connection)}


def _arrival_rate(connection: socket.socket) -> float:
    """Bytes per second after the first fifth, in which TCP finds its window."""
    arrived, log = 0, []
    while data := connection.recv(_LARGE):
        arrived += len(data)
        log.append((time.perf_counter(), arrived))
    (start_s, before), (end_s, total) = next(e for e in log if e[1] >= arrived * _RAMP), log[-1]
    return (total - before) / (end_s - start_s) if end_s > start_s else float("nan")


def call(seat: NodeSeat, address: str, port: int, size: int) -> dict[str, float]:
    """Make the round trips, then send `size` bytes; the median round trip in seconds."""
    del seat  # it is where we are
    with socket.create_connection((address, port), timeout=10.0) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        round_trips = [_round_trip_s(connection) for _ in range(ROUNDS)]
        connection.settimeout(None)
        connection.sendall(bytes(size))
    return {"round_trip_s": statistics.median(round_trips)}


def _round_trip_s(connection: socket.socket) -> float:
    start = time.perf_counter()
    connection.sendall(b"?")
    connection.recv(_SMALL)
    return time.perf_counter() - start


def spin(wall_s: float) -> dict[str, float]:
    """Compute for `wall_s` seconds; CPU time over wall time."""
    start, own = time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) - start < wall_s:
        pass
    return {"share": (time.process_time() - own) / (now - start)}


def main(role: str, seat_text: str, *rest: str) -> None:
    """Enter the seat, do one of the three, print what was measured."""
    seat = seat_from(seat_text)
    seat.enter()
    if role == "serve":
        measured = serve(seat)
    elif role == "call":
        measured = call(seat, rest[0], int(rest[1]), int(rest[2]))
    else:
        measured = spin(float(rest[0]))
    print(json.dumps(measured), flush=True)


def seat_from(text: str) -> NodeSeat:
    """A seat from the JSON of its fields."""
    data = json.loads(text)
    return NodeSeat(**data | {key: tuple(data[key]) for key in ("groups", "cpus")})


if __name__ == "__main__":
    main(*sys.argv[1:])
