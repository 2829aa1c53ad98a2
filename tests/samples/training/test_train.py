"""Training on several nodes against training on one."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.samples.data import Shard, deal
from placewright.samples.plan import SamplePlan
from placewright.samples.run import run
from placewright.samples.training.job import SampleJob
from placewright.samples.training.node_training import (
    Epoch,
    Recipe,
    node_weights,
    parts,
    steps_of,
    visits_by_speed,
)
from placewright.samples.training.train import Trained, train
from tests.samples.jobs import digits_job
from tests.samples.tiny import tiny

torch = pytest.importorskip("torch")

RECIPE = Recipe(epochs=2, batch=16, seed=3)


def train_alone(shards: list[Shard], recipe: Recipe, job: SampleJob) -> Trained:
    """Plain PyTorch on the same batches: in every step the union of what the nodes would take."""
    model, loss_fn = copy.deepcopy(job.model), job.loss_fn
    optimizer = torch.optim.SGD(model.parameters(), job.lr)
    held = [np.array(shard.samples(), dtype=np.int64) for shard in shards]
    read = {s: shard.read(s) for shard in shards for s in shard.samples()}
    steps = steps_of(sum(map(len, held)), recipe.batch)
    epochs = []
    for number in range(recipe.epochs):
        total, count = 0.0, 0
        split = [parts(own, steps, recipe.seed, number) for own in held]
        for k in range(steps):
            union = np.concatenate([parts_of_node[k] for parts_of_node in split])
            x, y = (
                torch.from_numpy(np.stack(leaf))
                for leaf in zip(*(read[s] for s in union), strict=True)
            )
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            total, count = total + float(loss.detach()) * len(union), count + len(union)
        epochs.append(Epoch(0.0, total / count, *on_test(model, job)))
    state = {f"parameter:{name}": p.detach() for name, p in model.named_parameters()}
    return Trained(tuple(epochs), state, np.full(len(shards), np.nan))


def on_test(model: Any, job: SampleJob) -> tuple[float, float]:
    """Loss and accuracy on the test samples."""
    assert job.test is not None
    x, y = job.test.batch(len(job.test))
    with torch.no_grad():
        scores = model(x)
        return float(job.loss_fn(scores, y)), float((scores.argmax(dim=1) == y).double().mean())


def test_together_is_one_node_on_the_union(tmp_path: Path) -> None:
    """Shares as different as 90 and 7: the same losses and parameters to twelve digits."""
    problem = tiny([90, 40, 7])
    job = digits_job(137, test=50, precise=True)
    shards, _ = deal(problem, job.samples, tmp_path)
    together = train(problem, shards, RECIPE, job, speed=1e6)
    alone = train_alone(shards, RECIPE, job)
    for name, value in alone.state.items():
        assert float((together.state[name] - value).abs().max()) < 1e-12
    for ours, theirs in zip(together.epochs, alone.epochs, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-12)
        assert ours.test_loss == pytest.approx(theirs.test_loss, rel=1e-12)
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
    job = digits_job(210, test=50)
    shards, _ = deal(problem, job.samples, tmp_path)
    recipe = replace(RECIPE, epochs=3, batch=8)
    exact = train_alone(shards, recipe, job)
    other = train(problem, shards, replace(recipe, **changes), job, speed=1e6)
    fall = exact.epochs[0].loss - exact.epochs[-1].loss
    assert other.epochs[0].loss - other.epochs[-1].loss > 0.5 * fall


def test_weighted_steps_are_those_of_one_node_with_weights(tmp_path: Path) -> None:
    """On the batches that LB-BSP takes, to twelve digits."""
    problem = tiny([90, 40, 7]).replace(seconds_per_sample=np.array([3.0, 1.0, 2.0]))
    job = digits_job(137, precise=True)
    recipe = replace(RECIPE, shares="weighted")
    shards, _ = deal(problem, job.samples, tmp_path)
    together = train(problem, shards, recipe, job, speed=1e6)
    model, held = copy.deepcopy(job.model), [np.array(shard.samples()) for shard in shards]
    optimizer, steps = torch.optim.SGD(model.parameters(), job.lr), steps_of(137, recipe.batch)
    work = problem.seconds_per_sample
    for epoch in range(recipe.epochs):
        split = [visits_by_speed(held[i], work, i, recipe, steps, epoch) for i in range(3)]
        for own in zip(*split, strict=True):
            q = np.array([len(part) for part in own]) / sum(map(len, own))
            share = np.sqrt(q * np.array([90, 40, 7]) / 137)
            optimizer.zero_grad()
            for part, weight in zip(own, share / share.sum(), strict=True):
                rows = (job.samples.arrays(int(k)) for k in part)
                x, y = (torch.from_numpy(np.stack(leaf)) for leaf in zip(*rows, strict=True))
                (job.loss_fn(model(x), y) * float(weight)).backward()
            optimizer.step()
    for name, value in model.named_parameters():
        apart = together.state[f"parameter:{name}"] - value.detach()
        assert float(apart.abs().max()) < 1e-12


def test_weights_of_nodes() -> None:
    """One where a step takes of each node what it holds; none for a node without samples."""
    assert node_weights([60, 30, 0], [4, 2, 0]).tolist() == [1.0, 1.0, 0.0]
    weights = node_weights([90, 10], [5, 5])
    assert weights[0] / weights[1] == pytest.approx(3.0)
    assert weights.mean() == pytest.approx(1.0)
    with pytest.raises(InputError, match="not exchanged have no weight"):
        Recipe(shares="weighted", local_steps=2)


def test_a_run_measures_plan_and_baselines() -> None:
    """Each on files of its own; only the plan and what the judge knows have predictions."""
    problem = tiny([60, 8], epochs=1)
    plan = SamplePlan(np.array([0]), np.array([1]), np.array([24]))
    runs = run(problem, plan, digits_job(68), recipe=Recipe(epochs=1), speed=50.0)
    by_name = {r.name: r for r in runs}
    assert list(by_name) == ["plan", "none", "lb-bsp", "weighted", "proportional", "fedavg"]
    assert by_name["plan"].moved_samples == 24
    assert by_name["none"].move_s == 0.0
    assert by_name["lb-bsp"].predicted_s is None
    assert by_name["none"].predicted_s == pytest.approx(6.0)
    assert all(r.measured_s > 0 for r in runs)
