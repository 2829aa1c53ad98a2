"""Training that plans again when nodes slow down or leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.samples import adaptive as samples_adaptive
from placewright.samples.adaptive import Adaptive, Disturbance
from placewright.samples.data import audit, deal
from placewright.samples.problem import SampleProblem
from placewright.samples.training.node_training import Recipe
from tests.samples.jobs import digits_job
from tests.samples.tiny import tiny

torch = pytest.importorskip("torch")

SPEED = 10.0


def adaptive(folder: Path, *disturbances: Disturbance, epochs: int = 4, **fields: Any) -> Adaptive:
    """Three equal nodes with 40 samples each."""
    problem = tiny([40, 40, 40], epochs=epochs, **fields)
    job = digits_job(120, test=50)
    shards, digests = deal(problem, job.samples, folder)
    recipe = Recipe(epochs=epochs, batch=40, seed=3)
    return Adaptive(
        problem,
        shards,
        digests,
        recipe,
        job,
        speed=SPEED,
        disturbances=disturbances,
        planning_s=4.0,
    )


def test_a_node_that_slows_down_gives_samples_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times as slow from the second epoch on: planned before the third, nothing is lost."""
    monkeypatch.setattr(samples_adaptive, "DRIFT", 2.0)  # a busy machine is slower, too
    job = adaptive(tmp_path, Disturbance(1, 0, 4.0))
    steps = job.run()
    assert [step.moved > 0 for step in steps[:3]] == [False, False, True]
    assert steps[2].planned
    assert not any(step.lost for step in steps)
    held = [len(shard.samples()) for shard in job.shards]
    assert held[0] < 25
    assert sum(held) == 120
    audit(job.shards, job.digests)
    assert job.problem.seconds_per_sample[0] > 0.3


def test_a_node_that_leaves_takes_only_its_own_samples_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle of an epoch: the others repeat it, and training goes on."""
    monkeypatch.setattr(samples_adaptive, "DRIFT", 1.0)
    job = adaptive(tmp_path, Disturbance(1, 2, np.inf))
    steps = job.run()
    assert [step.left for step in steps] == [(), ("n2",), (), ()]
    assert [step.lost for step in steps] == [0, 40, 0, 0]
    assert job.alive == [0, 1]
    assert [(e.step, e.text) for e in job.timeline.events if e.kind == "fault"] == [(1, "lost n2")]
    assert len(job.timeline.step_s) == 4
    assert len(job.digests) == 80
    audit([job.shards[i] for i in job.alive], job.digests)
    assert steps[-1].epoch.loss < steps[0].epoch.loss


def test_training_goes_on_without_moves_where_the_rest_cannot_be_planned(tmp_path: Path) -> None:
    """The hub of a star leaves: nobody reaches anybody, and everybody trains."""
    star = np.full((3, 3), np.inf)
    star[0, 1:] = star[1:, 0] = 0.05
    first, second = adaptive(tmp_path, Disturbance(0, 0, np.inf), epochs=2, send_s=star).run()
    assert (first.left, first.unplanned) == (("n0",), "")
    assert (second.planned, second.moved) == (False, 0)
    assert "cannot be reached" in second.unplanned
    assert second.held == {"n1": 40, "n2": 40}


def test_planning_has_the_seed_and_the_time_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where there is no first plan that is an error: nothing would be lost."""
    received: dict[str, Any] = {}

    def refused(problem: SampleProblem, planner: str, **options: Any) -> None:
        received.update(options)
        raise InfeasibleError("no plan")

    monkeypatch.setattr(samples_adaptive, "solve", refused)
    with pytest.raises(InfeasibleError):
        adaptive(tmp_path).run()
    assert received == {"time_limit_s": 4.0, "seed": 3}
