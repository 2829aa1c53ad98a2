"""Requests to the HTTP interface, without a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote, unquote

import pytest

from placewright.errors import InputError
from placewright.requests.serving.application import Application
from placewright.requests.serving.dispatcher import Dispatcher
from placewright.requests.serving.observing import Observer
from placewright.requests.serving.server import ServingOptions
from tests.requests.serving.models import family


def call(
    name: str,
    method: str,
    target: str,
    body: bytes = b"",
    token: str = "",
    hosts: tuple[str, ...] = (),
    **headers: str,
) -> tuple[int, Any]:
    """Status and document of a request to a server of one family of this name."""
    dispatcher = Dispatcher([family(name)], ServingOptions(port=0).policy.start)
    application = Application(dispatcher, Observer(dispatcher), token=token, hosts=hosts)
    headers = {"authorization": f"Bearer {application.admin_token}"} | headers
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    lines = [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()]
    scope = {"type": "http", "method": method, "headers": lines, "query_string": b""}
    scope |= {"path": unquote(target), "raw_path": target.encode()}
    asyncio.run(application(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize("name", ["org/model", "50%", "%41", "a b", "größe"])
def test_any_name_of_a_model_is_found_where_it_is_quoted(name: str) -> None:
    """Each part of the path is decoded once, by itself."""
    status, found = call(name, "GET", f"/v2/models/{quote(name, safe='')}")
    assert (status, found["name"]) == (200, name)


@pytest.mark.parametrize(
    "speed", ["1" + "0" * 400, "1e400", "-1", "true", '"1"', "null", '1, "sped": 1']
)
def test_a_speed_that_no_server_has_is_refused(speed: str) -> None:
    """It is the client's error, however large the number is."""
    body = f'{{"name": "b", "speed": {speed}}}'.encode()
    assert call("double", "POST", "/admin/servers", body)[0] == 400


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000", 404),
        ("[::1]:8000", "http://[::1]:8000", 404),
        ("LOCALHOST", None, 404),
        ("127.0.0.1", "http://127.0.0.1", 404),
        ("gpu.example:8000", "https://gpu.example:8000", 404),
        ("[::1", "http://[::1", 403),
        ("127.0.0.1:8000", "http://evil.example", 403),
        ("127.0.0.1:8000", "http://127.0.0.1:3000", 403),
        ("127.0.0.1:8000", "null", 403),
        ("evil.example:8000", "http://evil.example:8000", 403),
        ("evil.example", None, 403),
        ("127.0.0.1.evil.example", None, 403),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("DELETE", "/admin/servers/none"), ("GET", "/none")])
def test_other_hosts_and_pages_of_other_origins_are_refused(
    host: str, origin: str | None, status: int, method: str, path: str
) -> None:
    """A name that leads here is not the server's name, nor a page of another port its page."""
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    assert call("double", method, path, hosts=("gpu.example",), **headers)[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"content_type": "text/plain;charset=UTF-8"}, 415),
        ({"content_type": "multipart/form-data; boundary=x"}, 415),
        ({"sec_fetch_site": "same-origin"}, 400),
        ({"sec_fetch_site": "none", "content_type": "application/json"}, 400),
        ({"content_type": "application/x-www-form-urlencoded"}, 400),
    ],
)
def test_a_page_of_another_origin_computes_nothing(headers: dict[str, str], status: int) -> None:
    """A browser says whose page sends, or sends what only a form may send unasked."""
    path = "/v2/models/double/infer"
    assert call("double", "POST", path, b"{}", host="localhost", **headers)[0] == status
    assert call("double", "GET", "/v2", host="localhost", **headers)[0] == 200


@pytest.mark.parametrize("sent", ["Bearer ", "Bearer wrong", "", "Basic x"])
def test_nobody_administers_without_the_token(sent: str) -> None:
    """Every user of the machine reaches a port on loopback; one is made where none was given."""
    assert call("double", "DELETE", "/admin/servers/none", authorization=sent)[0] == 401
    assert call("double", "GET", "/v2/models/double", authorization=sent)[0] == 200
    token = "0123456789abcdef"
    assert call("double", "DELETE", "/admin/servers/x", token=token, authorization=sent)[0] == 401
    assert call("double", "GET", "/v2", token=token, authorization=sent)[0] == 401
    assert call("double", "DELETE", "/admin/servers/x", token=token)[0] == 404


@pytest.mark.parametrize(
    "token", ["a", "0123456789abcde", "0123456789abcde\u00e9", "0123456789 abcdef"]
)
def test_a_token_that_can_be_guessed_is_refused(token: str) -> None:
    """So is one that cannot stand in a header."""
    with pytest.raises(InputError, match="too easy to guess"):
        ServingOptions(token=token)
    ServingOptions(token="0123456789abcdef")
