"""Load client of `requests run`: a process of its own that sends requests at given times.

``python -m placewright.requests.serving.client`` reads a `Schedule` on standard input and writes
`Replies` on standard output, both as arrays (npz, no pickles). One thread waits in ``select`` for
answers and for the next arrival at once: its timeout has a resolution of microseconds, where those
of epoll, asyncio and uvloop have one of a millisecond.
"""

from __future__ import annotations

import io
import json
import select
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import numpy as np

from placewright.errors import RunError
from placewright.interpreter import python_command, python_environment
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.requests.serving.priority import answer_first
from placewright.web.listening import trusting

CONNECTIONS = 960
"""That are open at once; a request waits for one beyond. ``select`` takes at most 1,024."""

LATEST_S = 30.0
"""An answer later than this counts as none."""

START_S = 0.2
"""Between the start of the client and the first arrival."""

LENGTH = b"content-length:"
HEADER_LENGTH = b"inference-header-content-length:"


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """What to send and when; a request is its head followed by one of a few payloads.

    Attributes
    ----------
    url
        ``http://host:port`` or ``https://host:port``.
    certificates
        PEM file by which the server is checked; empty: the system's.
    arrival_s
        Shape (requests,), from 0, in order.
    heads, head_ends
        Bytes of all heads one after another, and where each ends.
    payloads, payload_ends
        The same of the payloads.
    payload
        Shape (requests,): position of each request's payload.
    """

    url: Any
    certificates: Any
    arrival_s: FloatArray
    heads: Any
    head_ends: IntArray
    payloads: Any
    payload_ends: IntArray
    payload: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Replies:
    """What the client saw; shape (requests,) each.

    Attributes
    ----------
    status
        Of HTTP; 0 where no answer came.
    sent_s, latency_s
        Seconds from the arrival until it was sent, and until its answer was there.
    served_s
        Of it, waiting for a server and computing, by the answer.
    accuracy
        Of the variant that answered; 0 where none did.
    """

    status: IntArray
    sent_s: FloatArray
    latency_s: FloatArray
    served_s: FloatArray
    accuracy: FloatArray


def schedule_of(
    url: str,
    arrival_s: FloatArray,
    heads: list[bytes],
    payloads: list[bytes],
    payload: Any,
    certificates: Path | None = None,
) -> Schedule:
    """A schedule for a server; see `Schedule`."""
    return Schedule(
        np.array(url),
        np.array(str(certificates or "")),
        np.asarray(arrival_s, dtype=np.float64),
        np.frombuffer(b"".join(heads), np.uint8),
        np.cumsum([len(each) for each in heads]),
        np.frombuffer(b"".join(payloads), np.uint8),
        np.cumsum([len(each) for each in payloads]),
        np.asarray(payload, dtype=np.int64),
    )


def send(schedule: Schedule) -> Replies:
    """Send everything from a new process, and wait for the last answer.

    Raises `RunError`: the process ended before it had sent everything.
    """
    buffer = io.BytesIO()
    _write(schedule, buffer)
    done = subprocess.run(
        python_command("-m", "placewright.requests.serving.client"),
        input=buffer.getvalue(),
        capture_output=True,
        env=python_environment(),
        check=False,
    )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise RunError(
            "the load client ended early",
            where="requests run",
            by=reason[-1] if reason else f"exit status {done.returncode}",
        )
    return Replies(**_read(Replies, io.BytesIO(done.stdout)))


def _write(data: Schedule | Replies, file: Any) -> None:
    np.savez(file, **{item.name: getattr(data, item.name) for item in fields(data)})


def _read(kind: type, file: Any) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as found:
        return {item.name: found[item.name] for item in fields(kind)}


class _Answer:
    """A connection, the request that it carries, and what has come of its answer."""

    __slots__ = ("chunked", "data", "link", "request", "size")

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.request, self.size, self.data = -1, 0, bytearray()
        self.chunked = False

    def fileno(self) -> int:
        return self.link.fileno()

    def complete(self) -> bool:
        """Read what is there; whether the answer is whole."""
        try:
            piece = self.link.recv(1 << 18)
        except ssl.SSLWantReadError:  # a part of a record, or one that is not the answer's
            return False
        if not piece:
            raise ConnectionError("the server closed the connection")
        self.data += piece
        if not self.size:
            end = self.data.find(b"\r\n\r\n")
            if end < 0:
                return False
            head = bytes(self.data[:end]).lower()
            self.chunked = b"\ntransfer-encoding: chunked" in head
            self.size = end + 4 + _header(head, LENGTH, 0)
        if self.chunked:  # other servers' refusals; ours and answers have a length
            return self.data.endswith(b"0\r\n\r\n")
        return len(self.data) >= self.size


