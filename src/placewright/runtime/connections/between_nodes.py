"""TCP connections between two nodes of a testbed, made by one process, and how long they are dead.

Both ends are made here: a socket stays in the network namespace in which it was made, whichever
process uses it later. So a worker on one node can take its orders over emulated links from another
node, with the same frames as through a pipe (`channel`).

A cut link sends no error. TCP finds it out: the kernel of the other end acknowledges what arrives
even while its process computes or is stopped, and with keep-alive it does so at least once a
second. `unheard_s` reads how long ago the last acknowledgement was.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from multiprocessing.connection import Connection

from placewright.errors import RunError
from placewright.testbed.namespaces import join
from placewright.testbed.node_handle import NodeHandle

CONNECT_S = 2.0
"""In which a connection is made; a link that is cut makes none."""

PROBE_S = 1
"""Between two keep-alive probes of an idle connection; the kernel's least."""

UNHEARD_S = 2.5
"""Without an acknowledgement: two probes were lost."""

PENDING_S = 1.0
"""The same while something that was sent is not acknowledged."""

_INFO_BYTES = 104
_UNACKED, _DATA_RECEIVED, _ACK_RECEIVED, _ROUND_TRIP = 4, 11, 12, 15
"""Positions among the 32-bit fields of ``struct tcp_info``, after eight of 8 bits; milliseconds,
the last one microseconds."""


def connection_between(source: NodeHandle, target: NodeHandle) -> tuple[Connection, Connection]:
    """The two ends of a new connection over the links between two nodes of one testbed.

    Raises `RunError`: no link joins them, it is cut, or the testbed is not up.
    """
    found: list[socket.socket] = []
    failed: list[Exception] = []

    def work() -> None:  # a thread of its own: a thread stays in the namespace that it has joined
        try:
            found.extend(_ends(source, target))
        except (OSError, RunError) as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="placewright-connect")
    thread.start()
    thread.join()
    if failed:
        raise RunError(
            "no connection over the testbed's links",
            where=f"from {source.device!r} to {target.device!r}",
            by=str(failed[0]),
            hint="is the link cut? `placewright testbed status` shows it",
        )
    for end in found:
        _watch(end)
    ours, theirs = (Connection(end.detach()) for end in found)
    return ours, theirs


def _ends(source: NodeHandle, target: NodeHandle) -> tuple[socket.socket, socket.socket]:
    # A socket belongs to the namespace of its thread when it is made: first the listening end is
    # made on the target, then the calling one on the source; `accept` works from anywhere.
    join(target.namespace)
    with socket.create_server((target.address, 0)) as listening:
        listening.settimeout(CONNECT_S)
        join(source.namespace)
        ours = socket.create_connection(listening.getsockname(), timeout=CONNECT_S)
        try:
            while True:
                theirs, peer = listening.accept()
                if peer == ours.getsockname():
                    return ours, theirs
                theirs.close()  # somebody else's
        except BaseException:
            ours.close()
            raise


def _watch(end: socket.socket) -> None:
    end.setblocking(True)
    tcp = socket.IPPROTO_TCP
    end.setsockopt(tcp, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.setsockopt(tcp, socket.TCP_KEEPIDLE, PROBE_S)
    end.setsockopt(tcp, socket.TCP_KEEPINTVL, PROBE_S)
    end.setsockopt(tcp, socket.TCP_USER_TIMEOUT, int(2e3 * UNHEARD_S))


def unheard_s(end: Connection) -> float:
    """Seconds for which the other end's kernel owes an answer too long; 0 while it answers."""
    with socket.socket(fileno=os.dup(end.fileno())) as link:
        info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    # Of an older kernel the structure is shorter; newer ones cut it to what was asked for.
    fields = struct.unpack_from(f"8x{(len(info) - 8) // 4}I", info)
    # Whichever was last: of data that is received in sequence the kernel need not note the
    # acknowledgement that is in it.
    silent_s = 1e-3 * min(fields[_DATA_RECEIVED], fields[_ACK_RECEIVED])
    # Four round trips beside it, for a link that is slow and not cut.
    limit_s = PENDING_S + 4e-6 * fields[_ROUND_TRIP] if fields[_UNACKED] else UNHEARD_S
    return silent_s if silent_s > limit_s else 0.0
