"""What is recorded of every request, as metrics, log and spans; and the events of the server.

A line of the log is one request, in the fields of published logs (`serving/1`) and a few more:

    {"request": 17, "family": "digits", "arrival_s": 3.2, "deadline_s": 0.1, "due_s": 3.3,
     "min_accuracy": 0.8, "time_sensitivity": 0.5, "accuracy_sensitivity": 0.5, "rows": 1,
     "server": "a", "variant": "cnn", "batch": 4, "start_s": 3.21, "end_s": 3.24,
     "answered_s": 3.241, "accuracy": 0.98, "status": 200}
                             seconds since the server started; ``deadline_s`` since the arrival
    {"request": 18, ..., "server": null, "status": 503, "reason": "..."}

A server appends to the file that is there. ``started_s`` tells its lines from those of others: the
Unix time from which the line's seconds count.

Events are starts, losses, changes, refusals under overload and the end, in Python's logging; for
programs a line each:

    {"event": "server-lost", "time_s": 1764.2, "server": "b", "reason": "its process was killed"}
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from placewright.errors import InputError, MissingDependencyError
from placewright.io.output import cut_torn_line, open_to_append
from placewright.requests.serving.models import SERVE
from placewright.requests.serving.protocol import Needs
from placewright.requests.serving.rows import Row
from placewright.web.refusals import Refusal

if TYPE_CHECKING:
    from placewright.requests.serving.dispatcher import Dispatcher
    from placewright.requests.serving.families import Family

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
DECISIONS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
RECENT_S = 10.0

OVERLOAD = ("queue-full", "deadline", "no-server")
"""Codes of refusals that are logged as events, added up between two flushes."""


class Observer:
    """Counts, logs and traces requests.

    `log`: file of every request, one JSON object a line; ``None``: none. Where the disk refuses it,
    requests are answered without a log from then on.
    `totals`: requests by outcome: ``in-time``, ``late``, or the code of a refusal (``client-gone``
    where nobody waited for the answer).
    """

    def __init__(self, dispatcher: Dispatcher, log: str | Path | None = None) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError:
            raise MissingDependencyError(
                "prometheus-client", extra=SERVE, purpose="serving requests"
            ) from None
        self._prometheus = prometheus
        self.registry = prometheus.CollectorRegistry()
        self.start_s, self._started_s = time.monotonic(), round(time.time(), 3)
        self.totals: Counter[str] = Counter()
        self._dispatcher = dispatcher
        self.path = log
        self._overload: Counter[str] = Counter()
        self._number = 0
        self._accuracy = 0.0
        self._recent: deque[tuple[float, bool, float]] = deque()
        self._log = None if log is None else _opened(Path(log))
        self._tracer = _tracer()
        self._metrics()

    def _metrics(self) -> None:
        p, registry = self._prometheus, self.registry
        self._requests = p.Counter(
            "placewright_requests", "Requests by outcome.", ["model", "outcome"], registry=registry
        )
        self._latency = p.Histogram(
            "placewright_request_seconds",
            "Arrival to answer.",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self._rows = p.Counter(
            "placewright_served_rows", "Rows served.", ["server", "variant"], registry=registry
        )
        self._overhead = p.Histogram(
            "placewright_overhead_seconds",
            "From its batch's dispatch to the answer, without computation.",
            buckets=SECONDS,
            registry=registry,
        )
        self._decision = p.Histogram(
            "placewright_decision_seconds", "One decision.", buckets=DECISIONS, registry=registry
        )
        self._dispatcher.on_decision = self._decision.observe
        waiting = p.Gauge("placewright_waiting_rows", "Rows in the queue.", registry=registry)
        waiting.set_function(lambda: self._dispatcher.queue.count)
        self._up = p.Gauge(
            "placewright_server_up", "Whether it is up.", ["server"], registry=registry
        )
        self._restarts = p.Gauge(
            "placewright_server_restarts", "Times started again.", ["server"], registry=registry
        )

    def metrics(self) -> bytes:
        """The exposition that Prometheus scrapes."""
        self._up.clear()  # a server that was removed must not look like one that is down
        self._restarts.clear()
        for slot in (each for each in self._dispatcher.fleet.slots if each.active):
            self._up.labels(slot.process.name).set(slot.up)
            self._restarts.labels(slot.process.name).set(slot.restarts)
        data: bytes = self._prometheus.generate_latest(self.registry)
        return data

    def answered(
        self, family: Family, rows: list[Row], written_s: float, headers: Mapping[str, str]
    ) -> None:
        """A request was answered; its answer was written at `written_s`, on the monotonic clock."""
        model = family.name
        served = [row.done.result() for row in rows]
        first, last = rows[0], max(served, key=lambda s: s.end_s)
        in_time = written_s <= first.deadline_s
        self._count(model, "in-time" if in_time else "late", in_time)
        self._latency.labels(model).observe(written_s - first.arrival_s)
        for each in served:
            self._rows.labels(each.server, each.variant).inc()
        least = min(each.accuracy for each in served)
        accuracy = least if in_time else 0.0
        self._accuracy += accuracy
        self._remember(written_s, in_time, accuracy)
        fields = {
            "rows": len(rows),
            "server": last.server,
            "variant": last.variant,
            "batch": last.batch,
            "start_s": last.start_s - self.start_s,
            "end_s": last.end_s - self.start_s,
            "answered_s": written_s - self.start_s,
            "accuracy": least,
            "attempts": last.attempts,
            "predicted_s": last.predicted_s,
            "status": 200,
        }
        self._note(family, first.arrival_s, first.needs, fields)
        self._span(model, first.arrival_s, written_s, fields, headers)

    def refused(
        self,
        family: Family,
        arrival_s: float,
        needs: Needs | None,
        refusal: Refusal,
        headers: Mapping[str, str],
        rows: int = 1,
    ) -> None:
        """A request of so many rows was refused."""
        model = family.name
        self._count(model, refusal.code, False)
        if refusal.code in OVERLOAD:
            self._overload[refusal.code] += 1
        fields: dict[str, Any] = {"rows": rows, "server": None}
        fields |= {"status": refusal.status, "reason": refusal.reason}
        if refusal.code != "malformed":
            self._remember(time.monotonic(), False, 0.0)
        self._note(family, arrival_s, needs, fields)
        self._span(model, arrival_s, time.monotonic(), fields, headers)

    def overhead(self, seconds: float) -> None:
        """What a request took beyond waiting for its server and that server's computation."""
        self._overhead.observe(seconds)

    def summary(self) -> dict[str, Any]:
        """Totals, and success of the last seconds."""
        now_s = time.monotonic()
        recent = [each for each in self._recent if each[0] > now_s - RECENT_S]
        count = max(1, sum(n for code, n in self.totals.items() if code != "malformed"))
        return {
            "requests": sum(self.totals.values()),
            "outcomes": dict(self.totals),
            "success": self.totals["in-time"] / count,
            "effective_accuracy": self._accuracy / count,
            "recent_rate_per_s": len(recent) / RECENT_S,
            "recent_success": sum(r[1] for r in recent) / max(1, len(recent)),
            "recent_effective_accuracy": sum(r[2] for r in recent) / max(1, len(recent)),
        }

    def flush(self) -> None:
        """Write what is buffered of the log, and one event of what was refused meanwhile."""
        if self._overload:
            event("refused-overload", **{k.replace("-", "_"): n for k, n in self._overload.items()})
            self._overload.clear()
        if self._log is not None:
            with self._writing():
                self._log.flush()

    def close(self) -> None:
        """Close the log."""
        self.flush()
        if self._log is not None:
            self._log.close()
            self._log = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            event("log-failed", file=str(self.path), reason=error.strerror)
            log, self._log = self._log, None
            with suppress(OSError):  # what is buffered cannot be written either
                cast(TextIO, log).close()
            with suppress(OSError):
                cut_torn_line(cast(Path, self.path))

    def _remember(self, end_s: float, in_time: bool, accuracy: float) -> None:
        """Keep a request for as long as it counts as recent."""
        self._recent.append((end_s, in_time, accuracy))
        while self._recent[0][0] < end_s - RECENT_S:
            self._recent.popleft()

    def _count(self, model: str, outcome: str, in_time: bool) -> None:
        self.totals[outcome] += 1
        self._requests.labels(model, outcome).inc()

    def _note(
        self, family: Family, arrival_s: float, needs: Needs | None, fields: dict[str, Any]
    ) -> None:
        number, self._number = self._number, self._number + 1
        if self._log is None:
            return
        head: dict[str, Any] = {
            "started_s": self._started_s,
            "request": number,
            "family": family.name,
            "version": family.version,
            "arrival_s": arrival_s - self.start_s,
        }
        if needs is not None:
            head |= asdict(needs) | {"due_s": head["arrival_s"] + needs.deadline_s}
        with self._writing():
            self._log.write(json.dumps(head | fields) + "\n")

    def _span(
        self,
        model: str,
        arrival_s: float,
        end_s: float,
        fields: dict[str, Any],
        headers: Mapping[str, str],
    ) -> None:
        if self._tracer is None:
            return
        from opentelemetry.propagate import extract

        shift_s = time.time() - time.monotonic()
        span = self._tracer.start_span(
            f"infer {model}",
            context=extract(dict(headers)),
            start_time=int((arrival_s + shift_s) * 1e9),
            attributes={f"placewright.{k}": v for k, v in fields.items() if v is not None},
        )
        span.end(int((end_s + shift_s) * 1e9))


