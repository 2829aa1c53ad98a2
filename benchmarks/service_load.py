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

import http.client
import os
import random
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from harness import Table, run, server
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


@dataclass
class Load:
    """Calls of each client, how many a second, and what came of them."""

    url: str
    ids: list[str]
    calls: int
    rate: float
    taken: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)

    def of(self, clients: int) -> None:
        """All clients at once, beside a job."""
        client = Client(self.url)
        nodes = Path(tempfile.mkdtemp(prefix="placewright-load-"), "nodes.yaml")
        nodes.write_text(NODES)
        client.upload(nodes)
        stop, busy = threading.Event(), threading.Thread(target=lambda: _keep_busy(client, stop))
        busy.start()
        threads = [threading.Thread(target=self._client, args=(seed,)) for seed in range(clients)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        stop.set()
        busy.join()

    def _client(self, seed: int) -> None:
        """The calls of one client."""
        drawn = random.Random(seed)
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        kinds: list[tuple[str, Callable[[], str]]] = [
            ("health", lambda: "/api/v1/health"),
            ("list of jobs", lambda: "/api/v1/jobs"),
            ("older jobs", lambda: f"/api/v1/jobs?before={drawn.choice(self.ids)}"),
            ("a job", lambda: f"/api/v1/jobs/{drawn.choice(self.ids)}"),
            ("list of files", lambda: "/api/v1/files"),
            ("operations", lambda: "/api/v1/operations/samples.plan"),
            ("page of jobs", lambda: "/jobs"),
        ]
        for number in range(self.calls):
            if self.rate:
                time.sleep(drawn.expovariate(self.rate))
            kind, made = drawn.choice(kinds)
            method, path, body = "GET", made(), None
            if number % 50 == 49:
                kind, method, body = "change: an upload", "PUT", NODES
                path = f"/api/v1/files/nodes-{seed}.yaml"
            begin = time.perf_counter()
            try:
                connection.request(method, path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
            except OSError as error:
                self.errors.append(f"{method} {path}: {type(error).__name__} {error}")
                connection.close()
                continue
            self.taken[kind].append(time.perf_counter() - begin)
            if answer.status >= 400:
                self.errors.append(f"{method} {path}: {answer.status}")


def main(
    *,
    clients: int = 50,
    calls: int = 1000,
    jobs: int = 10_000,
    rate: float = 2.0,
    most_ms: float = 50.0,
) -> int:
    """Measure, print, and judge."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="placewright-load-") as folder:
        store = Store(sqlite_url(Path(folder, "service.sqlite")))
        store.migrate()
        ids = _ended_jobs(store, jobs)
        store.close()
        begin = time.perf_counter()
        with server("serve", folder, "--port", "0") as (found, _):
            listening_s = time.perf_counter() - begin
            with urllib.request.urlopen(found["url"]) as page:
                page.read()
            paged_s = time.perf_counter() - begin
            print(f"listening after {listening_s:.2f} s, first page {paged_s:.2f} s\n")
            load = Load(found["url"], ids, calls, rate)
            load.of(clients)
    table = Table("call", "number", "median", "95 %", "longest")
    for kind, times in sorted(load.taken.items()):
        spread = 1e3 * np.percentile(times, [50, 95, 100])
        table.row(kind, len(times), *(f"{ms:.1f} ms" for ms in spread))
    reads = [s for kind, own in load.taken.items() for s in own if not kind.startswith("change")]
    worst_ms = 1e3 * float(np.percentile(reads, 95))
    print(f"\n{len(load.errors)} errors; 95 % of reads within {worst_ms:.1f} ms")
    for error in load.errors[:5]:
        print(f"  {error}")
    return int(bool(load.errors) or worst_ms > most_ms)


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


def _keep_busy(client: Client, stop: threading.Event) -> None:
    """One job after another."""
    while not stop.is_set():
        client.run("samples.plan", file="nodes.yaml", time_limit=5).wait()


if __name__ == "__main__":
    run(main)
