"""A training loop on placed steps gives the results of an ordinary one."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path

import pytest
import torch

from placewright.adapt.training_loop import TrainingLoop
from placewright.capturing.model import capture_call
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.deployment.training import OperatorTraining
from placewright.errors import RunError
from placewright.operators.adaptive.run import AdaptiveJob, AdaptiveRun
from placewright.profiling.profiler import profile
from tests.operators.adaptive.jobs import TRIO, net

LOSS = torch.nn.functional.mse_loss


def trainer_of(
    model: torch.nn.Module, example: tuple[torch.Tensor, torch.Tensor], folder: Path
) -> TrainingLoop[AdaptiveRun]:
    """On three devices of this machine, costs by formula."""
    inputs, targets = example
    source = ModelSource(model, inputs, LOSS, targets, "net")
    captured = capture_call(source, training=True)
    problem = profile(captured.graph, TRIO, method="analytic")
    job = AdaptiveJob(captured.graph, TRIO, problem, initial_state(source, captured.program))
    return TrainingLoop(OperatorTraining(captured, AdaptiveRun(job, folder)))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Six batches of a regression."""
    made = torch.Generator().manual_seed(3)
    return [
        (torch.randn(5, 6, generator=made), torch.randn(5, 3, generator=made)) for _ in range(6)
    ]


def plain_losses(
    model: torch.nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[float]:
    """An ordinary loop."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_and_parameters_equal_a_plain_loop(tmp_path: Path) -> None:
    """Six different batches through placed steps and through torch.optim.Adam."""
    model, data = net(), batches()
    plain = copy.deepcopy(model)
    with trainer_of(model, data[0], tmp_path) as trainer:
        losses = [trainer.step(x, y) for x, y in trainer.remaining(data)]
        trainer.finish()
    assert losses == plain_losses(plain, data)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(model[1].running_mean, plain[1].running_mean)


def test_a_second_trainer_takes_the_batches_that_are_left(tmp_path: Path) -> None:
    """After four of six batches the next run in this folder gets two; the one after it gets none
    and has the trained model all the same.
    """
    data, plain = batches(), net()
    plain_losses(plain, data)
    for done in (0, 4, 6):
        with trainer_of(net(), data[0], tmp_path) as trainer:
            assert trainer.steps_done == done
            left = list(trainer.remaining(data))
            assert len(left) == 6 - done
            for x, y in left[:4]:
                trainer.step(x, y)
            trained = trainer.finish()
    for a, b in zip(trained.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_full_disk_at_the_end_loses_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the snapshot is missing is an error, and so is asking a trainer that is closed."""
    data, model, plain = batches(), net(), net()
    plain_losses(plain, data[:1])
    with trainer_of(model, data[0], tmp_path) as trainer:
        trainer.step(*data[0])
        monkeypatch.setattr(AdaptiveJob, "state_bytes", 1 << 62)
        with pytest.raises(RunError, match="the last snapshot is not written"):
            trainer.finish()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(RunError, match="closed"):
        trainer.finish()


def test_a_loop_may_use_one_buffer_for_all_batches(tmp_path: Path) -> None:
    """Steps that are repeated after a fault take what was in it then."""
    data, losses = batches(), []
    x, y = (torch.empty_like(tensor) for tensor in data[0])
    with trainer_of(net(), data[0], tmp_path) as trainer:
        for inputs, targets in data:
            losses.append(trainer.step(x.copy_(inputs), y.copy_(targets)))
            if len(losses) == 4:
                session = trainer.run.session
                assert session is not None
                os.kill(session.group.processes[0].pid or 0, signal.SIGKILL)
    assert losses == plain_losses(net(), data)
