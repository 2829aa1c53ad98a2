"""Running servers as problems."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from placewright.errors import InputError, PlacewrightError, RunError
from placewright.requests.files import problem_from
from placewright.requests.serving.auto import streams_like
from placewright.requests.serving.commands import _expected, _learned
from placewright.requests.serving.families import FamilyLayout, Variant, make_family
from placewright.requests.serving.load import Traffic, load_target, target_at
from placewright.requests.serving.measured import (
    LULL_S,
    ServerClient,
    measured_problem,
    read_status,
    requests_of_log,
)
from placewright.requests.serving.server import ServingOptions, serve
from tests.requests.serving.models import family, scaled

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


def test_families_and_variants_with_slashes_in_their_names() -> None:
    """What stands before the last slash is not the family alone."""
    rows = {"a/b/c": [0.01], "a/b": [0.02], "a/b/b/c": [0.03]}
    status = {"models": {"a": {"b/c": 0.5, "b": 0.6}, "a/b": {"b/c": 0.7}}}
    status |= {"batch_latency_s": {"s": rows}}
    (server,) = measured_problem(status, "mine", "a", deadline_s=1)["servers"]
    assert server["latency"] == {"b/c": [0.01], "b": [0.02]}
    (server,) = measured_problem(status, "mine", "a/b", deadline_s=1)["servers"]
    assert server["latency"] == {"b/c": [0.03]}


def test_load_goes_to_the_version_and_sizes_that_are_simulated(tmp_path: Path) -> None:
    """Of the name that clients give the model, whatever characters it has; the log says which."""
    names = {"one": 1, "two": 2}
    variants = [Variant(v, 0.4 * n, scaled(2.0), version=n) for v, n in names.items()]
    open_sizes = Variant("open", 0.5, scaled(2.0, width="width"))
    families = [
        make_family("od/d n@me", variants),
        make_family("wide", [open_sizes], FamilyLayout({"width": (4, 8)})),
    ]
    log = tmp_path / "log.jsonl"
    with serve(families, {"a": 1.0}, ServingOptions(port=0, log=log)) as running:
        asked = {None: 0.4, "od/d n@me@version=2": 0.8, "wide@width=4": 0.5, "wide@width=8": 0.5}
        for family, accuracy in asked.items():
            target = target_at(running.url, family)
            (result,) = load_target(target, [0.3], Traffic(duration_s=2.0, deadlines=1e3))
            assert result.statuses == {"200": result.requests}
            assert result.effective_accuracy == pytest.approx(accuracy)
    lines = map(json.loads, log.read_text().splitlines())
    answered = {(line["family"], line["version"]) for line in lines}
    assert answered == {("od/d n@me", 1), ("od/d n@me", 2), ("wide", 1)}


def test_a_rate_of_ones_own() -> None:
    """As it is given; a slow stream is shorter."""
    found = measured_problem(STATUS, "mine", "dogs", deadline_s=1, rate=1000.0)
    assert found["arrivals"][0]["rate"] == 1000.0
    assert found["duration"] == 5.0


class Answering(BaseHTTPRequestHandler):
    """Answers what its path begins with: ``/200/...``; a stream, a refusal, or no JSON."""

    def do_POST(self) -> None:
        """Say who asked with what."""
        code = int(self.path.split("/")[1])
        self.send_response(code)
        self.end_headers()
        if code == 204:
            return
        told = self.rfile.read(int(self.headers["content-length"])).decode()
        error = {"message": told} if "nested" in self.path else told
        data = {"token": self.headers["authorization"], "error": error}
        self.wfile.write(json.dumps(data).encode() + b"\n" + b" \n")

    def log_message(self, *args: object) -> None:
        """Nothing."""


def test_a_client_of_a_server() -> None:
    """Answers, refusals in the server's words, what is handed on, answers that are none."""
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = ServerClient(f"http://127.0.0.1:{server.server_port}", "secret", "service x")
        assert "secret" not in repr(client)
        assert client.ask("POST", "/422", b"words")[0] == 422
        assert client.accepted("POST", "/200", b"{}")["token"] == "Bearer secret"
        for path, status in (("/200", 200), ("/503/nested", 503)):
            answer, pieces = client.forwarded("POST", path, b"{}", {"x-one": "1"})
            assert answer.status == status
            assert b"".join(pieces)
        for path, error, words in (
            ("/422", InputError, "no room"),
            ("/204", RunError, "does not answer"),
        ):
            with pytest.raises(error, match=words) as raised:
                client.accepted("POST", path, b"no room")
            assert raised.value.where == "service x"
        server.shutdown()


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


