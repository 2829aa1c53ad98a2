"""Training of a layer plan continues when a worker slows down or is killed."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from placewright.adapt.timeline import Kind
from placewright.capturing.source import ModelSource
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError, RunError
from placewright.layers.adaptive import AdaptiveLayerRun, problem_of
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.judge import judge
from placewright.layers.placed_training import train
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.problem import LayerProblem
from placewright.layers.run import trained_alone
from placewright.layers.training import train_steps
from placewright.layers.workers import Link
from tests.layers.models import language_model

TWO = Cluster((Device("a", node="m"), Device("b", node="n")), (), "two")


def test_shares_follow_a_slower_worker_and_survivors_go_on(tmp_path: Path) -> None:
    """Losses and parameters stay those of one process over the same batches."""
    source = language_model()
    drawn = torch.Generator().manual_seed(1)
    texts = [torch.randint(0, 50, (12, 8), generator=drawn) for _ in range(22)]
    batches = [((t[:, :-1].contiguous(),), t[:, 1:].contiguous()) for t in texts]
    losses, expected = trained_alone(source, batches, "sgd", 0.1)
    n = len(TracedModel(source).layers)
    halves = LayerPlan((Stage(0, n - 1, (Replica((0,), 6), Replica((1,), 6))),))
    events = {7: ("b", 30.0), 18: ("b", math.inf)}

    with train(source, cluster=TWO, plan=halves, optimizer="sgd", lr=0.1) as placed:
        with placed.trainer(
            tmp_path, planner="data", snapshot_every=8, disturbances=events
        ) as trainer:
            with pytest.raises(InputError, match="differs from the one"):
                trainer.step((texts[0][:, :-2],), texts[0][:, 2:])
            found = [trainer.step(*batch) for batch in batches]
            state, timeline = trainer.state_dict(), trainer.timeline
        with pytest.raises(RunError, match="belong to the trainer"):
            placed.run(1)

    assert found == pytest.approx(losses, rel=1e-5)
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5)
    kinds = [event.kind for event in timeline.events]
    assert Kind.MIGRATE in kinds[: kinds.index(Kind.FAULT)]
    assert Kind.RECOVER in kinds[kinds.index(Kind.FAULT) :]
    drifts = [e.numbers for e in timeline.events if e.kind is Kind.DRIFT and "b:" in e.text]
    # A busy machine may have slowed it a little before.
    assert any(drift["now_s"] > 3 * drift["before_s"] for drift in drifts)
    assert trainer.plan.workers == (0,)


def test_ctrl_c_ends_training_without_the_check() -> None:
    """The steps that are done are returned; one process would take as long again for them."""
    source = ModelSource(torch.nn.Linear(2, 2), 0, targets=0)
    job = SimpleNamespace(model=SimpleNamespace(source=source))
    plan = SimpleNamespace(stages=[SimpleNamespace(replicas=())])
    run = SimpleNamespace(
        job=job,
        session=object(),
        problem=None,
        loss=0.5,
        plan=plan,
        done=0,
        timeline=None,
        begin=None,
    )
    trainer: Any = SimpleNamespace(run=run, unread=nullcontext)

    def step(inputs: Any, targets: Any) -> float:
        run.done += 1
        if run.done == 2:
            raise KeyboardInterrupt
        return 1.0

    trainer.step = step
    trained = train_steps(trainer, 4, check=True)
    assert trained.losses == (1.0, 0.5)
    assert trained.max_rel_error is None


def test_every_disturbance_takes_place_once() -> None:
    """Also the second of two alike; a step that is repeated from a snapshot has none again."""
    taken: list[tuple[str, float]] = []
    events = {3: ("b", 2.0), 5: ("gone", 2.0), 9: ("b", 2.0)}
    run: Any = SimpleNamespace(
        disturbances=events,
        alive=lambda: ("a", "b"),
        _workers=lambda: SimpleNamespace(disturb=lambda *one: taken.append(one)),
    )
    for step in (3, 3, 5, 9):
        AdaptiveLayerRun._disturb(run, step)
    assert taken == [("b", 2.0)] * 2


def test_the_rest_of_a_problem_knows_how_slow_each_worker_is() -> None:
    """Costs of workers that stay, times their factors; links and layers as they were."""
    ones = np.ones((2, 1))
    each = np.array([[[[1.0, 2.0]]], [[[3.0, 4.0]]]])
    problem = LayerProblem(
        ("x", "y"),
        ones,
        ones,
        each,
        each,
        ("u", "v", "w"),
        (Link.linear(1e9, 1e-3),),
        np.zeros((1, 1), dtype=np.int64),
        8,
        kind_names=("fast", "slow"),
        worker_kind=np.array([0, 1, 0]),
    )

    left = problem_of(problem, ("v", "w"), {"w": 5.0})

    assert left.worker_names == ("v", "w")
    alone = [judge(left, LayerPlan((Stage(0, 1, (Replica((k,), 8),)),))).value for k in (0, 1)]
    before = [judge(problem, LayerPlan((Stage(0, 1, (Replica((k,), 8),)),))).value for k in (1, 2)]
    assert alone == pytest.approx([before[0], 5.0 * before[1]])
