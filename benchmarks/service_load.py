"""Many clients at the API of the service, while a job runs and ten thousand are in its list.

    python benchmarks/service_load.py --clients 50 --calls 1000

Starts ``placewright serve`` on a folder whose database has ``--jobs`` jobs that have ended, gives
it a job that runs all the time, and lets each client make its calls over one connection, two a
second at random moments, or one after another (``--rate 0``, which saturates it): reads of lists,
jobs, files, operations and health, and one call in fifty that uploads a file. Prints a Markdown
table of milliseconds by kind of call, and exits 1 where an answer is an error or the 95th
percentile of reads is above ``--most-ms``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from placewright.service.store import Job, JobState, Store, new_id, sqlite_url
from placewright.web.client import Client

NODES = """
nodes:
  - {name: a, samples: 900, seconds_per_sample: 4ms}
  - {name: b, samples: 100, seconds_per_sample: 1ms}
links:
  - {from: a, to: b, bandwidth: 100Mbps, latency: 1ms}
sample_bytes: 60000
epochs: 5
"""


def main() -> None:
    """Measure, print, and judge."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="placewright-load-") as folder:
        store = Store(sqlite_url(Path(folder, "service.sqlite")))
        store.migrate()
        ids = _ended_jobs(store, options.jobs)
        store.close()
        process, url = _serve(folder)
        try:
            seconds, errors = _load(url, ids, options)
        finally:
            process.terminate()
            process.wait(30)
    reads = np.concatenate([v for kind, v in seconds.items() if not kind.startswith("change")])
    print(_table(seconds))
    worst_ms = 1e3 * float(np.percentile(reads, 95))
    print(f"\n{len(errors)} errors; 95 % of reads within {worst_ms:.1f} ms")
    for error in errors[:5]:
        print(f"  {error}")
    raise SystemExit(1 if errors or worst_ms > options.most_ms else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument(
        "--rate", type=float, default=2.0, help="calls a second of each; 0: no wait"
    )
    parser.add_argument("--most-ms", type=float, default=50.0)
    return parser.parse_args()


def _ended_jobs(store: Store, count: int) -> list[str]:
    jobs = [
        Job(
            id=new_id(),
            operation="samples.plan",
            options={"source": f"nodes-{k}.yaml", "seed": k},
            state=JobState.DONE,
            created_s=time.time(),
            ended_s=time.time(),
            summary={"problem": f"nodes-{k}", "planner": "lp", "value": 7.2, "gap": 0.0},
        )
        for k in range(count)
    ]
    ids = [job.id for job in jobs]
    with store.session() as session:
        session.add_all(jobs)
    return ids


def _serve(folder: str) -> tuple[subprocess.Popen[str], str]:
    begin = time.perf_counter()
    command = [sys.executable, "-P", "-m", "placewright", "serve", folder, "--port", "0"]
    process = subprocess.Popen([*command, "-f", "json"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != "}\n":
        lines.append(process.stdout.readline())
        assert lines[-1], "the service has ended"
    url: str = json.loads("".join(lines))["url"]
    listening_s = time.perf_counter() - begin
    with urllib.request.urlopen(url) as page:
        page.read()
    print(f"listening after {listening_s:.2f} s, first page {time.perf_counter() - begin:.2f} s\n")
    return process, url


def _load(
    url: str, ids: list[str], options: argparse.Namespace
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Seconds by kind of call, and errors."""
    client = Client(url)
    nodes = Path(tempfile.mkdtemp(prefix="placewright-load-"), "nodes.yaml")
    nodes.write_text(NODES)
    client.upload(nodes)
    stop, busy = threading.Event(), threading.Thread(target=lambda: _keep_busy(client, stop))
    busy.start()
    taken: dict[str, list[float]] = defaultdict(list)
    errors: list[str] = []
    clients = [
        threading.Thread(target=_client, args=(url, ids, options, seed, taken, errors))
        for seed in range(options.clients)
    ]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    stop.set()
    busy.join()
    return {kind: np.array(times) for kind, times in taken.items()}, errors


def _keep_busy(client: Client, stop: threading.Event) -> None:
    """One job after another."""
    while not stop.is_set():
        client.run("samples.plan", file="nodes.yaml", time_limit=5).wait()


def _client(
    url: str,
    ids: list[str],
    options: argparse.Namespace,
    seed: int,
    taken: dict[str, list[float]],
    errors: list[str],
) -> None:
    """The calls of one client."""
    drawn = random.Random(seed)
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    kinds: list[tuple[str, Callable[[], tuple[str, str, str | None]]]] = [
        ("health", lambda: ("GET", "/api/v1/health", None)),
        ("list of jobs", lambda: ("GET", "/api/v1/jobs", None)),
        ("older jobs", lambda: ("GET", f"/api/v1/jobs?before={drawn.choice(ids)}", None)),
        ("a job", lambda: ("GET", f"/api/v1/jobs/{drawn.choice(ids)}", None)),
        ("list of files", lambda: ("GET", "/api/v1/files", None)),
        ("operations", lambda: ("GET", "/api/v1/operations/samples.plan", None)),
        ("page of jobs", lambda: ("GET", "/jobs", None)),
    ]
    upload = ("PUT", f"/api/v1/files/nodes-{seed}.yaml", NODES)
    for number in range(options.calls):
        if options.rate:
            time.sleep(drawn.expovariate(options.rate))
        kind, made = drawn.choice(kinds)
        method, path, body = made()
        if number % 50 == 49:
            kind, (method, path, body) = "change: an upload", upload
        begin = time.perf_counter()
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except OSError as error:
            errors.append(f"{method} {path}: {type(error).__name__} {error}")
            connection.close()
            continue
        taken[kind].append(time.perf_counter() - begin)
        if answer.status >= 400:
            errors.append(f"{method} {path}: {answer.status}")


def _table(seconds: dict[str, np.ndarray]) -> str:
    rows = ["| call | number | median | 95 % | longest |", "|---|---|---|---|---|"]
    for kind, times in sorted(seconds.items()):
        median, high, most = 1e3 * np.percentile(times, [50, 95, 100])
        rows.append(f"| {kind} | {len(times)} | {median:.1f} ms | {high:.1f} ms | {most:.0f} ms |")
    return "\n".join(rows)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