def _opened(path: Path) -> TextIO:
    """The log, behind the last whole line that an earlier server has written."""
    try:
        return open_to_append(path)
    except OSError as error:
        raise InputError("cannot write the log", where=str(path), by=f"{error.strerror}") from None


def _tracer() -> Any:
    """The tracer of the process, if it was given a provider; without one, spans go nowhere."""
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    return provider.get_tracer("placewright") if isinstance(provider, TracerProvider) else None


LOGGER = logging.getLogger("placewright.requests")


def event(kind: str, **fields: Any) -> None:
    """Log an event; who serves from Python attaches handlers of their own."""
    LOGGER.info(kind, extra={"fields": fields})


class EventFormatter(logging.Formatter):
    """One line per event: a JSON object, or words for people.

    `style`: ``json`` or ``text``.
    """

    def __init__(self, style: Literal["text", "json"]) -> None:
        super().__init__()
        self._json = style == "json"

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        kind = record.getMessage()
        if self._json:
            return json.dumps({"event": kind, "time_s": round(record.created, 3), **fields})
        words = [f"{name}={value}" for name, value in fields.items()]
        return " ".join([self.formatTime(record), kind, *words])


def log_events(style: Literal["text", "json"]) -> None:
    """Write events to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventFormatter(style))
    LOGGER.handlers = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