class _Client:
    def __init__(self, schedule: Schedule) -> None:
        url = urlsplit(str(schedule.url))
        encrypted = url.scheme == "https"
        self.address = (url.hostname or "", url.port or (443 if encrypted else 80))
        self.tls = trusting(str(schedule.certificates)) if encrypted else None
        self.schedule, self.n = schedule, len(schedule.arrival_s)
        self.arrival_s = schedule.arrival_s.tolist()
        self.heads = _parts(schedule.heads, schedule.head_ends)
        self.payloads = _parts(schedule.payloads, schedule.payload_ends)
        self.free: list[_Answer] = []
        self.busy: dict[int, _Answer] = {}
        self.sent_s, self.end_s = np.full(self.n, np.nan), np.full(self.n, np.inf)
        self.answers: list[bytes] = [b""] * self.n

    def run(self) -> Replies:
        """Send each request at its arrival, or as soon as there is a connection."""
        begin_s = time.monotonic() + START_S
        due_s = [begin_s + each for each in self.arrival_s]
        following = 0
        while following < self.n or self.busy:
            now_s = time.monotonic()
            while following < self.n and due_s[following] <= now_s:
                if len(self.busy) >= CONNECTIONS:
                    break
                self._send(following, due_s[following])
                following += 1
                # Sending takes time in which the next one may have become due.
                now_s = time.monotonic()
            self._give_up(now_s, due_s)
            wait_s = 0.1
            if following < self.n and len(self.busy) < CONNECTIONS:
                wait_s = min(wait_s, max(0.0, due_s[following] - now_s))
            ready, _, _ = select.select(list(self.busy), [], [], wait_s)
            for fd in ready:
                self._receive(fd, due_s)
        return self._replies()

    def _send(self, k: int, due_s: float) -> None:
        try:
            answer = self._unused() or self._connected()
        except OSError:
            return  # no answer: status 0
        answer.request, answer.size = k, 0
        answer.data.clear()
        try:
            answer.link.settimeout(LATEST_S)
            answer.link.sendall(self.heads[k] + self.payloads[int(self.schedule.payload[k])])
            if self.tls is not None:  # what can be read may be a part of a record: wait for no more
                answer.link.settimeout(0.0)
        except OSError:
            answer.link.close()
            return
        self.sent_s[k] = time.monotonic() - due_s
        self.busy[answer.fileno()] = answer

    def _unused(self) -> _Answer | None:
        """A connection from before; the server closes those that are idle for some seconds."""
        while self.free:
            answer = self.free.pop()
            # What can be read before a request is the end of the connection.
            if not select.select([answer], [], [], 0)[0]:
                return answer
            answer.link.close()
        return None

    def _connected(self) -> _Answer:
        link = socket.create_connection(self.address, timeout=LATEST_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is not None:
            try:
                link = self.tls.wrap_socket(link, server_hostname=self.address[0])
            except OSError:
                link.close()
                raise
        return _Answer(link)

    def _receive(self, fd: int, due_s: list[float]) -> None:
        answer = self.busy[fd]
        try:
            if not answer.complete():
                return
        except OSError:
            self._close(fd)
            return
        k = answer.request
        self.end_s[k] = time.monotonic() - due_s[k]
        self.answers[k] = _head_of(bytes(answer.data))
        self.free.append(self.busy.pop(fd))

    def _give_up(self, now_s: float, due_s: list[float]) -> None:
        if not self.busy:
            return
        # One per turn is enough: `busy` keeps the order of sending, and a turn takes 0.1 s at most.
        fd, oldest = next(iter(self.busy.items()))  # in order of sending
        if now_s - due_s[oldest.request] > LATEST_S:
            self._close(fd)

    def _close(self, fd: int) -> None:
        self.busy.pop(fd).link.close()

    def _replies(self) -> Replies:
        status, served_s = np.zeros(self.n, dtype=np.int64), np.zeros(self.n)
        accuracy = np.zeros(self.n)
        for k, answer in enumerate(self.answers):
            if not answer:
                continue
            status[k] = int(answer.split(b" ", 2)[1])
            if status[k] == 200:
                parameters = json.loads(answer.partition(b"\r\n\r\n")[2])["parameters"]
                served_s[k] = 1e-3 * (parameters["waiting_ms"] + parameters["compute_ms"])
                accuracy[k] = parameters["accuracy"]
        end_s = np.where(np.isfinite(self.end_s), self.end_s, LATEST_S)
        return Replies(status, self.sent_s, end_s, served_s, accuracy)


def _head_of(data: bytes) -> bytes:
    """An answer without its binary tensors."""
    end = data.find(b"\r\n\r\n")
    size = _header(data[:end].lower(), HEADER_LENGTH, len(data))
    return data[: end + 4 + size]


def _header(head: bytes, name: bytes, missing: int) -> int:
    """The number of a header, `head` in small letters."""
    start = head.find(b"\n" + name)
    if start < 0:
        return missing
    return int(head[start + 1 + len(name) :].split(b"\r", 1)[0])


def _parts(data: Any, ends: IntArray) -> list[bytes]:
    whole, starts = data.tobytes(), [0, *ends[:-1].tolist()]
    return [whole[a:b] for a, b in zip(starts, ends.tolist(), strict=True)]


def main(source: BinaryIO, target: BinaryIO) -> None:
    """Read a schedule, carry it out, write the replies."""
    answer_first()
    replies = _Client(Schedule(**_read(Schedule, io.BytesIO(source.read())))).run()
    buffer = io.BytesIO()
    _write(replies, buffer)
    target.write(buffer.getvalue())
    target.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
