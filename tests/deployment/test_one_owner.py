"""A state has one owner at a time: the model, the workers of calls, or an open trainer."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import placewright
from placewright.adapt.training_loop import UnfinishedWarning
from placewright.deployment.placed_model import PlacedModel
from placewright.errors import InputError, RunError, UnsupportedError, WorkerError
from placewright.io.tensor_files import stored_tensors
from tests.deployment.test_calls import placed

X, Y = torch.randn(5, 6), torch.ones(5, 3)


def net() -> nn.Linear:
    """The same one every time."""
    torch.manual_seed(0)
    return nn.Linear(6, 3)


def trained(steps: int) -> Tensor:
    """The weight after so many eager steps."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(X), Y).backward()
        optimizer.step()
    return model.weight.detach()


@pytest.fixture
def up() -> Iterator[PlacedModel]:
    """A placed training step of `net`."""
    model = net()
    settings: dict[str, Any] = {"loss_fn": nn.functional.mse_loss, "targets": Y, "training": True}
    settings["optimizer"] = torch.optim.SGD(model.parameters(), 0.1)
    with placed(model, X, **settings) as made:
        yield made


def weight_of(up: PlacedModel) -> Tensor:
    """That of the user's model."""
    return up.workload.source.model.weight.detach()  # type: ignore[union-attr]


def test_what_is_saved_while_a_trainer_is_open_is_what_it_has_learned(
    up: PlacedModel, tmp_path: Path
) -> None:
    """By every way out; calls, which would compute with other weights, are refused."""
    with up.trainer() as trainer:
        assert torch.equal(up.state_dict()["weight"], trained(0))
        for _ in range(2):
            trainer.step(X, Y)
        saved = stored_tensors(up.save_pretrained(tmp_path))
        plain = up.to_module().weight
        assert isinstance(plain, Tensor)
        for found in (saved["weight"].read(), plain, up.state_dict()["weight"]):
            assert torch.allclose(found, trained(2), atol=1e-6)
            assert torch.equal(found, trainer.state_dict()["weight"])
        with torch.no_grad():  # after the last step: the model's are the newest
            weight_of(up).fill_(0.5)
        plain = up.to_module().weight
        assert isinstance(plain, Tensor)
        for found in (up.state_dict()["weight"], plain, trainer.state_dict()["weight"]):
            assert torch.equal(found, torch.full_like(found, 0.5))
        weight_of(up).copy_(trained(2))
        for attempt in (lambda: up(X), lambda: list(up.stream([X])), up.trainer):
            with pytest.raises(InputError, match=r"trainer of the placed model is open"):
                attempt()
        # What Trainer has, too.
        assert trainer.placed is up
        assert (trainer.steps_done, set(trainer.metrics)) == (2, {"loss"})
        assert trainer.evaluate(X).shape == (5, 3)
        trainer.finish()
    assert torch.allclose(up(X), nn.functional.linear(X, trained(2), weight_bias(up)), atol=1e-6)


def weight_bias(up: PlacedModel) -> Tensor:
    """The bias of the user's model."""
    return up.workload.source.model.bias.detach()  # type: ignore[union-attr]


def test_a_block_that_ends_well_keeps_what_was_learned(up: PlacedModel) -> None:
    """Though the loop did not call finish(); once is enough."""
    with up.trainer() as trainer, warnings.catch_warnings():
        warnings.simplefilter("error", UnfinishedWarning)
        trainer.step(X, Y)
    assert torch.allclose(weight_of(up), trained(1), atol=1e-6)


def test_a_block_that_ends_in_an_error_leaves_the_model_as_it_was(up: PlacedModel) -> None:
    """The error has a note of that."""
    trainer = up.trainer()

    def loop() -> None:
        with trainer:
            trainer.step(X, Y)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        loop()
    assert torch.equal(weight_of(up), trained(0))
    (note,) = caught.value.__notes__
    assert "the model does not have what was learned (steps 1 to 1)" in note


def test_a_trainer_that_is_closed_unfinished_warns(up: PlacedModel) -> None:
    """Not one that has finished."""
    trainer = up.trainer()
    trainer.step(X, Y)
    with pytest.warns(UnfinishedWarning, match="finish"):
        trainer.close()
    trainer = up.trainer()
    trainer.step(X, Y)
    trainer.finish()
    trainer.close()
    assert torch.allclose(weight_of(up), trained(1), atol=1e-6)


class Cache(nn.Module):
    """Adds up what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        """The sum so far."""
        self.total.add_(x)  # type: ignore[operator]
        return self.total * self.scale  # type: ignore[operator, no-any-return]


def test_buffers_that_calls_have_changed_are_not_lost_in_silence() -> None:
    """After the death of their worker calls and saves are refused until the buffers are set."""
    model, x = Cache().eval(), torch.ones(3)
    with placed(model, x) as up:
        assert up(x).tolist() == [1, 1, 1]
        assert up(x).tolist() == [2, 2, 2]
        session = up.workers.up
        assert session is not None
        for process in session.group.processes:  # type: ignore[attr-defined]
            os.kill(process.pid or 0, signal.SIGKILL)
        with pytest.raises(WorkerError):
            up(x)
        for attempt in (lambda: up(x), up.state_dict, up.to_module):
            with pytest.raises(RunError, match=r"'?total'?(?s:.*)lost with the workers"):
                attempt()
        model.total.fill_(2)  # type: ignore[operator]
        assert up(x).tolist() == [3, 3, 3]


def test_another_use_of_the_workers_does_not_reset_buffers_in_silence() -> None:
    """A run loads the model's own buffers; a change of the model sets them."""
    model, x = Cache().eval(), torch.ones(3)
    with placewright.place(model, x, method="analytic", planner="heft") as up:
        up(x)
        up.run(1)
        with pytest.raises(RunError, match="lost with the workers"):
            up(x)
        model.load_state_dict(Cache().state_dict())
        assert up(x).tolist() == [1, 1, 1]


def test_a_stream_does_not_reset_buffers_in_silence() -> None:
    """It begins with the model's own, keeps them from batch to batch, and takes them with it."""
    model, x = Cache().eval(), torch.ones(3)
    with placed(model, x) as up:
        assert [y.tolist()[0] for y in up.stream([x, x, x])] == [1, 2, 3]
        for attempt in (lambda: up(x), up.state_dict):
            with pytest.raises(RunError, match="lost with the workers"):
                attempt()
        with pytest.raises(InputError, match=r"total(?s:.*)3 calls or batches"):
            list(up.stream([x]))
        model.total.fill_(2)  # type: ignore[operator]
        assert up(x).tolist() == [3, 3, 3]
        with pytest.raises(InputError, match="begins with the model's own buffers"):
            list(up.stream([x]))
        model.load_state_dict(up.state_dict())
        got = up.stream([x, torch.ones(1)])
        assert next(got).tolist() == [4, 4, 4]
        with pytest.raises(UnsupportedError, match="another shape"):
            next(got)
