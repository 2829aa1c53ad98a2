"""Check that every request gets one answer while workers are killed and links are cut.

    python benchmarks/serving_faults.py --duration 60          # root: servers are a testbed's nodes

Clients send requests whose right answers are known, each over a connection of its own thread, one
after another. Meanwhile a fault comes every second at random. Every request must get exactly one
answer: 200 with the outputs of its own input, or a refusal with a reason; the server's log must
hold each once.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from harness import run
from placewright.requests.serving.engines import DISPATCHER, server_cluster, with_dispatcher
from placewright.requests.serving.families import Family
from placewright.requests.serving.models import open_session
from placewright.requests.serving.server import Running, ServingOptions, serve
from placewright.testbed.testbed import Testbed
from serving_loads import PIXELS, SERVERS, family

INPUTS = 8
CLIENTS = 12
PAUSE_S = 0.2
"""Of a client after a refusal, as its answer asks for at least."""


def client(url: str, end_s: float, seed: int, found: Counter[str], right: dict[str, Any]) -> None:
    """Send requests until the end; count outcomes."""
    rng = random.Random(seed)
    link = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    bodies, outputs = right["bodies"], right["outputs"]
    while time.monotonic() < end_s:
        k = rng.randrange(INPUTS)
        link.request("POST", "/v2/models/images/infer", bodies[k])
        reply = link.getresponse()
        answer = json.loads(reply.read())
        if reply.status != 200:
            reason = "with" if answer.get("error") and "retry-after" in reply.headers else "WITHOUT"
            found[f"refused {reply.status} {answer.get('code')}, {reason} reason"] += 1
            time.sleep(PAUSE_S)
            continue
        wanted = outputs[answer["parameters"]["variant"]][k]
        same = np.allclose(answer["outputs"][0]["data"], wanted, atol=1e-4)
        found["answered" if same else "WRONG ANSWER"] += 1
        found["answered after a fault"] += answer["parameters"]["attempts"] > 1
    link.close()


def faults(running: Running, bed: Testbed, end_s: float, seed: int) -> Counter[str]:
    """A fault every second until shortly before the end."""
    rng, done = random.Random(seed), Counter[str]()
    while time.monotonic() < end_s:
        slot = rng.choice(running.dispatcher.fleet.slots)
        kind, pid = rng.choice(("kill", "stop", "stop and continue", "cut")), slot.process.pid
        name = slot.process.name
        if kind == "cut":
            bed.cut(DISPATCHER, name)
            time.sleep(rng.uniform(0.1, 4))
            bed.restore(DISPATCHER, name)
        elif pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
                if kind == "stop and continue":
                    time.sleep(rng.uniform(0.05, 0.8))
                    os.kill(pid, signal.SIGCONT)
        done[kind] += 1
        time.sleep(1.0)
    return done


def known_answers(made: Family) -> dict[str, Any]:
    """Bodies of requests, and the right outputs of each variant."""
    images = np.random.default_rng(0).random((INPUTS, 3, PIXELS, PIXELS)).astype(np.float32)
    shape, deadline = [1, 3, PIXELS, PIXELS], {"deadline_ms": 5000}
    tensor = {"name": "image", "datatype": "FP32", "shape": shape}
    data = [tensor | {"data": image.reshape(-1).tolist()} for image in images]
    sessions = {v.name: open_session(v.model, v.name) for v in made.variants}
    return {
        "outputs": {n: s.run(None, {"image": images})[0] for n, s in sessions.items()},
        "bodies": [json.dumps({"inputs": [each], "parameters": deadline}) for each in data],
    }


def main(*, duration: float = 60.0, seed: int = 0) -> None:
    """Print faults and outcomes, and what the log says."""
    made, cluster = family(), with_dispatcher(server_cluster(SERVERS))
    right, found = known_answers(made), Counter[str]()
    log = Path(tempfile.mkdtemp()) / "log.jsonl"
    options = ServingOptions(port=0, engine="testbed", log=log)
    print(f"{os.cpu_count()} cores, load average: {os.getloadavg()[0]:.2f}")
    with serve([made], cluster, options) as running:
        end_s = time.monotonic() + duration
        threads = [
            threading.Thread(target=client, args=(running.url, end_s + 2, k, found, right))
            for k in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        done = faults(running, Testbed.find(cluster.name), end_s, seed)
        for thread in threads:
            thread.join()
        restarts = sum(slot.restarts for slot in running.dispatcher.fleet.slots)
    print(f"faults: {dict(done)}; restarts: {restarts}")
    print(f"outcomes at the clients: {dict(sorted(found.items()))}")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    once = [line["request"] for line in lines] == list(range(len(lines)))
    sent = sum(n for name, n in found.items() if name != "answered after a fault")
    print(f"requests sent {sent}, in the log {len(lines)}, each once: {once}")
    reasons = Counter(line["reason"].split(";")[0] for line in lines if line["server"] is None)
    print(f"reasons: {dict(reasons)}")
    wrong = {name: n for name, n in found.items() if "WRONG" in name or "WITHOUT" in name}
    if wrong or not once or sent != len(lines):
        raise SystemExit(f"wrong: {wrong}; requests in the log {len(lines)} for {sent}")


if __name__ == "__main__":
    run(main)
