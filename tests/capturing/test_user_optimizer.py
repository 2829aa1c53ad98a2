"""Updates by a custom optimizer class, captured and interpreted, equal eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, OneCycleLR

from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, TrainingRecipe
from placewright.capturing.state import initial_state
from placewright.capturing.user_optimizer import (
    current_settings,
    parameter_rules,
    write_optimizer_state,
)
from placewright.errors import InputError, PlacewrightError, UnsupportedError
from placewright.graph.files import graph_from_json, graph_json
from placewright.operators.check import rebound
from tests.capturing.optimizers import Counting, Lion, Mixing, Noisy
from tests.capturing.reference_interpreter import run

LOSS = nn.functional.mse_loss


def net() -> nn.Module:
    """Two layers; parameters of three shapes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def groups(model: Any) -> list[dict[str, Any]]:
    """Two groups with other learning rates."""
    return [
        {"params": list(model[0].parameters()), "lr": 3e-3},
        {"params": [*model[1].parameters(), *model[2].parameters()], "lr": 1e-2},
    ]


MAKERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "nesterov": lambda g: optim.SGD(g, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "fused": lambda g: optim.AdamW(g, fused=True),
    "adagrad": lambda g: optim.Adagrad(g, initial_accumulator_value=0.1),
    "rmsprop": lambda g: optim.RMSprop(g, centered=True, momentum=0.5),
    "lion": Lion,
}


def schedule(optimizer: optim.Optimizer) -> LRScheduler:
    """One that moves momenta too where there are any."""
    if optimizer.defaults.keys() & {"betas", "momentum"}:
        return OneCycleLR(optimizer, [1e-2, 2e-2], total_steps=20)
    return ExponentialLR(optimizer, 0.9)


def trained_eagerly(model: nn.Module, optimizer: optim.Optimizer, steps: int) -> list[float]:
    """Losses of an ordinary loop with a schedule."""
    scheduler, losses = schedule(optimizer), []
    torch.manual_seed(0)
    x, y = torch.randn(5, 6), torch.randn(5, 3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", MAKERS)
def test_six_steps_equal_eager_with_its_state(name: str) -> None:
    """Losses, parameters, and the optimizer's own state after them, to the last bit."""
    model = net()
    optimizer, eager = MAKERS[name](groups(model)), copy.deepcopy(model)
    of_copy = dict(zip(map(id, model.parameters()), eager.parameters(), strict=True))
    twin = rebound(optimizer, of_copy)
    expected = trained_eagerly(eager, twin, 6)
    torch.manual_seed(0)
    x, y = torch.randn(5, 6), torch.randn(5, 3)
    source = ModelSource(model, x, LOSS, y, "net", TrainingRecipe(optimizer))
    graph = graph_from_json(graph_json(capture_source(source, training=True)), where="here")
    state, scheduler, losses = initial_state(source, graph.program), schedule(optimizer), []
    optimizer._opt_called = True  # type: ignore[attr-defined]
    for _ in range(6):
        state |= current_settings(graph.program, optimizer)
        losses.append(float(run(graph, state)["loss"]))
        scheduler.step()
    assert losses == expected
    for key, value in eager.named_parameters():
        assert torch.equal(state[f"parameter:{key}"], value)
    write_optimizer_state(graph.program, optimizer, source.parameters(), state)
    torch.testing.assert_close(optimizer.state_dict(), twin.state_dict(), rtol=0, atol=0)


def test_state_that_is_there_already_goes_on() -> None:
    """An optimizer that was used before begins with what it holds, and its bytes are counted."""
    model = net()
    optimizer, x = Lion(model.parameters()), torch.ones(2, 6)
    model(x).sum().backward()
    optimizer.step()
    source = ModelSource(model, x, None, None, "net", TrainingRecipe(optimizer))
    graph = capture_source(source, training=True)
    state = initial_state(source, graph.program)
    kept = optimizer.state[model[2].weight]
    assert torch.equal(state["state:2.weight/average"], kept["average"])
    assert state["state:2.weight/notes"].tolist() == [1.0, 1.0, 1.0]
    plain = capture_source(ModelSource(model, x, None, None), training=True, optimizer="sgd")
    parameters = sum(p.numel() * 4 for p in model.parameters())
    notes = 8 * 3 * len(list(model.parameters()))
    assert graph.resident_bytes == plain.resident_bytes + parameters + notes


def _inner() -> type[Lion]:
    class Local(Lion):
        """Cannot be imported."""

    return Local


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (optim.LBFGS, "LBFGS: the optimizer evaluates the loss by itself, by a closure"),
        (Mixing, "Mixing: the optimizer does not update each tensor by itself"),
        (Noisy, "Noisy: the optimizer draws random numbers"),
        (Counting, "Counting: .* outside of the state of its parameters .*self.steps"),
        (_inner(), "Local: workers cannot import"),
        (optim.SparseAdam, "SparseAdam: .* cannot update a small dense tensor"),
    ],
)
def test_what_workers_cannot_do_is_refused_by_name(
    make: Callable[[Any], optim.Optimizer], message: str
) -> None:
    """Before anything runs, and the caller's random numbers go on as they would have."""
    model = net()
    before = torch.get_rng_state()
    with pytest.raises(UnsupportedError, match=message):
        parameter_rules(make(model.parameters()), dict(model.named_parameters()))
    assert torch.equal(before, torch.get_rng_state())


def test_another_models_parameters_and_settings_are_refused() -> None:
    """The group is named, and what cannot be sent."""
    model = net()
    with pytest.raises(InputError, match="a parameter that the model does not have"):
        parameter_rules(optim.SGD(net().parameters()), dict(model.named_parameters()))
    odd = optim.SGD([{"params": model.parameters(), "hook": print}])
    with pytest.raises(InputError, match="group 0: the setting 'hook'"):
        parameter_rules(odd, dict(model.named_parameters()))
    with pytest.raises(PlacewrightError, match="clip_norm of TrainingRecipe: must be a number > 0"):
        TrainingRecipe(clip_norm=0.0)
