"""Trainer: a user's own loop in five lines, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import placewright
from placewright.errors import InputError, RunError, UnsupportedError
from tests.operators.adaptive.jobs import TRIO, net
from tests.operators.adaptive.test_trainer import LOSS, batches


def test_five_lines_train_the_model_and_its_optimizer(tmp_path: Path) -> None:
    """On workers of this machine; a second trainer goes on where the first one stopped."""
    data = batches()
    for part in (data[:2], data[2:4]):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        half = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        with placewright.Trainer(
            model,
            data[0][0],
            TRIO,
            loss_fn=LOSS,
            targets=data[0][1],
            optimizer=optimizer,
            schedulers=half,
            folder=tmp_path,
            method="analytic",
            planner="heft",
        ) as trainer:
            for x, y in trainer.remaining(data[: trainer.steps_done + len(part)]):
                trainer.step(x, y)
            assert trainer.finish() is model
    assert trainer.steps_done == 4
    assert optimizer.param_groups[0]["lr"] == 1e-2 * 0.5**4
    assert optimizer.state[model[0].weight]["step"] == 4
    with pytest.raises(RunError, match="closed"):
        trainer.step(*data[0])


def test_an_optimizer_that_workers_cannot_run_is_named() -> None:
    """Before any worker is started, with a way out."""
    model, (x, y) = net(), batches()[0]
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(UnsupportedError, match=r"(?s)optimizer LBFGS: .*closure.*AdamW"):
        placewright.Trainer(model, x, TRIO, loss_fn=LOSS, targets=y, optimizer=optimizer)
    stranger = torch.optim.AdamW(net().parameters())
    with pytest.raises(InputError, match="a parameter that the model does not have"):
        placewright.Trainer(model, x, TRIO, loss_fn=LOSS, targets=y, optimizer=stranger)
