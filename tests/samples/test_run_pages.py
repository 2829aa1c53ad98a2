"""Pages of runs: complete, self-contained, with events and escaped names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.planning.solving import solve
from placewright.samples.adaptive import AdaptiveEpoch
from placewright.samples.move import MoveResult
from placewright.samples.plan import SamplePlan
from placewright.samples.planners.simple import Greedy
from placewright.samples.problem import SampleProblem
from placewright.samples.run import SampleRun
from placewright.samples.run_pages import run_trace, samples_epochs_page, samples_run_page
from placewright.samples.training.node_training import Epoch
from placewright.samples.training.train import Trained
from placewright.samples.views import beside_others, runs_table
from tests.operators.test_views import check
from tests.report.examples import HOSTILE
from tests.samples.tiny import tiny

LOSSES = (0.9, 0.5, 0.3)


def problem() -> SampleProblem:
    """Two nodes, one of them with a name that must stay a name."""
    return replace(tiny([30, 2]), node_names=("a", HOSTILE), name=HOSTILE)


def run_of(name: str, each_s: float, moved: int = 0) -> SampleRun:
    """Three epochs of two steps each, on two nodes."""
    begin = np.arange(6) * each_s / 2
    one_node = np.stack([begin, begin + each_s / 4, begin + each_s / 2], axis=1)
    spans = ((0, 1, moved, 0.25, 1.75),) if moved else ()
    return SampleRun(
        name,
        None if name == "fedavg" else 3 * each_s,
        2.0 if moved else 0.0,
        3 * each_s,
        moved,
        Trained(
            tuple(Epoch(each_s, loss, loss, 1 - loss) for loss in LOSSES),
            {},
            np.ones(2),
            np.stack([one_node, one_node]),
        ),
        1.0,
        moved=MoveResult(2.0, 0, np.ones((2, 2)), spans) if moved else None,
    )


def test_a_page_shows_the_run_beside_its_prediction_and_baselines() -> None:
    """Map, bars, both timelines, a curve and a row for every way to train."""
    result = solve(problem(), Greedy())
    runs = [run_of("plan", 2.0, 14), run_of("none", 4.0), run_of("fedavg", 3.0)]
    runs.append(run_of("lb-bsp", 1.0))
    page = samples_run_page(result, runs)
    text = " ".join(check(page).texts)
    for part in ("Map of flows", "Nodes before and after", "Predicted", "Measured", "Loss against"):
        assert part in text
    assert page.count("stroke:var(--c);stroke-width:2") == len(runs)
    assert page.count('class="who"') == len(runs)
    # 12 s to the last loss, or 2 s of moving and 6 s; and every other way that was run, by name.
    beside = (
        "to the same loss the plan is 1.50 times as fast as none; 1.12 times as fast as fedavg; "
        "0.38 times as fast as lb-bsp (which is faster)"
    )
    assert beside in page
    assert runs_table(runs).endswith(beside)
    assert HOSTILE not in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_loss_is_reached_but_for_rounding() -> None:
    """Nodes add up in another order; what never comes near has a sentence of its own."""
    plan, other = run_of("plan", 2.0, 14), run_of("proportional", 4.0)
    last = LOSSES[-1]
    assert other.seconds_to(last * (1 - 1e-7)) == other.seconds_to(last) == 12.0
    worse = tuple(replace(epoch, test_loss=2.0) for epoch in other.trained.epochs)
    worse_run = replace(other, trained=replace(other.trained, epochs=worse))
    assert beside_others([plan, worse_run], last) == [
        "proportional did not reach the loss of the plan"
    ]


def test_a_measured_trace_has_the_moves_and_then_the_steps() -> None:
    """In the problem's own time: a run twice as fast is drawn twice as long."""
    run = run_of("plan", 2.0, 14)
    trace = run_trace(run, ("a", "b"))
    assert trace.tracks == ("a", "b", "a->b")
    assert trace.start_s[trace.track == 2] == pytest.approx([0.25])
    assert trace.start_s[trace.track == 0] == pytest.approx(2.0 + np.arange(6))
    assert [trace.labels[k] for k in trace.label[trace.track == 1]][::2] == [
        f"own gradients, epoch {e}" for e in (1, 2, 3)
    ]
    twice = run_trace(replace(run, speed=2.0), ("a", "b"))
    assert twice.start_s[twice.track == 0] == pytest.approx(2.0 + 2 * np.arange(6))


def test_a_run_without_a_move_has_no_links() -> None:
    """Nothing moved, nothing is drawn."""
    still = run_of("none", 4.0)
    assert run_trace(still, ("a", "b")).tracks == ("a", "b")
    plan = SamplePlan(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
    assert plan.count.sum() == 0
    check(samples_run_page(solve(problem(), Greedy()), [still]))


def test_a_page_of_a_run_that_planned_again_shows_its_events() -> None:
    """What was moved, who left, what was lost; the epochs that ended if it was interrupted."""
    planned = problem()
    epoch = Epoch(2.0, 0.5, 0.5, 0.8)
    steps = [
        AdaptiveEpoch(1, epoch, True, 0, 0.0, (), 0, {"a": 30, HOSTILE: 2}),
        AdaptiveEpoch(2, epoch, True, 12, 1.5, (), 0, {"a": 18, HOSTILE: 14}),
        AdaptiveEpoch(3, epoch, False, 0, 0.0, (HOSTILE,), 14, {"a": 18}),
    ]
    page = samples_epochs_page(planned, steps, real=False)
    text = " ".join(check(page).texts)
    assert "12 samples moved in 1.5" in text
    assert "14 samples lost" in text
    assert "18 samples" in text
    assert HOSTILE not in page
    check(samples_epochs_page(planned, steps[:1], real=True))
    # A run that goes on from a checkpoint of two epochs.
    resumed = check(samples_epochs_page(planned, steps[2:], real=True)).texts
    assert {"epoch 1", "epoch 2", "epoch 3"} & set(resumed) == {"epoch 3"}
    check(samples_epochs_page(planned, [], real=True))
