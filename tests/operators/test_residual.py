"""The residual model finds known biases on held-out models, and does not correct noise."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from placewright.errors import InputError, UnsupportedError
from placewright.measurement.speed_up import T_95
from placewright.operators.critical_path import critical_operators
from placewright.operators.instances import tiny
from placewright.operators.judge import judge
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Objective
from placewright.operators.residual import (
    MeasuredRun,
    ResidualModel,
    fit,
    held_out,
    measured_run,
)
from placewright.operators.residual_features import features

MODELS = 12


@cache
def judged(seed: int) -> tuple[OperatorJudgement, ...]:
    """Three plans of a synthetic model of some milliseconds: one device, two halves, any."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(15, 60))
    compute = rng.uniform(2e-5, 4e-4, (n, 1)) * [1.0, rng.uniform(1.0, 2.0)]
    tensors = [(i, float(rng.integers(100, 10_000)), [i + 1]) for i in range(n - 1)]
    tensors += [(i, 500.0, [i + 2]) for i in range(0, n - 2, int(rng.integers(2, 6)))]
    problem = tiny(
        compute.tolist(),
        tensors,
        latency_s=1e-4,
        seconds_per_byte=1e-8,
        name=f"model-{seed}",
        operator_kinds=tuple(rng.choice(["aten.addmm.default", "aten.relu.default"], n)),
    )
    any_place = (rng.random(n) < rng.uniform(0.05, 0.5)).astype(np.int64)
    places = [np.zeros(n, dtype=np.int64), (np.arange(n) > n // 2).astype(np.int64), any_place]
    return tuple(judge(problem, OperatorPlan(place)) for place in places)


def overheads(found: OperatorJudgement) -> float:
    """Seconds that a run takes where each operator costs 12 us more, each transfer 60 us."""
    return found.value + 12e-6 * found.problem.n + 60e-6 * len(found.transfers)


def errors(runs: list[MeasuredRun]) -> tuple[np.ndarray, np.ndarray]:
    """Absolute errors of the logarithm: the judge's, and corrected without the run's model."""
    before = np.abs([run.log_ratio for run in runs])
    pairs = zip(runs, held_out(runs), strict=True)
    return before, np.abs([math.log(c.seconds / run.measured_s) for run, c in pairs])


def synthetic(noise: float, seed: int, biased: bool) -> list[MeasuredRun]:
    """Three runs each of `MODELS` models."""
    rng = np.random.default_rng(seed)
    plans = [found for k in range(MODELS) for found in judged(k)]
    exact = [overheads(found) if biased else found.value for found in plans]
    return [
        measured_run(found, seconds * math.exp(noise * rng.standard_normal()))
        for found, seconds in zip(plans, exact, strict=True)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_bias_is_found_on_models_that_were_never_measured(seed: int) -> None:
    """Overheads of operators and messages under 2 % noise: less than half the judge's error."""
    before, after = errors(synthetic(0.02, seed, biased=True))
    assert np.median(before) > 0.05
    assert np.median(after) < 0.5 * np.median(before)
    assert after.mean() < 0.5 * before.mean()


def test_a_constant_factor_is_found() -> None:
    """All runs take 1.3 times as long: so does every other model, nearly."""
    runs = [measured_run(found, 1.3 * found.value) for k in range(4) for found in judged(k)]
    model, other = fit(runs), judged(9)[1]
    found = model.corrected(other)
    assert found.seconds == pytest.approx(1.3 * other.value, rel=0.03)
    assert found.low_s < found.seconds < found.high_s
    assert (found.predicted_s, found.runs, found.models) == (other.value, 12, 4)
    assert "corrected by 12 measured runs of 4 models" in str(found)


def test_without_a_bias_it_is_as_good_as_the_judge() -> None:
    """5 % noise alone: most of ten sets of runs change nothing, none adds 10 % of the error."""
    ratios = []
    for seed in range(10):
        before, after = errors(synthetic(0.05, seed, biased=False))
        ratios.append(after.mean() / before.mean())
    assert np.median(ratios) == pytest.approx(1.0, abs=1e-9)
    assert max(ratios) <= 1.1


def test_a_perfect_judge_is_left_alone() -> None:
    """Without an error the value is returned to the last bit."""
    found = judged(3)[2]
    assert fit(synthetic(0.0, 0, biased=False)).corrected(found).seconds == found.value


def test_a_kind_that_takes_longer_is_corrected_by_its_share() -> None:
    """One of two kinds takes twice as long: on other models, too, however much they have of it."""
    plans = [found for k in range(MODELS) for found in judged(k)]
    runs = [measured_run(found, slow_relu(found)) for found in plans]
    model = fit(runs)
    for found in (*judged(20), *judged(21)):
        assert model.corrected(found).seconds == pytest.approx(slow_relu(found), rel=0.05)


def slow_relu(found: OperatorJudgement) -> float:
    """Seconds where what is critical of one kind takes twice as long."""
    shares = [share for kind, *_, share in features(found) if "relu" in kind]
    return found.value * (1 + sum(shares))


def test_most_intervals_hold_on_held_out_models() -> None:
    """At least 80 % of 108 runs are inside of intervals that should hold for 95 %."""
    inside = [
        found.low_s <= run.measured_s <= found.high_s
        for seed in range(3)
        for runs in [synthetic(0.02, seed, biased=True)]
        for run, found in zip(runs, held_out(runs), strict=True)
    ]
    assert np.mean(inside) >= 0.8


def test_models_held_out_are_those_asked_for() -> None:
    """The others are only learned from; a model is corrected as by a fit to all but its runs."""
    runs = synthetic(0.02, 0, biased=True)
    model = runs[4].model
    found = held_out(runs, [model])
    assert found == tuple(
        c for c, run in zip(held_out(runs), runs, strict=True) if run.model == model
    )
    others = fit([run for run in runs if run.model != model])
    scored = [run for run in runs if run.model == model]
    again = [others.corrected_run(run.features, run.predicted_s, run.devices) for run in scored]
    assert [c.seconds for c in found] == pytest.approx([c.seconds for c in again])
    assert [c.low_s for c in found] == pytest.approx([c.low_s for c in again])


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_comes_from_models_left_out(seed: int) -> None:
    """What a fit says of models that it left out is what they show, choices made without them."""
    runs = synthetic(0.02, seed, biased=True)
    models = list(dict.fromkeys(run.model for run in runs))
    squares = [
        np.mean(
            [math.log(c.seconds / run.measured_s) ** 2 for c, run in zip(found, own, strict=True)]
        )
        for model in models
        for own in [[run for run in runs if run.model == model]]
        for found in [held_out(runs, [model])]
    ]
    half = T_95[-1] * math.sqrt(np.mean(squares))
    assert fit(runs).half_log == pytest.approx(half, rel=0.3)


def test_what_was_never_measured_is_named_and_not_corrected() -> None:
    """Another kind and size on another device: the judge's value, and what is outside."""
    model = fit(synthetic(0.02, 0, biased=True))
    found = model.corrected_run([("aten.fft", "gpu0", 40.0, 60.0, 1.0)], 1.0, ("gpu0",))
    assert found.seconds == pytest.approx(1.0, abs=1e-9)
    assert found.outside == ("aten.fft", "devices")
    assert "outside of what was measured" in str(found)
    assert model.corrected_run(model.runs[0].features, 1.0, model.runs[0].devices).outside == ()


def test_features_of_a_plan_by_hand() -> None:
    """Two operators of 2 and 1 s on two devices, 3 s between them, all of it critical."""
    problem = tiny(
        [[2.0, 9.0], [9.0, 1.0]],
        [(0, 3.0, [1])],
        name="two",
        operator_kinds=("aten.convolution.default", "aten.relu.default"),
    )
    found = features(judge(problem, OperatorPlan(np.array([0, 1]))))
    small = 2.0 * round(math.log(67.0) / 2)
    assert found == (
        ("aten.convolution.default", problem.device_names[0], 1.0, small, 2 / 6),
        ("aten.relu.default", problem.device_names[1], 0.0, small, 1 / 6),
        ("per operator", "", 0.0, 0.0, 2 * 1e-5 / 6),
        ("per transfer", "", 0.0, 0.0, 1e-4 / 6),
        ("per transfer anywhere", "", 0.0, 0.0, 1e-4 / 6),
        ("transfer", "", 1.0, small, 3 / 6),
    )


def test_seconds_beside_other_devices_by_hand() -> None:
    """Operators of 2, 3 and 1 s; the first two run at once, and the third waits for the second."""
    problem = tiny(
        [[2.0, 2.0], [3.0, 3.0], [1.0, 1.0]], [(1, 0.0, [2])], name="three", latency_s=0.0
    )
    judged = judge(problem, OperatorPlan(np.array([0, 1, 1])))
    share = {kind: share for kind, *_, share in features(judged)}
    assert judged.value == 4.0
    assert share["beside others"] == pytest.approx(2 / 4)
    assert share["per operator"] == pytest.approx(2 * 1e-5 / 4)
    assert "per transfer" not in share


@pytest.mark.parametrize("seed", range(5))
def test_seconds_beside_others_are_those_of_pairs(seed: int) -> None:
    """Of every critical operator with every operator elsewhere."""
    for found in judged(seed):
        spans = list(zip(found.op_start_s, found.op_end_s, found.placement, strict=True))
        pairs = sum(
            max(0.0, min(end, other_end) - max(start, other_start))
            for critical, (start, end, place) in zip(critical_operators(found), spans, strict=True)
            for other_start, other_end, elsewhere in spans
            if critical and elsewhere != place
        )
        share = {kind: share for kind, *_, share in features(found)}
        assert share.get("beside others", 0.0) == pytest.approx(pairs / found.value, abs=1e-12)


def test_what_cannot_be_corrected_is_refused() -> None:
    """Too few models, no latency, nothing to multiply, a run of no time."""
    runs = [measured_run(found, 1.0) for found in judged(0)]
    with pytest.raises(InputError, match="at least two models"):
        fit(runs)
    with pytest.raises(InputError, match="no run"):
        fit([])
    other = measured_run(judged(1)[0], 1.0)
    with pytest.raises(InputError, match="at least three models"):
        held_out([*runs, other])
    throughput = judged(0)[0].problem.replace(objective=Objective.THROUGHPUT)
    with pytest.raises(UnsupportedError, match="throughput"):
        features(judge(throughput, OperatorPlan(np.zeros(throughput.n, dtype=np.int64))))
    free = tiny([[0.0]])
    with pytest.raises(UnsupportedError, match="above zero"):
        features(judge(free, OperatorPlan(np.array([0]))))
    with pytest.raises(InputError, match="more than no time"):
        measured_run(judged(0)[0], math.inf)


def test_a_fit_is_deterministic() -> None:
    """The same runs give the same numbers."""
    a, b = (fit(synthetic(0.02, 1, biased=True)) for _ in range(2))
    assert isinstance(a, ResidualModel)
    assert (a.strength, a.half_log) == (b.strength, b.half_log)
    assert np.array_equal(a.weights, b.weights)
