"""The client of a service: wrong arguments, and answers that no service gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placewright
from placewright.errors import InputError, PlacewrightError, RunError
from placewright.web.client import Client, Job

STARTED = b'{"status": "ok", "id": "1", "name": "n", "jobs": [{"id": "1"}]}'


class Stub(BaseHTTPRequestHandler):
    """Gives one answer to everything."""

    answer: tuple[int, str, bytes] = (200, "application/json", STARTED)
    asked: bytes = b""

    def reply(self) -> None:
        """Read the request whole, and answer."""
        status, kind, body = Stub.answer
        Stub.asked = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


for method in ("GET", "POST", "PUT"):
    setattr(Stub, f"do_{method}", Stub.reply)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of the stub."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def client(url: str, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Of the stub, which answers as a service does."""
    monkeypatch.setattr(Stub, "answer", (200, "application/json", STARTED))
    return placewright.connect(url)


CALLS: dict[str, Callable[[Client, Path], object]] = {
    "connect": lambda client, file: placewright.connect(client.url),
    "operations": lambda client, file: client.operations(),
    "jobs": lambda client, file: client.jobs(),
    "run": lambda client, file: client.run("operators.plan", source="x"),
    "upload": lambda client, file: client.upload(file),
    "status": lambda client, file: Job(client, "1").status(),
    "wait": lambda client, file: Job(client, "1").wait(time_limit_s=0),
    "log": lambda client, file: Job(client, "1").log(),
    "report": lambda client, file: Job(client, "1").report(file.with_name("report.html")),
}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/html", b"<html>another program</html>"),
        ("application/json", b""),
        ("application/json", b"{"),
        ("application/json", b"[" * 100_000),
        ("application/json", b"null"),
        ("application/json", b"[1]"),
        ("application/json", b"{}"),
        ("application/json", b'{"status": 1, "id": 1, "name": [], "jobs": 5, "state": {}}'),
        ("application/json", b'{"jobs": [{}], "state": "done", "outputs": null}'),
    ],
)
@pytest.mark.parametrize("status", [200, 422])
def test_answers_of_another_program_are_named(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    kind: str,
    body: Any,
) -> None:
    """By the address; a page is no log, though, that could be told from one."""
    (file := tmp_path / "file.json").write_text("{}")
    monkeypatch.setattr(Stub, "answer", (status, kind, body))
    for name, call in CALLS.items():
        if (name, kind, status) in {("log", "text/html", 200), ("report", "text/html", 200)}:
            continue
        if body == b"" and name in {"log", "report"}:
            continue
        with pytest.raises(RunError) as caught:
            call(client, file)
        assert client.url in caught.value.where, name


def test_wrong_arguments_are_named(client: Client, tmp_path: Path) -> None:
    """Before anything is sent; a file that is not there, and a place that takes none."""
    endless: list[Any] = []
    endless.append(endless)
    wrong: list[Callable[[], object]] = [
        lambda: client.upload(tmp_path / "none"),
        lambda: client.upload(tmp_path),
        lambda: client.upload(5),  # type: ignore[arg-type]
        lambda: client.run(5),  # type: ignore[arg-type]
        lambda: client.run("a\ud800"),
        lambda: client.run("a", x=object()),
        lambda: client.run("a", x=float("nan")),
        lambda: client.run("a", x=endless),
        lambda: client.run("a", x=tmp_path / "none"),
        lambda: client.jobs("1&most=2"),  # type: ignore[arg-type]
        lambda: client.jobs(-1),
        lambda: Job(client, "1").wait(time_limit_s="x"),  # type: ignore[arg-type]
        lambda: Job(client, "1").wait(progress=5),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.where
    Stub.answer = (200, "text/html", b"page")
    with pytest.raises(InputError, match="cannot be written"):
        Job(client, "1").report(tmp_path / "none" / "page.html")


def test_numbers_of_numpy_are_sent_as_numbers(client: Client) -> None:
    """As in every other function."""
    assert client.run("a", n=np.int64(2), x=np.float32(0.5)).id == "1"
    assert Stub.asked == b'{"n": 2, "x": 0.5}'


def test_a_refusal_with_half_its_parts_is_told(client: Client) -> None:
    """A service of another version may leave some out."""
    Stub.answer = (422, "application/json", b'{"error": {"what": "is refused", "by": 5}}')
    with pytest.raises(InputError, match=r"is refused \(5\)"):
        client.jobs()
    Stub.answer = (
        200,
        "application/json",
        b'{"state": "failed", "outputs": [], "progress": null, "error": {"what": "it broke"}}',
    )
    with pytest.raises(PlacewrightError, match="it broke"):
        Job(client, "1").wait()
