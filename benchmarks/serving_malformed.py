"""Send malformed requests to a real server: each must get a 4xx, and memory must not grow.

python benchmarks/serving_malformed.py --requests 10000
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import resource
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from placewright.requests.serving.digits import digits
from placewright.requests.serving.server import ServingOptions, running_server

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
    document, headers = right(), {}
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


def main() -> None:
    """Print statuses, and the server's memory before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, statuses = random.Random(options.seed), Counter[int]()
    log = Path(tempfile.mkdtemp()) / "log.jsonl"
    with running_server(
        [digits(("linear",))], {"a": 1.0}, ServingOptions(port=0, log=log)
    ) as running:
        memory: list[int] = []
        connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=60)
        for k in range(options.requests):
            connection.request("POST", "/v2/models/digits/infer", *malformed(rng))
            answer = connection.getresponse()
            assert answer.read()
            statuses[answer.status] += 1
            if k in (options.requests // 10, options.requests - 1):
                memory.append(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        connection.request("POST", "/v2/models/digits/infer", json.dumps(right()))
        assert connection.getresponse().status == 200
        connection.close()
    print(f"statuses: {dict(sorted(statuses.items()))}")
    print(f"memory: {memory[0] / 1e6:.1f} MB after a tenth, {memory[-1] / 1e6:.1f} MB at the end")


if __name__ == "__main__":
    main()
