"""Trainer: an ordinary loop, ordinary results."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from placewright.adapt.trainer import Trainer
from placewright.errors import InputError
from tests.adapt.jobs import TRIO, net


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Six batches of a regression."""
    made = torch.Generator().manual_seed(3)
    return [
        (torch.randn(5, 6, generator=made), torch.randn(5, 3, generator=made)) for _ in range(6)
    ]


def plain_losses(
    model: torch.nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[float]:
    """An ordinary loop on one thread: results depend on their number in the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.set_num_threads(threads)
    return losses


def test_losses_and_parameters_equal_a_plain_loop(tmp_path: Path) -> None:
    """Six different batches through placed steps and through torch.optim.Adam."""
    model, data, loss_fn = net(), batches(), torch.nn.functional.mse_loss
    plain = copy.deepcopy(model)
    with Trainer(model, data[0], loss_fn, cluster=TRIO, folder=tmp_path) as trainer:
        losses = [trainer.step(x, y) for x, y in trainer.remaining(data)]
        trainer.finish()
    assert losses == plain_losses(plain, data)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(model[1].running_mean, plain[1].running_mean)


def test_a_second_trainer_takes_the_batches_that_are_left(tmp_path: Path) -> None:
    """After four of six batches the next run in this folder gets two."""
    data = batches()
    with Trainer(net(), data[0], cluster=TRIO, folder=tmp_path) as trainer:
        for x, y in data[:4]:
            trainer.step(x, y)
        trainer.finish()
    with Trainer(net(), data[0], cluster=TRIO, folder=tmp_path) as again:
        assert again.steps_done == 4
        assert len(list(again.remaining(data))) == 2


def test_a_batch_of_another_shape_is_named(tmp_path: Path) -> None:
    """The error gives both shapes and says what a loader can do."""
    x, y = batches()[0]
    with (
        Trainer(net(), (x, y), cluster=TRIO, folder=tmp_path) as trainer,
        pytest.raises(InputError, match=r"\(4, 6\) float32, the example has \(5, 6\)"),
    ):
        trainer.step(x[:4], y)
