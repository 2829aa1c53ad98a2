"""Placed training draws the random numbers that the plain loop draws."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import placewright
from placewright import Cluster, Device, LayerPlan, Link
from placewright.adapt.snapshot import RANDOM
from placewright.adapt.training_loop import TrainingProgram
from placewright.capturing.program_calls import random_state, set_random_state
from placewright.layers.plan import Replica, Stage

TWO = Cluster(
    (Device("a"), Device("b")), (Link("a", "b", 1e9, 1e-5), Link("b", "a", 1e9, 1e-5)), "two"
)
X, Y = torch.randn(16, 6), torch.randn(16, 2)
Step = Callable[[torch.Tensor, torch.Tensor], float]


def dropped() -> nn.Module:
    """Three dropouts, so that every stage of two has one."""
    layers = (nn.Linear(6, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(8, 2), nn.Dropout(0.1))


def seeded_loop(step: Step) -> Iterator[float]:
    """A loop that shuffles and seeds as it likes; the last batch is smaller."""
    for k in range(4):
        if k in (0, 2):
            torch.manual_seed(7 + k)
        rows = torch.randperm(16)[: 8 if k == 3 else 16]
        yield step(X[rows], Y[rows])
    yield float(torch.rand(1))


def plainly(model: nn.Module) -> Step:
    """The step of an ordinary loop."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def settings(model: nn.Module) -> dict[str, Any]:
    """Of a placed training step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return {"loss_fn": nn.functional.mse_loss, "targets": Y, "optimizer": optimizer}


@pytest.fixture(scope="module")
def plain() -> tuple[list[float], nn.Module, nn.Module]:
    """What the plain loop gives, its model as it was, and as it is then."""
    model = dropped()
    begun = copy.deepcopy(model)
    found = [*seeded_loop(plainly(model))]
    return found, begun, model


def assert_trained(model: nn.Module, trained: nn.Module) -> None:
    """Every weight is equal."""
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, trained.state_dict()[name], rtol=0, atol=1e-7)


def test_a_trainer_draws_as_the_loop_does(
    plain: tuple[list[float], nn.Module, nn.Module], tmp_path: Path
) -> None:
    """Bit for bit, in a run that is continued from its snapshot, and in its check."""
    losses, begun, trained = plain
    options = {"training": True, "planner": "round-robin", "method": "analytic"}
    model = copy.deepcopy(begun)
    with placewright.place(model, X, TWO, **options, **settings(model)) as placed:
        with placed.trainer(check=True) as trainer:
            assert [*seeded_loop(trainer.step)] == losses
            trainer.finish()
        assert_trained(model, trained)
    model, other = copy.deepcopy(begun), copy.deepcopy(begun)
    torch.manual_seed(1)
    want = [step(X, Y) for step in [plainly(other)] * 3]
    with placewright.place(model, X, TWO, **options, **settings(model)) as placed:
        torch.manual_seed(1)
        with placed.trainer(tmp_path) as trainer:
            found = [trainer.step(X, Y), trainer.step(X, Y)]
            trainer.finish()
        torch.manual_seed(99)  # another process begins with other numbers
        with placed.trainer(tmp_path) as trainer:
            found.append(trainer.step(X, Y))
            trainer.finish()
    assert found == want
    assert_trained(model, other)


@pytest.mark.parametrize("cut", [None, 3])
def test_stages_draw_one_after_another(
    plain: tuple[list[float], nn.Module, nn.Module], cut: int | None
) -> None:
    """One worker, or two with a dropout each, of which one is killed."""
    losses, begun, trained = plain
    model = copy.deepcopy(begun)
    alone = LayerPlan((Stage(0, 2, (Replica((0,), 16),)),))
    two = Stage(0, 1, (Replica((0,), 16),)), Stage(2, 2, (Replica((1,), 16),))
    killed = {} if cut is None else {cut: ("b", float("inf"))}
    plan = alone if cut is None else LayerPlan(two)
    with placewright.train(model, X, TWO, plan=plan, trials=False, **settings(model)) as placed:
        placed.run(1, check=True)
        with placed.trainer(disturbances=killed) as trainer:
            found = [*seeded_loop(trainer.step)]
            trainer.finish()
    assert found == pytest.approx(losses, abs=1e-6)
    assert found[-1] == losses[-1]
    assert_trained(model, trained)


def test_an_interrupt_behind_a_step_leaves_the_generator_behind_it_too() -> None:
    """The next step draws other numbers; one that was not done is drawn again."""
    log = SimpleNamespace(restored_random=b"")
    run = SimpleNamespace(done=0, random=b"", log=log)
    program: Any = SimpleNamespace(run=run)
    torch.manual_seed(0)
    before = random_state()
    torch.rand(3)
    after = random_state()

    def interrupted(done: int) -> None:
        with TrainingProgram.drawing(program, {}, draws=True) as batch:
            assert bytes(batch[RANDOM].numpy()) == before
            run.done, run.random = done, after
            raise KeyboardInterrupt

    for done, left in ((0, before), (1, after)):
        set_random_state(before)
        run.done = 0
        with pytest.raises(KeyboardInterrupt):
            interrupted(done)
        assert random_state() == left
