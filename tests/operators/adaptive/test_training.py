"""Training with a user's optimizer on workers, beside an ordinary loop."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch

from placewright.capturing.model import capture_source
from placewright.capturing.recipe import TrainingRecipe
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.capturing.user_optimizer import rebound
from placewright.operators.adaptive.job import Job
from placewright.operators.adaptive.run import AdaptiveRun
from placewright.operators.adaptive.trainer import Trainer
from placewright.operators.plan import OperatorPlan
from placewright.profiling.build import profile
from tests.capturing.optimizers import Lion
from tests.operators.adaptive.jobs import TRIO, net
from tests.operators.adaptive.test_trainer import LOSS, batches


def trainer_of(model: torch.nn.Module, recipe: TrainingRecipe, folder: Path) -> Trainer:
    """On three devices, every parameter on another one than its neighbours."""
    x, y = batches()[0]
    source = ModelSource(model, x, LOSS, y, "net", recipe)
    graph = capture_source(source, training=True)
    problem = profile(graph, TRIO, method="analytic")
    groups = {g: k % 3 for k, g in enumerate(dict.fromkeys(problem.colocation.tolist()))}
    placement = [groups[g] for g in problem.colocation.tolist()]
    job = Job(graph, TRIO, problem, initial_state(source, graph.program))
    plan = OperatorPlan(np.array(placement))
    return Trainer(model, AdaptiveRun(job, folder, plan=plan, adapt=False), source)


def test_a_users_class_with_groups_and_a_schedule_equals_an_ordinary_loop(tmp_path: Path) -> None:
    """Losses, parameters and the optimizer's state on three workers, to the last bit."""
    model, data = net(), batches()
    groups = [{"params": model[0].parameters()}, {"params": model[1:].parameters(), "lr": 0.01}]
    optimizer, eager = Lion(groups, weight_decay=0.1), copy.deepcopy(model)
    of_copy = dict(zip(map(id, model.parameters()), eager.parameters(), strict=True))
    twin = rebound(optimizer, of_copy)
    plain, placed = (torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (twin, optimizer))
    expected, losses, threads = [], [], torch.get_num_threads()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # results depend on their number in the last bit
    for x, y in data:
        twin.zero_grad()
        loss = LOSS(eager(x), y)
        loss.backward()
        twin.step()
        plain.step()
        expected.append(loss.item())
    torch.set_num_threads(threads)
    with trainer_of(model, TrainingRecipe(optimizer), tmp_path) as trainer:
        for x, y in data:
            losses.append(trainer.step(x, y))
            placed.step()
        trainer.finish()
    assert losses == expected
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict(), twin.state_dict(), rtol=0, atol=0)
