"""Requests to the HTTP interface, without a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote, unquote

import pytest

from placewright.requests.serving.application import Application
from placewright.requests.serving.dispatcher import Dispatcher
from placewright.requests.serving.observing import Observer
from placewright.requests.serving.server import ServingOptions
from tests.requests.serving.models import family


def call(
    name: str, method: str, target: str, body: bytes = b"", token: str = "", **headers: str
) -> tuple[int, Any]:
    """Status and document of a request to a server of one family of this name."""
    dispatcher = Dispatcher([family(name)], ServingOptions(port=0).policy.start)
    application = Application(dispatcher, Observer(dispatcher), token=token)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    lines = [(key.encode(), value.encode()) for key, value in headers.items()]
    scope = {"type": "http", "method": method, "headers": lines, "query_string": b""}
    scope |= {"path": unquote(target), "raw_path": target.encode()}
    asyncio.run(application(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize("name", ["org/model", "50%", "%41", "a b", "größe"])
def test_any_name_of_a_model_is_found_where_it_is_quoted(name: str) -> None:
    """Each part of the path is decoded once, by itself."""
    status, found = call(name, "GET", f"/v2/models/{quote(name, safe='')}")
    assert (status, found["name"]) == (200, name)


@pytest.mark.parametrize("speed", ["1" + "0" * 400, "1e400", "-1", "true", '"1"', "null"])
def test_a_speed_that_no_server_has_is_refused(speed: str) -> None:
    """It is the client's error, however large the number is."""
    body = f'{{"name": "b", "speed": {speed}}}'.encode()
    assert call("double", "POST", "/admin/servers", body)[0] == 400


@pytest.mark.parametrize(
    ("host", "origin", "token", "status"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000", "", 404),
        ("[::1]:8000", "http://[::1]:8000", "", 404),
        ("localhost", "http://localhost", "", 404),
        ("127.0.0.1", "http://127.0.0.1", "", 404),
        ("[::1", "http://[::1", "", 403),
        ("127.0.0.1:8000", "http://evil.example", "", 403),
        ("evil.example:8000", "http://evil.example:8000", "", 403),
        ("gpu.example:8000", "http://gpu.example:8000", "t", 404),
        ("gpu.example:8000", "http://evil.example", "t", 403),
    ],
)
def test_pages_of_other_hosts_administer_nothing(
    host: str, origin: str, token: str, status: int
) -> None:
    """Nor does one whose name leads here: a server without a token is this machine's alone."""
    headers = {"host": host, "origin": origin, "authorization": f"Bearer {token}"}
    assert call("double", "DELETE", "/admin/servers/none", token=token, **headers)[0] == status
