"""The load client: a process that sends requests at their arrival and reads the answers."""

from __future__ import annotations

import gc
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from placewright.errors import RunError
from placewright.requests.serving.client import Replies, _Client, schedule_of, send

HEAD = {"parameters": {"waiting_ms": 3.0, "compute_ms": 2.0, "accuracy": 0.75}}


def answer(text: bytes, status: bytes = b"200 OK", binary: bytes = b"") -> bytes:
    """A whole answer, with a raw tensor behind its JSON if there is one."""
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(text + binary)]
    if binary:
        lines.append(b"Inference-Header-Content-Length: %d" % len(text))
    return b"\r\n".join(lines) + b"\r\n\r\n" + text + binary


@contextmanager
def server(reply: Callable[[bytes], list[bytes]], once: bool = False) -> Iterator[str]:
    """Answers each request of 10 bytes with pieces; closes after none, or after one if `once`."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(link: socket.socket) -> None:
        with link:
            while request := link.recv(10, socket.MSG_WAITALL):
                pieces = reply(request)
                for piece in pieces:
                    link.sendall(piece)
                if once or not pieces:
                    return

    def accept() -> None:
        while True:
            try:
                link, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(link,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def test_answers_of_all_kinds() -> None:
    """Whole, in pieces, with raw tensors, refused, and none because the connection was closed."""
    whole = answer(json.dumps(HEAD).encode())
    raw = answer(json.dumps(HEAD).encode(), binary=b"\r\n\r\n{}" * 9)
    kinds = {
        b"whole": [whole],
        b"bytes": [whole[:9], whole[9:50], whole[50:]],
        b"raw..": [raw],
        b"busy.": [answer(b"{}", b"503 Unavailable")],
        b"close": [],
    }
    order = [*kinds, b"whole"]
    with server(lambda request: kinds[request[:5]]) as url:
        payload = np.arange(6) % 2
        found = send(
            schedule_of(url, np.linspace(0, 0.05, 6), order, [b"12345", b"67890"], payload)
        )
    assert found.status.tolist() == [200, 200, 200, 503, 0, 200]
    assert found.accuracy.tolist() == [0.75, 0.75, 0.75, 0, 0, 0.75]
    assert found.served_s.tolist() == [0.005, 0.005, 0.005, 0, 0, 0.005]
    assert ((found.sent_s >= 0) & (found.sent_s <= found.latency_s)).all()


def test_a_request_that_cannot_be_sent_leaves_no_connection_open() -> None:
    """One larger than what fits under way, to a server that reads no more than its start."""
    with server(lambda request: []) as url:
        large = schedule_of(url, np.zeros(1), [b"12345"], [bytes(1 << 26)], np.zeros(1, np.int64))
        found = _Client(large).run()
        gc.collect()  # a socket that is left open would warn
    assert found.status.tolist() == [0]


def test_requests_carry_their_payload_and_are_not_held_up() -> None:
    """A slow answer delays no later request: the load is open."""
    seen: list[bytes] = []
    rest = threading.Event()

    def reply(request: bytes) -> list[bytes]:
        seen.append(request)
        if len(seen) == 4:
            rest.set()
        if request.startswith(b"slow."):
            assert rest.wait(20)
        return [answer(json.dumps(HEAD).encode())]

    heads = [b"slow.", b"fast1", b"fast2", b"fast3"]
    with server(reply) as url:
        found: Replies = send(
            schedule_of(url, np.array([0.0, 0.01, 0.02, 0.03]), heads, [b"aaaaa"], [0] * 4)
        )
    assert sorted(seen) == sorted(head + b"aaaaa" for head in heads)
    assert found.status.tolist() == [200] * 4
    assert found.latency_s[0] >= 0.02


def test_a_connection_that_was_closed_between_requests_is_not_used() -> None:
    """Servers close idle connections; that loses no request."""
    requests: list[bytes] = []

    def reply(request: bytes) -> list[bytes]:
        requests.append(request)
        return [answer(json.dumps(HEAD).encode())]

    with server(reply, once=True) as url:
        found = send(
            schedule_of(url, np.array([0.0, 0.5]), [b"first", b"again"], [b"aaaaa"], [0, 0])
        )
    assert found.status.tolist() == [200, 200]
    assert requests == [b"firstaaaaa", b"againaaaaa"]


def test_a_client_that_fails_is_an_error() -> None:
    """Its last line of output is in the message."""
    with pytest.raises(RunError, match="load client ended early"):
        send(schedule_of("http://nowhere:none", np.zeros(1), [b"x"], [b"y"], [0]))


def test_a_chunked_refusal_is_read_to_its_end() -> None:
    """Other servers refuse so; what is left of it would be taken for the next answer."""
    head = b"HTTP/1.1 408 Request Timeout\r\nTransfer-Encoding: chunked\r\n\r\n"
    refusal = [head, b"4\r\nlate\r\n", b"0\r\n\r\n"]
    whole = [answer(json.dumps(HEAD).encode())]
    heads = [b"0123456789"[:9] + b"%d" % k for k in range(4)]
    with server(lambda request: refusal if request[-1:] in b"02" else whole) as url:
        found = send(schedule_of(url, [0.0, 0.2, 0.4, 0.6], heads, [b""], [0] * 4))
    assert found.status.tolist() == [408, 200, 408, 200]
