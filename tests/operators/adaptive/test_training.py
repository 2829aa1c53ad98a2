"""Training with a custom optimizer on workers equals an ordinary loop."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from placewright.adapt.training_loop import TrainingLoop
from placewright.capturing.model import capture_call
from placewright.capturing.source import ModelSource, TrainingRecipe
from placewright.capturing.state import initial_state
from placewright.deployment.training import OperatorTraining
from placewright.errors import InputError
from placewright.operators.adaptive.run import AdaptiveJob, AdaptiveRun
from placewright.operators.check import rebound
from placewright.operators.plan import OperatorPlan
from placewright.profiling.profiler import profile
from tests.capturing.optimizers import Lion
from tests.operators.adaptive.jobs import TRIO, net
from tests.operators.adaptive.test_trainer import LOSS, batches


def trainer_of(
    model: torch.nn.Module,
    recipe: TrainingRecipe,
    folder: Path,
    schedulers: tuple[Any, ...] = (),
) -> TrainingLoop[AdaptiveRun]:
    """On three devices, every parameter on another one than its neighbours."""
    x, y = batches()[0]
    source = ModelSource(model, x, LOSS, y, "net", recipe)
    captured = capture_call(source, training=True)
    problem = profile(captured.graph, TRIO, method="analytic")
    groups = {g: k % 3 for k, g in enumerate(dict.fromkeys(problem.colocation.tolist()))}
    placement = [groups[g] for g in problem.colocation.tolist()]
    job = AdaptiveJob(captured.graph, TRIO, problem, initial_state(source, captured.program))
    plan = OperatorPlan(np.array(placement))
    run = AdaptiveRun(job, folder, plan=plan, adapt=False)
    return TrainingLoop(OperatorTraining(captured, run, schedulers=schedulers))


def plain(
    model: torch.nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[list[float], torch.optim.Optimizer]:
    """Losses of an ordinary loop that clips the sum of two batches' gradients."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    losses = []
    for step, (x, y) in enumerate(data, start=1):
        loss = LOSS(model(x), y)
        loss.backward()
        losses.append(loss.item())
        if step % 2 == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return losses, optimizer


def test_odd_batches_evaluation_and_faults_change_no_bit(tmp_path: Path) -> None:
    """A worker is killed while gradients are accumulated, and another loop continues the first.

    Replayed steps take the learning rates of then; the schedule goes on where it was.
    """
    data, losses, expected = batches(), list[float](), net()
    data[2], data[4] = ((x[:3], y[:3]) for x, y in (data[2], data[4]))
    wanted, twin = plain(expected, data)
    for rounds in (4, 6):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        recipe = TrainingRecipe(optimizer, clip_norm=0.5, accumulate=2, outputs=True)
        with trainer_of(model, recipe, tmp_path, (schedule,)) as trainer:
            for x, y in list(trainer.remaining(data))[: rounds - len(losses)]:
                if len(losses) == 3:
                    session = trainer.run.session
                    assert session is not None
                    os.kill(session.group.processes[1].pid or 0, signal.SIGKILL)
                losses.append(trainer.step(x, y))
                assert trainer.outputs().shape == y.shape
            assert set(trainer.metrics) == {"loss", "grad_norm"}
            scores = trainer.evaluate(data[2][0])
            trainer.finish()
        torch.testing.assert_close(scores, model.eval()(data[2][0]), rtol=0, atol=1e-6)
    assert losses == wanted
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    kept, other = optimizer.state_dict(), twin.state_dict()
    torch.testing.assert_close(kept["state"], other["state"], rtol=0, atol=0)
    assert kept["param_groups"][0]["lr"] == other["param_groups"][0]["lr"]


def test_another_dtype_is_named(tmp_path: Path) -> None:
    """Shapes may differ, dtypes may not."""
    x, y = batches()[0]
    recipe = TrainingRecipe(clip_norm=1.0)
    with (
        trainer_of(net(), recipe, tmp_path) as trainer,
        pytest.raises(InputError, match=r"(?s)input 0 differs.*\.to\(torch.float32"),
    ):
        trainer.step(x.double(), y)


def test_a_users_class_with_groups_and_a_schedule_equals_an_ordinary_loop(tmp_path: Path) -> None:
    """Losses, parameters and the optimizer's state on three workers, to the last bit."""
    model, data = net(), batches()
    groups = [{"params": model[0].parameters()}, {"params": model[1:].parameters(), "lr": 0.01}]
    optimizer, eager = Lion(groups, weight_decay=0.1), copy.deepcopy(model)
    of_copy = dict(zip(map(id, model.parameters()), eager.parameters(), strict=True))
    twin = rebound(optimizer, of_copy)
    plain, placed = (torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (twin, optimizer))
    expected, losses = [], []
    torch.manual_seed(0)
    for x, y in data:
        twin.zero_grad()
        loss = LOSS(eager(x), y)
        loss.backward()
        twin.step()
        plain.step()
        expected.append(loss.item())
    with trainer_of(model, TrainingRecipe(optimizer), tmp_path) as trainer:
        for x, y in data:
            losses.append(trainer.step(x, y))
            placed.step()
        trainer.finish()
    assert losses == expected
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict(), twin.state_dict(), rtol=0, atol=0)
