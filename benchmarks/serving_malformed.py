"""Send malformed requests to a real server: each must get a 4xx, and memory must not grow.

python benchmarks/serving_malformed.py --requests 10000

Seven of ten have a wrong body, two of ten are what Schemathesis makes of the server's OpenAPI file,
one of ten is broken HTTP. The server is a process of its own, ``placewright requests serve``.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness import run, server

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, 10**30, "", "x", [], [[]], {}, [None], [[1], [2, 3]], "FP32", [1, 63],
)  # fmt: skip
KEYS = ("name", "datatype", "shape", "data")


def right() -> dict[str, Any]:
    """A right request."""
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 64], "data": [0.0] * 64}
    return {"inputs": [tensor]}


def malformed(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """A body and headers that are wrong in one of eight ways."""
    document, headers = right(), dict[str, str]()
    tensor = document["inputs"][0]
    way = rng.randrange(8)
    if way == 0:
        return rng.randbytes(rng.randrange(200)), headers
    if way == 1:
        return json.dumps(document).encode()[: rng.randrange(1, 60)], headers
    if way == 2:
        tensor[rng.choice(KEYS)] = rng.choice(VALUES[:-2])
    elif way == 3:
        del tensor[rng.choice(KEYS)]
    elif way == 4:
        document["inputs"] = rng.choice(VALUES)
    elif way == 5:
        document["parameters"] = {"deadline_ms": rng.choice((0, -1, "x", None, [], 1e300, True))}
    elif way == 6:
        headers["Inference-Header-Content-Length"] = rng.choice(("-1", "x", "9" * 30, "3"))
    else:
        headers["Content-Encoding"] = rng.choice(("gzip", "deflate", "br"))
    return json.dumps(document).encode(), headers


INFER = b"POST /v2/models/digits/infer HTTP/1.1\r\nhost: localhost\r\n"

RAW = (
    b"GET\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
    b"POST /v2/models/digits/infer HTTP/9.9\r\nhost: localhost\r\n\r\n",
    b"POST /v2/models/digits/infer HTTP/1.1\r\nno colon\r\n\r\n",
    INFER + b"content-length: x\r\n\r\n",
    INFER + b"content-length: -5\r\n\r\n",
    INFER + b"content-length: 99999999999999999999\r\n\r\n",
    INFER + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    INFER + b"content-length: 2\r\n\r\n{}",
    b"BREW /v2/models/digits/infer HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v2/models/%00%ff/../infer HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"POST /admin/servers HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nnull",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",
)  # fmt: skip
"""Whole requests as bytes; HTTP itself is broken in most."""


def made_by_hand(url: str, count: int, rng: random.Random, statuses: Counter[int]) -> None:
    """Wrong bodies over one connection."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    for _ in range(count):
        connection.request("POST", "/v2/models/digits/infer", *malformed(rng))
        answer = connection.getresponse()
        assert answer.read()
        statuses[answer.status] += 1
    connection.close()


def made_of_bytes(url: str, count: int, rng: random.Random, statuses: Counter[int]) -> None:
    """Broken HTTP, on a connection each; 0 where the connection was closed without an answer."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    for _ in range(count):
        with socket.create_connection((host, int(port)), timeout=60) as link:
            with suppress(OSError):
                link.sendall(rng.choice(RAW))
                link.shutdown(socket.SHUT_WR)
            answer = b""
            with suppress(OSError):
                while piece := link.recv(1 << 16):
                    answer += piece
        statuses[int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0] += 1


def made_by_schemathesis(url: str, count: int, seed: int, statuses: Counter[int]) -> None:
    """What the server's OpenAPI file forbids, as Schemathesis makes it."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")["/v2/models/{name}/infer"][
        "POST"
    ]
    strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)

    @seeded(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def send(case: Any) -> None:
        answer = case.call()
        statuses[answer.status_code] += 1
        if not 400 <= answer.status_code < 500:
            print(f"{answer.status_code}: {case.as_curl_command()[:300]}")

    send()


def held(pid: str = "self") -> dict[str, float]:
    """Memory in MB, open files and threads of this process, in which the server runs."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return {
        "memory_mb": int(fields["VmRSS"].split()[0]) / 1000,
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(fields["Threads"]),
    }


def main(*, requests: int = 10_000, seed: int = 0) -> None:
    """Print statuses by kind, and what the server holds before and after."""
    rng, every = random.Random(seed), Counter[int]()
    with server("requests", "serve", "--server", "a:1", "--port", "0") as (found, process):
        url, pid = found["url"], str(process.pid)
        kinds: dict[str, tuple[Callable[..., None], int, Any]] = {
            "wrong bodies": (made_by_hand, requests * 7 // 10, rng),
            "broken HTTP": (made_of_bytes, requests // 10, rng),
            "Schemathesis": (made_by_schemathesis, requests // 5, seed),
        }
        for name, (make, count, chance) in kinds.items():
            statuses = Counter[int]()
            make(url, count // 10, chance, statuses)
            before = held(pid)
            make(url, count - count // 10, chance, statuses)
            print(f"{name}: {sum(statuses.values())} sent, {dict(sorted(statuses.items()))}")
            print(f"  held after a tenth {before}, at the end {held(pid)}", flush=True)
            every += statuses
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.request("POST", "/v2/models/digits/infer", json.dumps(right()))
        print(f"a right request afterwards: {connection.getresponse().status}")
        connection.close()
    wrong = {status: n for status, n in every.items() if not 400 <= status < 500}
    print(f"in all: {sum(every.values())}; not 4xx: {wrong or 'none'}")


if __name__ == "__main__":
    run(main)
