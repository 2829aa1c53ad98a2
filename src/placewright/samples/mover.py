"""A node's part in a move: it sends its transfers and takes what others send.

One transfer is one connection. The sender serves its transfers one at a time, in order; a receiver
serves one connection at a time, as a port does:

    sender                                                          receiver
       | --- both ends prove the move's secret (authentication) ----> |
       | <-- "turn" ------------------------------------------------- |  this connection is next
       | --- (transfer, [(sample, content, SHA-256), ...]) ---------> |  at most `ON_THE_WAY` + 1
       | --- (transfer, ...) ---------------------------------------> |  messages unconfirmed
       | <-- "taken", or why not ------------------------------------ |  checked, written, noted
       |  deletes its files of the first message                      |

A sample that the sender no longer has was taken over before, so a transfer goes on where it was
cut. Where a later transfer has brought it back, the file that is here is that one's: it is neither
sent nor deleted. A link is as slow as in the problem: the sender waits out what the files would
take.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from placewright.errors import RunError
from placewright.runtime.connections import BROKEN, AuthenticatedListener, Channel, connect
from placewright.samples.data import Shard, checksum

FILES_PER_MESSAGE = 16
MESSAGE_BYTES = 128 * 1024
"""Files are large or small: while one message is on the way, the last is written."""
RETRY_S = 0.02
ON_THE_WAY = 2
"""Messages that are sent before the first is confirmed: a link does not stand still."""
TURN, TAKEN = "turn", "taken"


@dataclass(frozen=True, slots=True)
class SampleTransfer:
    """Samples from one node to another.

    Attributes
    ----------
    number
        Its place in the order of all transfers.
    samples, brought_by
        Which, and the transfer that brings each to the source first, -1 where none does.
    brought_back_by
        Of each, the later transfer that brings it to the source again, -1 where none does.
    sample_s, latency_s
        What the link takes.
    """

    number: int
    source: int
    target: int
    samples: tuple[int, ...]
    brought_by: tuple[int, ...]
    brought_back_by: tuple[int, ...]
    sample_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """Injected fault: at this message the process dies, or the link is cut.

    `late`: not before it is sent, but when the other side has taken it and we do not act on that.
    """

    message: int
    kill: bool
    late: bool = False


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """A node's part in a move.

    Attributes
    ----------
    folder
        Of its samples.
    addresses
        By node, where each listens.
    secret
        Only a node that proves to know it is sent files or heard.
    """

    folder: str
    addresses: tuple[tuple[str, int], ...]
    transfers: tuple[SampleTransfer, ...]
    secret: bytes = field(repr=False)
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class SamplesSent:
    """All is sent; ``(target, samples, from, to)`` of each connection, by the machine's clock."""

    spans: tuple[tuple[int, int, float, float], ...]


class Mover:
    """Receives on a thread for as long as the process lives; sends when ordered to."""

    def __init__(self, listening: socket.socket, order: MoveOrder) -> None:
        self._listener = AuthenticatedListener(listening, order.secret)
        self._lock = threading.Lock()
        self.prepare(order)
        threading.Thread(target=self._receive, daemon=True).start()

    def prepare(self, order: MoveOrder) -> None:
        """Take part in this move from now on; the one before has ended everywhere."""
        self._order, self._shard = order, Shard(Path(order.folder))

    def send(self) -> SamplesSent:
        """Send everything."""
        sender = _Sender(self._order, self._shard, self._lock)
        for transfer in self._order.transfers:
            while not sender.send(transfer):
                time.sleep(RETRY_S)
        return SamplesSent(tuple(sender.spans))

    def _receive(self) -> None:
        """One connection after another."""
        while True:
            called = self._listener.accept()
            assert called is not None  # there is no limit to the wait
            _, link = called
            with link, suppress(*BROKEN, RunError):
                link.send(TURN)
                while True:
                    link.send(self._stored(*link.recv()))

    def _stored(self, transfer: int, files: Sequence[tuple[int, bytes, str]]) -> str:
        """Write files; `TAKEN`, or why they cannot be written: sending again would not help."""
        try:
            for sample, content, digest in files:
                with self._lock:
                    self._shard.accept(transfer, sample, content, digest)
        except OSError as error:
            return str(error)
        return TAKEN


