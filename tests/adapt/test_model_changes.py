"""What a loop does with its model and optimizer between steps: as in eager, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import placewright
from placewright import Cluster, Device
from placewright.adapt.training_loop import ModelChanges
from placewright.capturing.guards import Guards
from placewright.errors import InputError
from tests.adapt.loop_changes import clip_after_reading, halve, reset_moments

DUO = Cluster((Device("a"), Device("b")), name="two")
X, Y = torch.randn(8, 6), torch.randn(8, 3)
loss_fn = nn.functional.mse_loss


Change = Callable[[nn.Sequential, torch.optim.Optimizer], Any]


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0), nn.BatchNorm1d(6), nn.Linear(6, 3))


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return list(model.state_dict().items())


TAKEN: dict[str, Change] = {
    "a frozen layer": lambda m, o: m[0].requires_grad_(False),
    "a dropout": lambda m, o: setattr(m[1], "p", 1.0),
    "a batch norm in evaluation": lambda m, o: m[2].eval(),
    "a hook": lambda m, o: m[3].register_forward_hook(lambda _m, _x, y: y * 2),
    "loaded weights": halve,
    "clipped weights, after they were read": clip_after_reading,
    "a learning rate": lambda m, o: o.param_groups[0].update(lr=0.01),
    "a cleared state": lambda m, o: o.state.clear(),
    "a changed state": reset_moments,
    "a loaded state": lambda m, o: o.load_state_dict(o.state_dict()),
}

REFUSED: dict[str, tuple[Change, str]] = {
    "weights that are not the newest": (
        lambda m, o: m[0].weight.data.clamp_(-0.05, 0.05),
        "the workers have newer values",
    ),
    "a loaded state, while the weights here are not the newest": (
        lambda m, o: o.load_state_dict(
            copy.deepcopy(torch.optim.Adam(m.parameters()).state_dict())
        ),
        "the workers have newer values",
    ),
    "amsgrad": (lambda m, o: o.param_groups[0].update(amsgrad=True), "amsgrad changed"),
    "another optimizer's parameters": (
        lambda m, o: o.param_groups[0]["params"].pop(),
        "other parameters",
    ),
}


def _losses(change: Change) -> tuple[list[float], list[float]]:
    """Of a placed loop and of an eager one, the change made before the third of five steps."""
    model = _model()
    eager = copy.deepcopy(model)
    mine, its = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, eager))
    got, want = [], []
    how: dict[str, Any] = {"loss_fn": loss_fn, "targets": Y, "optimizer": mine}
    with (
        placewright.place(
            model, X, DUO, training=True, planner="only:a", method="analytic", **how
        ) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        for step in range(5):
            if step == 2:
                change(model, mine)
            got.append(trainer.step(X, Y))
    for step in range(5):
        if step == 2:
            change(eager, its)
        its.zero_grad()
        value = loss_fn(eager(X), Y)
        value.backward()
        its.step()
        want.append(value.item())
    for (name, one), other in zip(_state(model), eager.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    return got, want


@pytest.mark.parametrize("name", TAKEN)
def test_a_change_between_steps_means_what_it_means_in_eager(name: str) -> None:
    """Losses and trained weights are equal bit for bit."""
    got, want = _losses(TAKEN[name])
    assert got == want


def test_gradients_that_are_added_up_outlive_other_weights() -> None:
    """Weights loaded between the first and the second step of an update; freezing is refused."""
    model = _model()
    eager = copy.deepcopy(model)
    mine, its = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, eager))
    recipe = placewright.TrainingRecipe(mine, accumulate=2)
    how: dict[str, Any] = {"loss_fn": loss_fn, "targets": Y, "optimizer": recipe}
    with (
        placewright.place(
            model, X, DUO, training=True, planner="only:a", method="analytic", **how
        ) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        for step in range(6):
            if step == 3:
                halve(model, mine)
            if step == 5:
                model[0].requires_grad_(False)
                with pytest.raises(InputError, match="added up"):
                    trainer.step(X, Y)
                model[0].requires_grad_(True)
            trainer.step(X, Y)
    for step in range(6):
        if step == 3:
            halve(eager, its)
        loss_fn(eager(X), Y).backward()
        if step % 2:
            its.step()
            its.zero_grad()
    for (name, one), other in zip(_state(model), eager.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("name", REFUSED)
def test_a_change_that_cannot_be_taken_over_is_refused(name: str) -> None:
    """With what has changed and what to do."""
    change, says = REFUSED[name]
    with pytest.raises(InputError, match=says) as caught:
        _losses(change)
    assert caught.value.hint


def test_a_continued_run_has_newer_weights_than_the_model() -> None:
    """Reading them before the first step writes them into the model."""
    model = _model()

    def fetch() -> None:
        with torch.no_grad():
            model[0].weight.fill_(3.0)

    changes = ModelChanges(
        Guards(model, training=True),
        None,
        fetch=fetch,
        put=lambda: None,
        recapture=lambda: None,
        done=lambda: 5,
    )
    assert (model.state_dict()["0.weight"] == 3.0).all()
    model[0].weight.data.zero_()
    assert changes.follow()
    changes.close()


def test_momentum_that_needs_state_is_refused() -> None:
    """The placed step keeps no buffers for it."""
    model = _model()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    with placewright.Trainer(
        *(model, X, DUO), loss_fn=loss_fn, targets=Y, optimizer=sgd, method="analytic", adapt=False
    ) as trainer:
        trainer.step(X, Y)
        sgd.param_groups[0]["momentum"] = 0.9
        with pytest.raises(InputError, match="needs the state momentum_buffer"):
            trainer.step(X, Y)


def test_a_layer_that_was_frozen_when_it_was_placed_stays_so() -> None:
    """Workers keep no state for it; a check follows what can be followed."""
    model = _model()
    model[3].requires_grad_(False)
    with placewright.Trainer(
        *(model, X, DUO), loss_fn=loss_fn, targets=Y, method="analytic", adapt=False, check=True
    ) as trainer:
        trainer.step(X, Y)
        model[0].requires_grad_(False)
        trainer.step(X, Y)
        model[3].requires_grad_(True)
        with pytest.raises(InputError, match=r"'3\.weight' requires a gradient"):
            trainer.step(X, Y)
        model[3].requires_grad_(False)


def test_what_a_loop_reads_is_the_newest() -> None:
    """The model's and the optimizer's state, as many steps as were done."""
    model = _model()
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    with placewright.Trainer(
        *(model, X, DUO), loss_fn=loss_fn, targets=Y, optimizer=adam, method="analytic", adapt=False
    ) as trainer:
        before = {name: value.clone() for name, value in _state(model)}
        for steps in (1, 2):
            trainer.step(X, Y)
            now = dict(_state(model))
            assert not torch.equal(now["0.weight"], before["0.weight"])
            assert all(torch.equal(now[k], v) for k, v in trainer.state_dict().items())
            state = adam.state_dict()["state"]
            assert {float(kept["step"]) for kept in state.values()} == {float(steps)}
            before = {name: value.clone() for name, value in now.items()}
    assert type(adam.state).__name__ == "defaultdict"
