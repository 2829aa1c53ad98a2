"""Requests that must not be answered, and files that must not be reached."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import select

from placewright.errors import InputError, RunError, UnknownNameError
from placewright.service.files import FileStore, TooLargeError, check_name
from placewright.service.store import Audit, Store, Tokens, sqlite_url
from placewright.web.client import Client
from tests.service.serving import Serving

JSON = {"content-type": "application/json"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty one."""
    made = Store(sqlite_url(tmp_path / "x.sqlite"))
    made.migrate()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
    ],
)
def test_pages_of_other_sites_start_nothing(
    serving: Serving, headers: dict[str, str], status: int
) -> None:
    """A name that leads here, another origin, forms that browsers send without asking."""
    path = "/api/v1/operations/doctor/jobs"
    found, body = serving.request("POST", path, JSON | headers, b"{}")
    assert found == status
    assert set(json.loads(body)["error"]) == {"what", "where", "by", "next"}


@pytest.mark.parametrize(
    "path",
    [
        *("/api/v1/files/..%2F..%2Fservice.sqlite", "/api/v1/files/../../../etc/passwd"),
        *("/static/../server.py", "/static/..%2fserver.py", "/api/v1/files/%2Fetc%2Fpasswd"),
        f"/api/v1/jobs/{'0' * 25}/outputs/..%2F..%2Flog.txt",
        "/api/v1/jobs/..%2F..%2Ffiles/log",
    ],
)
def test_no_path_leads_to_another_file(serving: Serving, path: str) -> None:
    """Encoded or not."""
    assert serving.request("GET", path)[0] in (404, 422)


@pytest.mark.parametrize("name", ["../x.json", ".x.json", "x.py", "x.so", "a b.json", "-x.json"])
def test_names_of_uploads(serving: Serving, name: str) -> None:
    """Only those of data, which are no paths and no options."""
    with pytest.raises(InputError):
        check_name(name)
    path = "/api/v1/files/" + name.replace("/", "%2F").replace(" ", "%20")
    status, answer = serving.request("PUT", path, body=b"{}")
    assert status in (404, 422)
    assert b"String should match" not in answer  # what a name may have is said in words


def test_a_body_that_is_too_large_is_not_read(serving: Serving) -> None:
    """Of JSON: by what is declared, and by what is sent."""
    path = "/api/v1/operations/doctor/jobs"
    assert serving.request("POST", path, JSON | {"Content-Length": "99999999999"})[0] == 413
    pieces = (b" " * 100_000 for _ in range(30))
    with socket.create_connection(urlsplit(serving.url).netloc.split(":")) as connection:  # type: ignore[arg-type]
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        try:
            for piece in pieces:
                connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        except OSError:
            pass
        assert b"413" in connection.recv(100)


@pytest.mark.anyio
async def test_an_upload_that_is_too_large_leaves_nothing(tmp_path: Path, store: Store) -> None:
    """Neither one, nor all together."""
    files = FileStore(tmp_path, store, most_bytes=10, total_bytes=15)

    async def pieces(*given: bytes) -> Iterator[bytes]:  # type: ignore[misc]
        for each in given:
            yield each

    kept = await files.receive("a.txt", pieces(b"12345678"), "")
    assert (await files.receive("a.txt", pieces(b"1"), "")).name == "a-2.txt"
    for given in ((b"123456", b"78901"), (b"1234567",)):
        with pytest.raises(TooLargeError):
            await files.receive("b.txt", pieces(*given), "")
    assert sorted(path.stat().st_size for path in files.uploads.iterdir()) == [1, 8]
    assert files.path(kept).read_bytes() == b"12345678"


@pytest.fixture
def anyio_backend() -> str:
    """Asyncio alone."""
    return "asyncio"


def test_a_token_is_kept_as_a_hash_and_ends_with_the_next(store: Store, tmp_path: Path) -> None:
    """At least 128 bits; in no file."""
    tokens = Tokens(store)
    first, other = tokens.make("anne"), tokens.make("bob")
    assert len(first) >= 43
    assert tokens.owner(first) == "anne"
    assert tokens.owner(first[:-1]) is None
    second = tokens.make("anne")
    assert tokens.owner(first) is None
    tokens.end("bob")
    assert tokens.owner(other) is None
    assert Tokens(store).owner(second) == "anne"
    with pytest.raises(UnknownNameError, match="did you mean 'anne'"):
        tokens.change("carl", "Anne")  # who means to shut somebody out must know that nobody was
    assert tokens.owner(second) == "anne"
    store.close()
    assert all(second.encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_a_service_with_a_token(tmp_path: Path) -> None:
    """Clients send it; the page asks for it and keeps it in a cookie for this site alone."""
    serving = Serving(tmp_path, "--token")
    client = serving.start()
    try:
        assert serving.token
        assert client.operations()
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "placewright_token=x"}):
            assert serving.request("GET", "/api/v1/jobs", headers)[0] == 401
        with pytest.raises(InputError, match="token"):
            Client(serving.url, "wrong").operations()
        connection = http.client.HTTPConnection(urlsplit(serving.url).netloc, timeout=20)
        connection.request("GET", "/jobs?state=done&before=1", headers={"Accept": "text/html"})
        answer = connection.getresponse()
        assert answer.status == 303
        assert answer.headers["location"] == "/login?to=/jobs%3Fstate%3Ddone%26before%3D1"
        assert answer.headers["cache-control"] == "private, no-cache"
        connection.close()
        assert serving.request("GET", "/login")[0] == 200
        body = json.dumps({"token": "wrong"}).encode()
        refused = serving.request("POST", "/api/v1/login", JSON, body)
        assert refused[0] == 401
        assert b"--new-token" in refused[1]
        cookie = {"Cookie": f"placewright_token={serving.token}"}
        assert serving.request("GET", "/", cookie)[0] == 200
        assert serving.request("GET", "/api/v1/health")[0] == 200
    finally:
        serving.end()
    log = Store(sqlite_url(tmp_path / "service" / "service.sqlite"))
    with log.session() as session:
        assert "refused" in session.scalars(select(Audit.action)).all()
    log.close()


def test_nobody_answers() -> None:
    """The error names the address, also where the answer ends before it has begun."""
    from placewright import connect

    with pytest.raises(RunError, match="no answer"):
        connect("http://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as leaving, ThreadPoolExecutor(1) as beside:
        beside.submit(lambda: leaving.accept()[0].close())  # a service that ends as it is asked
        with pytest.raises(RunError, match="no answer"):
            connect(f"http://127.0.0.1:{leaving.getsockname()[1]}")