class _Sender:
    """Sends transfers to their end, whatever breaks on the way.

    `lock`: held where a sample that comes back could be taken for the one that was sent.
    """

    def __init__(self, order: MoveOrder, shard: Shard, lock: threading.Lock) -> None:
        self.order, self.shard, self.lock = order, shard, lock
        self.messages = self.confirmed = 0
        self.spans: list[tuple[int, int, float, float]] = []

    def send(self, transfer: SampleTransfer) -> bool:
        """Send what is left of a transfer; ``False`` where it must be tried again."""
        for sample, first in zip(transfer.samples, transfer.brought_by, strict=True):
            # By the journal, not by the file: a sample that came and went on is one that has
            # arrived.
            if first >= 0 and not self.shard.arrived(first, sample):
                return False
        back = dict(zip(transfer.samples, transfer.brought_back_by, strict=True))
        # Both ends may have a sample, never none: it is deleted here behind its confirmation alone.
        left = [s for s in transfer.samples if not self._is_back(s, back) and self.shard.has(s)]
        if not left:
            return True
        try:
            with connect(self.order.addresses[transfer.target], self.order.secret) as link:
                link.recv()  # our turn
                time.sleep(transfer.latency_s)
                begun = time.perf_counter()
                unconfirmed: deque[list[int]] = deque()
                few = self._files_per_message(left[0])
                for k in range(0, len(left), few):
                    unconfirmed.append(left[k : k + few])
                    self._message(link, transfer, unconfirmed[-1])
                    # A window: the link carries the next messages while the confirmation of the
                    # first is on its way.
                    if len(unconfirmed) > ON_THE_WAY:
                        self._confirm(link, transfer, unconfirmed.popleft(), back)
                while unconfirmed:
                    self._confirm(link, transfer, unconfirmed.popleft(), back)
                self.spans.append((transfer.target, len(left), begun, time.perf_counter()))
        except BROKEN:
            return False
        return True

    def _files_per_message(self, sample: int) -> int:
        size = len(self.shard.content(sample) or b"")
        return max(1, min(FILES_PER_MESSAGE, MESSAGE_BYTES // max(1, size)))

    def _message(self, link: Channel, transfer: SampleTransfer, samples: list[int]) -> None:
        """A few files, as slowly as an emulated link is."""
        begun = time.perf_counter()
        self.messages += 1
        self._inject_fault(self.messages, late=False)
        contents = [self.shard.content(sample) or b"" for sample in samples]
        files = [(s, c, checksum(c)) for s, c in zip(samples, contents, strict=True)]
        link.send((transfer.number, files))
        left_s = len(samples) * transfer.sample_s - (time.perf_counter() - begun)
        time.sleep(max(0.0, left_s))

    def _confirm(
        self, link: Channel, transfer: SampleTransfer, samples: list[int], back: Mapping[int, int]
    ) -> None:
        """Keep files until the other side has confirmed them.

        Raises `RunError`: it cannot write them.
        """
        answer = link.recv()
        if answer != TAKEN:
            raise RunError(
                "a node cannot store the samples that it is sent",
                where=f"node {transfer.target}",
                by=str(answer),
                hint="free space where its samples are, or move fewer of them",
            )
        self.confirmed += 1
        self._inject_fault(self.confirmed, late=True)
        for sample in samples:
            with self.lock:  # between the look and the deletion it might arrive
                if not self._is_back(sample, back):
                    self.shard.drop(sample)

    def _is_back(self, sample: int, back: Mapping[int, int]) -> bool:
        return back[sample] >= 0 and self.shard.arrived(back[sample], sample)

    def _inject_fault(self, message: int, *, late: bool) -> None:
        fault = self.order.fault
        if fault is None or fault.message != message or fault.late != late:
            return
        if fault.kill:
            os._exit(9)
        raise ConnectionError("cut on purpose")
