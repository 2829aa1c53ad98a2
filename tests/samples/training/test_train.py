"""Training on several nodes against training on one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright.samples.data.dealing import deal
from placewright.samples.data.images import Images, images
from placewright.samples.data.shards import Shard
from placewright.samples.plan import SamplePlan
from placewright.samples.run import run
from placewright.samples.training.learner import Learner
from placewright.samples.training.recipe import Recipe, parts, steps_of
from placewright.samples.training.train import Trained, train
from placewright.samples.training.trainer import Epoch
from tests.samples.tiny import tiny

torch = pytest.importorskip("torch")

RECIPE = Recipe(epochs=2, batch=16, seed=3, precise=True)


def train_alone(shards: list[Shard], recipe: Recipe, test: Images) -> Trained:
    """One node, the same batches: in every step the union of what the nodes would take."""
    learner = Learner(recipe)
    held = [np.array(shard.samples(), dtype=np.int64) for shard in shards]
    learner.load({s: shard.read(s) for shard in shards for s in shard.samples()})
    steps = steps_of(sum(map(len, held)), recipe.batch)
    epochs = []
    for number in range(recipe.epochs):
        loss, count = 0.0, 0
        split = [parts(own, steps, recipe.seed, number) for own in held]
        for k in range(steps):
            union = np.concatenate([parts_of_node[k] for parts_of_node in split])
            loss, count = loss + learner.gradients(union), count + len(union)
            learner.step_alone(len(union))
        epochs.append(Epoch(0.0, loss / count, *learner.tested(test)))
    return Trained(tuple(epochs), learner.parameters(), np.full(len(shards), np.nan))


def test_together_is_one_node_on_the_union(tmp_path: Path) -> None:
    """Shares as different as 90 and 7: the same losses and parameters to twelve digits."""
    problem = tiny([90, 40, 7])
    shards, _ = deal(problem, images(137, 1), tmp_path)
    test = images(50, 2)
    together = train(problem, shards, RECIPE, test, speed=1e6)
    alone = train_alone(shards, RECIPE, test)
    assert np.abs(together.parameters - alone.parameters).max() < 1e-12
    for ours, theirs in zip(together.epochs, alone.epochs, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-12)
        assert ours.accuracy == theirs.accuracy


@pytest.mark.parametrize(
    "changes",
    [{"local_steps": 3}, {"compression": "fp16"}, {"compression": "top10"}],
    ids=["local", "fp16", "top10"],
)
def test_fewer_and_smaller_exchanges_still_learn(
    changes: dict[str, object], tmp_path: Path
) -> None:
    """Not the same parameters, and a loss that falls nearly as much."""
    problem = tiny([150, 60])
    shards, _ = deal(problem, images(210, 1), tmp_path)
    recipe = replace(RECIPE, epochs=3, batch=8, precise=False)
    exact = train_alone(shards, recipe, images(50, 2))
    other = train(problem, shards, replace(recipe, **changes), images(50, 2), speed=1e6)
    fall = exact.epochs[0].loss - exact.epochs[-1].loss
    assert other.epochs[0].loss - other.epochs[-1].loss > 0.5 * fall


def test_a_run_measures_plan_and_baselines() -> None:
    """Each on files of its own; only the plan and what the judge knows have predictions."""
    problem = tiny([60, 8], epochs=1)
    plan = SamplePlan(np.array([0]), np.array([1]), np.array([24]))
    runs = run(problem, plan, recipe=Recipe(epochs=1), speed=50.0)
    by_name = {r.name: r for r in runs}
    assert list(by_name) == ["plan", "none", "lb-bsp", "proportional", "fedavg"]
    assert by_name["plan"].moved_samples == 24
    assert by_name["none"].move_s == 0.0
    assert by_name["lb-bsp"].predicted_s is None
    assert by_name["none"].predicted_s == pytest.approx(6.0)
    assert all(r.measured_s > 0 for r in runs)
