"""Plans executed for a stream of samples, measured and compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan

import numpy as np
import pytest

from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.errors import UnsupportedError
from placewright.operators.conformance import tiny
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import best_single
from placewright.operators.streaming.prediction import DEALT, predict, predicted
from placewright.operators.streaming.run import (
    check_stream,
    cut_of,
    measure_stream,
    per_sample_s,
    refuse_what_cannot_stream,
    single_device_limit,
)
from placewright.operators.views import stream_text
from placewright.planning.solving import FixedPlan, solve
from placewright.profiling.profiler import profile
from placewright.runtime.session import Session
from placewright.runtime.stream import Delivered, SampleStream, Tensors
from small_zoo import small
from tests.capturing.small_graphs import small_graph
from tests.operators.test_run import DUO, WORKERS


def test_a_scattered_stream_is_eager_bit_for_bit() -> None:
    """Samples that differ, stretches at random on three workers, against eager one by one."""
    source, graph = small("resnet50"), small_graph("resnet50")
    problem = profile(graph, WORKERS, method="analytic").replace(objective="throughput")
    devices = np.random.default_rng(0).integers(0, 3, size=problem.colocation.max() + 1)
    plan = OperatorPlan(devices[problem.colocation // 9])
    predicted = predict(judge(problem, plan), window=3)
    state = initial_state(source, graph.program)
    with Session(graph, WORKERS, state) as session:
        stream = SampleStream(session, cut_of(problem, plan, predicted))

        def run(feeds: Iterable[Tensors]) -> list[Delivered]:
            with stream:
                return list(stream.run(feeds))

        check = check_stream(graph, source, run, 5, seed=0, devices=WORKERS.devices)
    assert check.max_abs_error == 0.0
    assert check.steps == 5


@pytest.mark.parametrize(
    ("places", "replica_of"),
    [
        ((0, 2), (0, 0, 2)),  # the first stage on two devices
        ((1, 2), (2, 1, 2)),  # the second one, whose copy is the first device
        ((0, 1, 0, 1), (0, 1, 1)),  # back and forth between one device and a stage with a copy
    ],
)
def test_copies_of_a_part_are_eager_bit_for_bit(
    places: tuple[int, ...], replica_of: tuple[int, ...]
) -> None:
    """Samples alternate between the copies of a stage and come out in order."""
    source, graph = small("resnet50"), small_graph("resnet50")
    problem = profile(graph, WORKERS, method="analytic")
    problem = problem.replace(objective="throughput", pipeline=DEALT)
    groups = problem.colocation * len(places) // (problem.colocation.max() + 1)
    plan = OperatorPlan(np.array(places)[groups], replica_of=np.array(replica_of))
    expected = predicted(problem, plan)
    with Session(graph, WORKERS, initial_state(source, graph.program)) as session:
        stream = SampleStream(session, cut_of(problem, plan, expected), watched=True)

        def run(feeds: Iterable[Tensors]) -> list[Delivered]:
            with stream:
                return list(stream.run(feeds))

        check = check_stream(graph, source, run, 9, seed=0, devices=WORKERS.devices)
    assert check.max_abs_error == 0.0
    did = [{n for d, _, n, *_ in spans if d == device} for device, spans in enumerate(stream.spans)]
    for leader in set(places):
        own = [did[d] for d in range(3) if replica_of[d] == leader]
        assert sorted(n for each in own for n in each) == list(range(9))
        assert all(own)


def test_a_measured_stream_says_what_was_predicted() -> None:
    """All of it is in the object that the command line prints."""
    source, graph = small("alexnet"), small_graph("alexnet")
    problem = profile(graph, DUO, method="analytic").replace(objective="throughput")
    half = np.arange(problem.n) >= problem.n // 2
    result = solve(problem, FixedPlan(OperatorPlan(half.astype(np.int64))))
    with Session(graph, DUO, initial_state(source, graph.program)) as session:
        found = measure_stream(session, result, beside=best_single(problem), samples=3)
        with pytest.raises(UnsupportedError, match="cannot begin before"):
            measure_stream(_training(session), result)
    report = found.as_json(result)
    assert report["predicted_s"] == found.prediction.period_s
    assert report["throughput_per_s"] == pytest.approx(1.0 / report["measured_s"])
    assert report["load_s"] == result.value
    assert report["samples"] == len(report["sample_s"]) > 0
    assert report["speed_up_limit"] == pytest.approx(1.5)
    assert report["baseline"]["name"] == "a"
    assert report["baseline"]["in_flight"] >= 2
    assert report["latency_s"] > 0
    assert found.measurement.trace is not None
    assert set(found.measurement.trace.track) == {0, 1}
    assert "in flight" in stream_text(result, found)


class _training:  # noqa: N801
    """A session of a training step."""

    def __init__(self, session: Session) -> None:
        self.graph = capture_source(small("alexnet"), training=True)


def test_what_a_stream_cannot_do_is_refused() -> None:
    """By name."""
    serial = tiny([[1, 1]], objective="throughput").replace(overlap="serial")
    with pytest.raises(UnsupportedError, match="one operator or transfer at a time"):
        refuse_what_cannot_stream(serial)


def test_the_limit_is_the_sum_of_the_speeds() -> None:
    """Devices that take 1 and 2 seconds do at most 1.5 samples per second together."""
    assert single_device_limit(tiny([[0.5, 1], [0.5, 1]])) == pytest.approx(1.5)


def test_bursts_do_not_change_the_seconds_per_sample() -> None:
    """Two samples every two seconds are one per second, on whichever worker is slowest."""
    done = [0.0, 1.9, 2.0, 3.9, 4.0, 5.9, 6.0]
    found = per_sample_s([Delivered(k, {}, 0.0, (s, s / 2)) for k, s in enumerate(done)], 2)
    assert found == pytest.approx([1.0] * 5, abs=0.06)


def test_rates_of_copies_add_up_however_their_samples_are_delivered() -> None:
    """One does a sample a second, one half of that: 1.5 per second, though in bursts of three."""
    done = [(float(k), nan) for k in range(1, 25)] + [(nan, 2.0 * k + 90) for k in range(1, 13)]
    in_order = sorted(done, key=lambda pair: pair[0] if pair[1] != pair[1] else pair[1] - 90)
    delivered = [Delivered(k, {}, 0.0, done_s) for k, done_s in enumerate(in_order)]
    found = per_sample_s(delivered, 8, [[0, 1]])
    assert len(found) == 36 - 16
    assert found == pytest.approx([2 / 3] * len(found))
