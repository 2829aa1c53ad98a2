"""What is recorded of requests."""

from __future__ import annotations

import asyncio
import json
import resource
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from placewright.requests.serving import observing, protocol
from placewright.requests.serving.dispatcher import Dispatcher
from placewright.requests.serving.measured import recent_requests
from placewright.requests.serving.observing import Observer
from placewright.requests.serving.server import ServingOptions, serve
from placewright.requests.serving.tensors import Array
from placewright.web.refusals import Refusal
from tests.requests.serving.models import family


def observer(log: Path | None = None) -> Observer:
    """An observer of a dispatcher that does nothing."""
    return Observer(Dispatcher([family()], ServingOptions(port=0).policy.start), log)


def refuse(watched: Observer, count: int) -> None:
    """So many requests are refused now."""
    asked = family()
    for _ in range(count):
        watched.refused(
            asked, time.monotonic(), None, Refusal(503, "no server", code="no-server"), {}
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_log_that_the_disk_does_not_take_ends_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is an event, once; requests are answered without a log from then on."""
    events: list[tuple[str, Any]] = []
    monkeypatch.setattr(observing, "event", lambda kind, **fields: events.append((kind, fields)))
    watched = observer(Path("/dev/full"))
    refuse(watched, 2000)  # more than is buffered
    watched.flush()
    refuse(watched, 1)
    watched.close()
    assert [kind for kind, _ in events].count("log-failed") == 1
    assert watched.totals == {"no-server": 2001}


def test_a_log_ends_with_a_whole_line_where_the_disk_takes_no_more(tmp_path: Path) -> None:
    """Requests until then are in it; the next server goes on behind them."""
    log, limits = tmp_path / "log.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    watched = observer(log)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        refuse(watched, 2000)
        watched.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    lines = log.read_text().splitlines()
    assert 90_000 < log.stat().st_size < 100_000
    assert [json.loads(line)["request"] for line in lines] == list(range(len(lines)))
    with log.open("a") as file:
        file.write('{"request": 7')  # of a server that was killed
    following = observer(log)
    refuse(following, 1)
    following.close()
    assert log.read_text().splitlines()[:-1] == lines
    assert json.loads(log.read_text().splitlines()[-1])["request"] == 0


def test_rates_above_two_thousand_a_second_are_counted_whole() -> None:
    """The last ten seconds, however many requests they had."""
    watched = observer()
    refuse(watched, 30_000)
    assert watched.summary()["recent_rate_per_s"] == pytest.approx(3000)


def test_what_is_older_than_ten_seconds_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is that of ten seconds."""
    watched = observer()
    refuse(watched, 100)
    later_s = time.monotonic() + 11.0
    monkeypatch.setattr(observing.time, "monotonic", lambda: later_s)
    refuse(watched, 1)
    assert watched.summary()["recent_rate_per_s"] == pytest.approx(0.1)
    assert len(watched._recent) == 1


def test_an_answer_that_takes_long_to_write_is_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the answer itself, the totals, the metrics and the log."""
    written = protocol._numbers

    async def slowly(values: Array) -> str:
        await asyncio.sleep(2.8)
        return await written(values)

    log = tmp_path / "log.jsonl"
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [tensor], "parameters": {"deadline_ms": 2500}}).encode()
    with serve([family()], {"a": 1.0}, ServingOptions(port=0, log=log)) as running:
        monkeypatch.setattr(protocol, "_numbers", slowly)
        with urllib.request.urlopen(f"{running.url}/v2/models/double/infer", body) as answer:
            parameters = json.load(answer)["parameters"]
        assert not parameters["in_time"]
        assert parameters["latency_ms"] > 2800
        assert parameters["slack_ms"] < -100
        assert running.observer.totals == {"late": 1}
        assert running.observer.summary()["effective_accuracy"] == 0
        assert b'outcome="late"} 1.0' in running.observer.metrics()
        assert b'seconds_bucket{le="0.5",model="double"} 0.0' in running.observer.metrics()
    (line,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert line["end_s"] < line["due_s"] < line["answered_s"]
    assert recent_requests(log)["percentiles_s"]["p50"] > 2.8
