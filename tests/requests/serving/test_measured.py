"""Running servers as problems."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from placewright.errors import InputError, PlacewrightError, RunError
from placewright.requests.files import problem_from
from placewright.requests.serving.measured import measured_problem, read_status

STATUS: dict[str, Any] = {
    "models": {"cats": {"small": 0.7, "large": 0.9}, "dogs": {"small": 0.8}},
    "batch_latency_s": {
        "a": {"cats/small": [0.01, 0.015], "cats/large": [0.02, 0.03], "dogs/small": [0.5, 0.6]},
        "b": {"cats/small": [0.02, 0.03], "cats/large": [None, None], "dogs/small": [0.5, 0.6]},
    },
}


def test_the_family_that_is_asked_for() -> None:
    """Its variants and latencies, at half of what its fastest variants carry."""
    found = measured_problem(STATUS, "mine", "cats", deadline_s=0.1, min_accuracy=0.8)
    assert found["arrivals"][0]["rate"] == (1 / 0.01 + 1 / 0.02) / 2
    problem = problem_from(found, where="status", name="mine")
    assert problem.service.variant_names == ("small", "large")
    assert problem.service.latency_s[0, 1, 1:].tolist() == [0.02, 0.03]
    assert not problem.service.latency_s[1, 1, 1] < 1e9


def test_a_rate_of_ones_own() -> None:
    """As it is given; a slow stream is shorter."""
    found = measured_problem(STATUS, "mine", "dogs", deadline_s=1, rate=1000.0)
    assert found["arrivals"][0]["rate"] == 1000.0
    assert found["duration"] == 5.0


@pytest.mark.parametrize(
    ("url", "error"),
    [("localhost", InputError), ("file:///etc/passwd", InputError), ("http://[::1]:9", RunError)],
)
def test_no_server(url: str, error: type[PlacewrightError]) -> None:
    """No address of one, and nobody there."""
    with pytest.raises(error):
        read_status(url)


@pytest.mark.parametrize(
    "answer",
    [
        *(b"no HTTP at all\n\n", b"HTTP/1.1 200 OK\r\n\r\nno JSON", b"HTTP/1.1 200 OK\r\n\r\n[]"),
        b'HTTP/1.1 200 OK\r\n\r\n{"models": {}, "batch_latency_s": {"a": 3}}',
    ],
)
def test_something_else_answers(answer: bytes) -> None:
    """No HTTP, no JSON, no object, no measurements."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(4096)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(InputError if answer.startswith(b"HTTP") else RunError):
            read_status(f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread.join()


def test_a_family_that_no_server_can_run() -> None:
    """Nothing was measured of it."""
    status = STATUS | {"batch_latency_s": {"b": {"cats/small": [None], "cats/large": [None]}}}
    with pytest.raises(InputError, match="no server can run it"):
        measured_problem(status, "mine", "cats", deadline_s=1)


def test_a_family_that_is_not_served() -> None:
    """The nearest name is offered."""
    with pytest.raises(PlacewrightError, match="unknown family 'cat'"):
        measured_problem(STATUS, "mine", "cat", deadline_s=1)