def logged(k: int, arrival_s: float, started_s: float = 1000.0, **fields: Any) -> dict[str, Any]:
    """A line of a log."""
    head = {"started_s": started_s, "request": k, "family": "cats", "arrival_s": arrival_s}
    return head | {"deadline_s": 0.1 * (k + 1), "min_accuracy": 0.5, "status": 200} | fields


def test_the_requests_of_a_log_may_come_again(tmp_path: Path) -> None:
    """By their arrival, restarts and an hour without requests left out, and those of no needs."""
    log = tmp_path / "requests.jsonl"
    lines = [
        logged(1, 2.0),
        logged(0, 1.5),
        {key: value for key, value in logged(2, 2.1).items() if key != "deadline_s"},
        logged(0, 0.5, started_s=5000.0, family="dogs", status=503),
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = requests_of_log(log)
    assert found is not None
    assert found.stream.arrival_s.tolist() == [0.0, 0.5, 0.5 + LULL_S]
    assert found.stream.deadline_s.tolist() == pytest.approx([0.1, 0.2, 0.1])
    assert [found.service.family_names[f] for f in found.stream.family] == ["cats", "cats", "dogs"]
    assert found.stream.min_accuracy.tolist() == [0.5] * 3
    cats = requests_of_log(log, {"cats"})
    assert cats is not None
    assert len(cats.stream) == 2
    assert cats.stream.time_sensitivity.tolist() == [0.5, 0.5]
    assert requests_of_log(log, {"cows"}) is None
    assert requests_of_log(tmp_path / "none.jsonl") is None


def test_a_server_chooses_for_the_requests_of_its_own_log(tmp_path: Path) -> None:
    """Once they are enough; `--expect` takes any log, and refuses one without requests."""
    log = tmp_path / "requests.jsonl"
    with serve([family()], {"a": 1.0}, ServingOptions(port=0, log=log)) as running:
        rows = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        rows |= {"shape": [2, 4], "data": 2 * rows["data"]}  # each is one for a policy
        for milliseconds in (5000, 7000):
            needs = {"deadline_ms": milliseconds, "time_sensitivity": 0.9}
            body = {"inputs": [rows], "parameters": needs | {"accuracy_sensitivity": 0.2}}
            request = urllib.request.Request(
                f"{running.url}/v2/models/double/infer", json.dumps(body).encode()
            )
            urllib.request.urlopen(request, timeout=60).close()
        service = running.dispatcher.service
    found = _expected(log)
    assert found.stream.deadline_s.tolist() == pytest.approx([5.0, 5.0, 7.0, 7.0])
    assert found.stream.time_sensitivity.tolist() == [0.9] * 4
    assert found.stream.accuracy_sensitivity.tolist() == [0.2] * 4
    assert streams_like(found, service)[0].stream.deadline_s[:5].tolist() == pytest.approx(
        [5.0, 5.0, 7.0, 7.0, 5.0]
    )
    assert _learned(log, [family()]) is None
    log.write_text(250 * log.read_text(encoding="utf-8"), encoding="utf-8")
    learned = _learned(log, [family()])
    assert learned is not None
    assert len(learned.stream) == 1000
    log.write_text("")
    with pytest.raises(InputError, match="no request with a deadline"):
        _expected(log)
