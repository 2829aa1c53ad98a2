"""Training that plans again when nodes slow down or leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.samples.data.dealing import deal
from placewright.samples.data.images import images
from placewright.samples.data.shards import audit
from placewright.samples.replanning import Adaptive, Trouble
from placewright.samples.training.recipe import Recipe
from tests.samples.tiny import tiny

torch = pytest.importorskip("torch")

SPEED = 10.0


def adaptive(folder: Path, *trouble: Trouble) -> Adaptive:
    """Three equal nodes with 40 samples each, four epochs."""
    problem = tiny([40, 40, 40], epochs=4)
    shards, digests = deal(problem, images(120, 1), folder)
    recipe = Recipe(epochs=4, batch=40)
    return Adaptive(problem, shards, digests, recipe, images(50, 2), speed=SPEED, trouble=trouble)


def test_a_node_that_slows_down_gives_samples_away(tmp_path: Path) -> None:
    """Four times as slow from the second epoch on: planned before the third, nothing is lost."""
    job = adaptive(tmp_path, Trouble(1, 0, 4.0))
    steps = job.run()
    assert [step.moved > 0 for step in steps[:3]] == [False, False, True]
    assert steps[2].planned
    assert not any(step.lost for step in steps)
    held = [len(shard.samples()) for shard in job.shards]
    assert held[0] < 25
    assert sum(held) == 120
    audit(job.shards, job.digests)
    assert job.problem.seconds_per_sample[0] == pytest.approx(0.4, rel=0.5)


def test_a_node_that_leaves_takes_only_its_own_samples_along(tmp_path: Path) -> None:
    """Killed in the middle of an epoch: the others repeat it, and training goes on."""
    job = adaptive(tmp_path, Trouble(1, 2, np.inf))
    steps = job.run()
    assert [step.left for step in steps] == [(), ("n2",), (), ()]
    assert [step.lost for step in steps] == [0, 40, 0, 0]
    assert job.alive == [0, 1]
    assert len(job.digests) == 80
    audit([job.shards[i] for i in job.alive], job.digests)
    assert steps[-1].epoch.loss < steps[0].epoch.loss
