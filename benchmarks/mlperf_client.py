"""MLPerf LoadGen's Server scenario against a running server: the adapter of one client.

LoadGen decides when each query arrives (Poisson), and after the run says whether enough of them
were answered within the target latency. It calls from a thread of its own; queries are sent by one
asyncio loop in another thread, over connections that stay open. A query that is refused is handed
back once its target latency has passed, so that LoadGen counts it as late.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from placewright.errors import RunError

SAMPLES = 16
"""Inputs that LoadGen draws from."""

SUMMARY = "mlperf_log_summary.txt"

PERCENTILE = 0.99

LEAST_QUERIES = 1000
"""LoadGen needs 459 queries to believe that 99 % are in time, and more where some are late."""

GRACE_S = 0.01
"""Beyond the target latency, when a refused query is handed back."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a run of LoadGen.

    Attributes
    ----------
    valid
        Whether the result is VALID.
    scheduled_per_s, completed_per_s
        Queries that LoadGen sent at random times, and those that were answered.
    p99_ms
        99th percentile of the latency.
    statuses
        Answers by HTTP status.
    """

    valid: bool
    scheduled_per_s: float
    completed_per_s: float
    p99_ms: float
    queries: int
    statuses: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where queries go.

    `requests`: complete HTTP requests, one for each sample.
    """

    host: str
    port: int
    requests: tuple[bytes, ...]


class _Sender:
    """Sends queries on a loop in a thread of its own."""

    def __init__(self, target: Target, latency_s: float, lg: Any) -> None:
        self.target, self.latency_s, self.lg = target, latency_s, lg
        self.statuses: Counter[str] = Counter()
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.loop = asyncio.new_event_loop()
        self.tasks: set[asyncio.Task[None]] = set()
        self.thread = threading.Thread(target=self.loop.run_forever, name="loadgen", daemon=True)
        self.thread.start()

    def issue(self, samples: Any) -> None:
        """LoadGen's callback: must not wait."""
        now_s = time.monotonic()
        for sample in samples:
            self.loop.call_soon_threadsafe(self._begin, sample.id, sample.index, now_s)

    def close(self) -> None:
        """Close the connections and end the thread."""
        asyncio.run_coroutine_threadsafe(self._leave(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _leave(self) -> None:
        for _, writer in self.free:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _begin(self, identity: int, index: int, issued_s: float) -> None:
        task = self.loop.create_task(self._one(identity, index, issued_s))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _one(self, identity: int, index: int, issued_s: float) -> None:
        try:
            status = await self._ask(self.target.requests[index])
        except (OSError, EOFError, ValueError, asyncio.IncompleteReadError):
            status = "0"
        self.statuses[status] += 1
        if status != "200":
            left_s = issued_s + self.latency_s + GRACE_S - time.monotonic()
            await asyncio.sleep(max(0.0, left_s))
        self.lg.QuerySamplesComplete([self.lg.QuerySampleResponse(identity, 0, 0)])

    async def _ask(self, request: bytes) -> str:
        while self.free:
            reader, writer = self.free.pop()
            if not reader.at_eof():  # the server closes connections that are idle for some seconds
                break
            writer.close()
        else:
            reader, writer = await asyncio.open_connection(self.target.host, self.target.port)
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            await reader.readexactly(int(length[1]) if length else 0)
        except BaseException:
            writer.close()
            raise
        self.free.append((reader, writer))
        return head.split(b" ", 2)[1].decode()


def run_server_scenario(
    target: Target, rate_per_s: float, latency_s: float, duration_s: float, logs: Path
) -> Verdict:
    """Run LoadGen's Server scenario for at least `duration_s`, with at least 1,000 queries.

    `latency_s`: 99 % of the queries must be answered within it.
    `logs`: folder of LoadGen's own files.
    Raises `RunError`: LoadGen wrote no verdict.
    """
    import mlperf_loadgen as lg

    settings = lg.TestSettings()
    settings.scenario = lg.TestScenario.Server
    settings.mode = lg.TestMode.PerformanceOnly
    settings.server_target_qps = rate_per_s
    settings.server_target_latency_ns = int(latency_s * 1e9)
    settings.server_target_latency_percentile = PERCENTILE
    # The defaults, 100 queries and 10 s at 1 query a second, end a test after about 10 queries.
    settings.min_duration_ms = int(duration_s * 1e3)
    settings.min_query_count = max(LEAST_QUERIES, int(rate_per_s * duration_s))
    logs.mkdir(parents=True, exist_ok=True)
    output = lg.LogOutputSettings()
    output.outdir = str(logs)
    output.copy_summary_to_stdout = False
    logging = lg.LogSettings()
    logging.log_output = output
    logging.enable_trace = False
    sender = _Sender(target, latency_s, lg)
    count = len(target.requests)
    sut = lg.ConstructSUT(sender.issue, lambda: None)
    qsl = lg.ConstructQSL(count, count, lambda indices: None, lambda indices: None)
    try:
        lg.StartTestWithLogSettings(sut, qsl, settings, logging)
    finally:
        lg.DestroyQSL(qsl)
        lg.DestroySUT(sut)
        sender.close()
    return read_verdict(logs / SUMMARY, dict(sender.statuses))


def read_verdict(path: Path, statuses: dict[str, int]) -> Verdict:
    """The verdict in LoadGen's summary.

    Raises `RunError`: there is none.
    """
    text = path.read_text() if path.exists() else ""
    found = {
        k.strip(): v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())
    }
    result = found.get("Result is")
    if result is None:
        raise RunError("LoadGen wrote no verdict", where=str(path))

    def number(name: str) -> float:
        return next((float(v) for k, v in found.items() if k.startswith(name)), float("nan"))

    return Verdict(
        result == "VALID",
        number("Scheduled samples per second"),
        number("Completed samples per second"),
        number("99.00 percentile latency") / 1e6,
        sum(statuses.values()),
        statuses,
    )
