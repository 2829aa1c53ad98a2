"""Streams through a placed model: every batch once, in order, with the outputs of the model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import placewright
from placewright.deployment.placed_model import PlacedModel
from placewright.deployment.planning import judged, planned
from placewright.deployment.streams import _kept, _Stream
from placewright.errors import InputError, RunError, WorkerError
from placewright.operators.conformance import tiny
from placewright.operators.interference import InterferenceProfile
from placewright.operators.judge import judge
from placewright.operators.placement_summary import placement_summary
from placewright.operators.plan import OperatorPlan
from placewright.operators.streaming.prediction import (
    DEALT,
    copied_devices,
    predict,
    predicted,
    whole_copies,
)
from placewright.operators.streaming.trials import CLOSE, MOST_TRIED
from placewright.planning.contract import Listener
from placewright.planning.result import Result
from placewright.planning.solving import FixedPlan, solve
from placewright.testbed.testbed import missing
from tests.deployment.test_calls import starve
from tests.operators.adaptive.jobs import TRIO


@pytest.fixture
def placed() -> Iterator[PlacedModel]:
    """Six layers, two on each of three devices."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))).eval()
    graph = placewright.capture(model, torch.randn(4, 8))
    plan = OperatorPlan(np.arange(len(graph.operators)) * 3 // len(graph.operators))
    with placewright.place(
        model, torch.randn(4, 8), TRIO, plan=plan, method="analytic", objective="throughput"
    ) as found:
        yield found


def test_batches_come_out_in_order_also_an_odd_last_one(placed: PlacedModel) -> None:
    """A stream that is left early leaves the workers ready; another use meanwhile is refused."""
    batches = [torch.randn(4 if k < 9 else 2, 8) for k in range(10)]
    model = placed.workload.source.model
    for batch, found in zip(batches, placed.stream(batches), strict=True):
        assert torch.equal(found, model(batch))
    stream, other = placed.stream(batches), placed.stream(batches)
    next(stream)
    session = placed.workers.up
    assert session is not None
    for use in (
        lambda: session.load([0] * 6, range(6)),
        lambda: session.run(1),
        lambda: session.call({}),
        lambda: session.migrate([0] * 6, range(6)),
        lambda: placed(batches[0]),
        lambda: next(other),
        lambda: placed.stream(batches),
    ):
        with pytest.raises(InputError, match="executing a stream"):
            use()
    assert torch.equal(next(stream), model(batches[1]))  # the stream goes on
    stream.close()
    assert torch.equal(placed(batches[0]), model(batches[0]))


def test_a_worker_without_memory_says_by_how_much_the_judge_was_wrong() -> None:
    """Also in mid-stream, with the memory of the samples that are in flight."""
    model = nn.Linear(8, 8).eval()
    x = torch.randn(4, 8)
    with placewright.place(
        model, x, TRIO, planner="only:a", method="analytic", objective="throughput"
    ) as placed:
        starve(placed, 64 << 20)
        with pytest.raises(WorkerError, match="ran out of memory") as error:
            list(placed.stream([x, torch.randn(4_000_000, 8), x]))
    assert error.value.where == "device 'a'"
    assert "the judge expected" in error.value.by


def test_a_killed_worker_loses_and_doubles_no_batch(placed: PlacedModel) -> None:
    """The other devices take the batches that were in flight."""
    batches = [torch.randn(4, 8) for _ in range(40)]
    model, found = placed.workload.source.model, []
    for output in placed.stream(iter(batches)):
        found.append(output)
        if len(found) == 10:
            session = placed.workers._held.session
            assert session is not None
            os.kill(session.group.processes[1].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    assert len(found) == len(batches)
    assert all(torch.equal(y, model(x)) for x, y in zip(batches, found, strict=True))


def test_workers_that_are_all_killed_are_started_again(placed: PlacedModel) -> None:
    """Their machines are up: no batch is lost, as often as that happens between two batches."""
    batches = [torch.randn(4, 8) for _ in range(12)]
    found = []
    for outputs in placed.stream(batches):
        found.append(outputs)
        if len(found) in (3, 6) and (session := placed.workers.up) is not None:
            for process in session.group.processes:  # type: ignore[attr-defined]
                os.kill(process.pid, signal.SIGKILL)
    model = placed.workload.source.model
    for batch, outputs in zip(batches, found, strict=True):
        assert torch.equal(outputs, model(batch))


@pytest.mark.parametrize("lost", [None, 0, 1])
def test_copies_deliver_every_batch_once_and_in_order(lost: int | None) -> None:
    """Devices of three speeds have the whole model each; one that is killed loses no batch."""
    model, batches = tower()
    devices = [replace(d, speed=1.0 / (k + 1)) for k, d in enumerate(TRIO.devices)]
    cluster = replace(TRIO, devices=tuple(devices))
    with placewright.place(
        model, batches[0], cluster, method="analytic", objective="throughput", time_limit_s=0.5
    ) as placed:
        assert placed.result.planner == "whole-copies"
        assert copied_devices(placed.plan) == [0, 1, 2]
        module_map = placement_summary(placed.result.judgement, placed.plan).module_map
        assert module_map == "a copy of the whole model on each of a, b, c"
        assert_equal_to_eager(placed, model, batches, lost)
        if lost is None:
            measured = placed.measure_stream(3, check=True)
            assert measured.measurement.max_abs_error == 0
            assert measured.measurement.baseline is not None


@pytest.mark.parametrize(
    ("engine", "lost"),
    [
        *(("local", lost) for lost in (None, 0, 1, 2)),
        pytest.param(
            "testbed",
            1,
            marks=pytest.mark.skipif(missing() is not None, reason="no testbed here"),
        ),
    ],
)
def test_copies_of_a_part_lose_no_batch(engine: str, lost: int | None) -> None:
    """The first half is on two devices; one of them, or the one with the rest, is killed."""
    model, batches = tower()
    cluster = replace(TRIO, name=f"copies {os.getpid()}")
    with placewright.place(
        model,
        batches[0],
        cluster,
        engine=engine,
        plan=shared_half(model, batches[0]),
        method="analytic",
        objective="throughput",
        calibrate=False,
    ) as placed:
        module_map = placement_summary(placed.result.judgement, placed.plan).module_map
        assert "copies on b" in module_map
        assert_equal_to_eager(placed, model, batches, lost)
        if lost is None:
            measured = placed.measure_stream(3, check=True)
            assert measured.measurement.max_abs_error == 0


def tower() -> tuple[nn.Sequential, list[torch.Tensor]]:
    """Four layers, and thirty batches for them."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).eval()
    return model, [torch.randn(16, 64) for _ in range(30)]


def shared_half(model: nn.Module, x: torch.Tensor) -> OperatorPlan:
    """The first half on two devices, the rest on the third."""
    count = len(placewright.capture(model, x).operators)
    half = (np.arange(count) * 2 // count) * 2
    return OperatorPlan(half, replica_of=np.array([0, 0, 2]))


def assert_equal_to_eager(
    placed: PlacedModel, model: nn.Module, batches: list[torch.Tensor], lost: int | None = None
) -> None:
    """Every batch and an odd last one once, in order; a worker is killed after the ninth."""
    batches, found = [*batches, batches[0][:3]], []
    for output in placed.stream(iter(batches)):
        found.append(output)
        if len(found) == 9 and lost is not None:
            session = placed.workers.up
            assert session is not None
            os.kill(session.group.processes[lost].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    assert len(found) == len(batches)
    assert all(torch.equal(y, model(x)) for x, y in zip(batches, found, strict=True))


def test_models_that_keep_state_are_not_copied() -> None:
    """Samples that draw random numbers are one sequence: dropout that is never switched off."""
    model = nn.Sequential(nn.Linear(64, 64), _Noise()).eval()
    with placewright.place(
        model,
        torch.randn(16, 64),
        TRIO,
        method="analytic",
        objective="throughput",
        time_limit_s=0.5,
    ) as placed:
        assert placed.result.planner != "whole-copies"


class _Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds another number each time."""
        return x + torch.rand_like(x)


def test_a_batch_that_cannot_be_taken_ends_the_stream_after_those_before_it(
    placed: PlacedModel,
) -> None:
    """Nothing that was in flight is lost, and the same workers go on; so after a loader's error."""
    good = [torch.randn(4, 8) for _ in range(3)]
    model = placed.workload.source.model
    placed(good[0])
    session = placed.workers.up

    def broken() -> Iterator[torch.Tensor]:
        yield from good
        raise OSError("the disk is gone")

    for batches, error in (([*good, good[0].double(), good[0]], InputError), (broken(), OSError)):
        found: list[torch.Tensor] = []
        with pytest.raises(error):
            found.extend(placed.stream(batches))
        assert len(found) == len(good)
        assert all(torch.equal(y, model(x)) for x, y in zip(good, found, strict=True))
        assert torch.equal(placed(good[1]), model(good[1]))
        assert placed.workers.up is session


def test_threads_with_several_plans_take_turns_or_are_refused(placed: PlacedModel) -> None:
    """Calls of two placed models on the same workers all come back right; one stream does, too."""
    model, batches = placed.workload.source.model, [torch.randn(4, 8) for _ in range(5)]
    operators = len(placed.workload.graph.operators)
    other = placed.with_plan(OperatorPlan(np.zeros(operators, dtype=np.int64)))

    def called(which: PlacedModel) -> list[torch.Tensor]:
        return [which(batch) for batch in batches]

    def streamed(which: PlacedModel) -> list[torch.Tensor]:
        try:
            return list(which.stream(batches))
        except InputError:  # the workers are executing a stream
            return []

    expected = [model(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(called, [placed, other] * 2):
            assert all(map(torch.equal, found, expected))
        delivered = [each for each in pool.map(streamed, [placed, other] * 2) if each]
    assert delivered
    for each in delivered:
        assert all(map(torch.equal, each, expected))
    assert all(map(torch.equal, called(other), expected))


def test_a_stream_that_is_refused_late_leaves_the_other_its_workers(placed: PlacedModel) -> None:
    """One that has its workers, and whose loader takes until another stream is open."""
    model, batches = placed.workload.source.model, [torch.randn(4, 8) for _ in range(5)]
    found, first = list[torch.Tensor](), iter(placed.stream(batches))

    def slow() -> Iterator[torch.Tensor]:
        found.append(next(first))
        yield batches[0]

    with pytest.raises(InputError, match="executing a stream"):
        list(placed.stream(slow()))
    found += first
    assert all(map(torch.equal, found, map(model, batches)))


def test_a_model_closed_in_mid_stream_says_so(placed: PlacedModel) -> None:
    """With what to do next."""
    stream = placed.stream(torch.randn(4, 8) for _ in range(9))
    next(stream)
    placed.close()
    with pytest.raises(RunError, match="the placed model is closed"):
        list(stream)


def test_losing_a_worker_while_the_stream_closes_is_no_error(placed: PlacedModel) -> None:
    """The caller wants no more batches: nothing is planned again, and nothing is raised."""
    stream: Any = placed.stream(torch.randn(4, 8) for _ in range(9))
    next(stream)
    session = placed.workers._held.session
    assert session is not None
    os.kill(session.group.processes[1].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    stream.close()
    x = torch.randn(4, 8)
    assert torch.equal(placed(x), placed.workload.source.model(x))


CHAIN = tiny([[1.0, 9.0], [0.5, 1.0]], [(0, 0.6, [1])], latency_s=0.0, objective="throughput")
"""One device does a sample in 1.5 s. Two do it in 1.0 s, and the transfer of 0.6 s meanwhile."""


def best(planner: str) -> Result:
    """What would be executed."""
    known = InterferenceProfile.alike(CHAIN)
    return planned(known, planner, time_limit_s=2.0, seed=0, monitor=Listener())[0]


def test_auto_takes_the_plan_whose_stream_is_fastest() -> None:
    """The split, whose period is its value."""
    found = best("auto")
    assert found.plan.placement.tolist() == [0, 1]
    assert predict(judge(CHAIN, found.plan)).period_s == pytest.approx(1.0)
    assert found.value == pytest.approx(1.0)
    assert found.lower_bound <= 1.0


def test_the_chosen_plan_has_one_row_with_its_value() -> None:
    """Also where the planner of that name had refused the problem without copies."""
    even = tiny([[1.0, 1.0], [1.0, 1.0]], [(0, 9.0, [1])], objective="throughput")
    found = planned(
        InterferenceProfile.alike(even),
        "auto",
        time_limit_s=2.0,
        seed=0,
        monitor=Listener(),
        copies=True,
    )[0]
    assert found.planner == "whole-copies"
    (row,) = [c for c in found.candidates if c.planner == found.planner]
    assert row.value == found.value == pytest.approx(1.0)


def test_a_planner_that_was_named_is_obeyed() -> None:
    """Although another plan's stream is faster."""
    assert best("only:dev0").value == pytest.approx(1.5)


def test_a_saved_plan_with_copies_is_judged_as_one(tmp_path: Path) -> None:
    """Its file says so, and no option has to."""
    found = solve(CHAIN.replace(pipeline=DEALT), FixedPlan(next(whole_copies(CHAIN)), name="both"))
    path = found.save(tmp_path / "plan.json")
    known = InterferenceProfile.alike(CHAIN)
    again = judged(known, path)
    assert copied_devices(again.plan) == copied_devices(found.plan) == [0, 1]
    assert again.value == found.value
    other = solve(CHAIN, FixedPlan(best("exact").plan, name="one")).save(tmp_path / "other.json")
    assert judged(known, other).problem is known.of(judged(known, other).plan)


def test_auto_copies_a_stage_where_not_every_device_can_have_the_model() -> None:
    """Two boards share the long first half, the third one has the rest; none holds all of it."""
    problem = tiny(
        [[2.0, 2.0, 9.0], [9.0, 9.0, 1.0]], [(0, 0.1, [1])], latency_s=0.0, objective="throughput"
    ).replace(resident_bytes=np.array([5.0, 5.0]), memory_bytes=np.full(3, 9.0))
    known = InterferenceProfile.alike(problem)
    found = planned(known, "auto", time_limit_s=2.0, seed=0, monitor=Listener(), copies=True)[0]
    assert found.planner == "copied-stages"
    assert copied_devices(found.plan) == [0, 1]
    assert found.plan.placement.tolist() == [0, 2]
    assert predicted(found.problem, found.plan).period_s == pytest.approx(1.0, rel=0.03)


def test_plans_of_every_kind_that_may_be_the_fastest_are_kept() -> None:
    """Best first: the best of each kind, then others, none that is far behind."""
    rows = [(1.0, "copies"), (1.01, "copies"), (1.05, "copies"), (1.1, "contiguous"), (1.2, "one")]
    streams = [_Stream(f"{s}", CHAIN, best("exact").plan, s, kind) for s, kind in rows]
    kept = _kept([*streams, replace(streams[0], period_s=1.0 + 2 * CLOSE, kind="far")])
    assert [stream.period_s for stream in kept] == [1.0, 1.01, 1.1, 1.2]
    assert len(kept) == MOST_TRIED


def test_results_of_several_kinds_come_best_first() -> None:
    """The split, copies on both devices and one device alone are within a quarter of each other."""
    problem = tiny([[1.0, 3.2], [1.0, 1.2]], [(0, 0.1, [1])], latency_s=0.0, objective="throughput")
    known = InterferenceProfile.alike(problem)
    found = planned(known, "auto", time_limit_s=2.0, seed=0, monitor=Listener(), copies=True)
    periods = [predicted(result.problem, result.plan).period_s for result in found]
    assert periods[0] == min(periods) == pytest.approx(1.2)
    assert "whole-copies" in [result.planner for result in found]
    assert len({result.plan.placement.tobytes() for result in found}) > 1
