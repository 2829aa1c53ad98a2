"""Accumulation, clipping, casts and scales of a step, interpreted beside eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from placewright.capturing.model import capture_source
from placewright.capturing.recipe import TrainingRecipe
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.errors import InputError
from placewright.graph.program import Program
from placewright.operators.adaptive.step_settings import StepSettings
from placewright.runtime.eager import EagerSteps
from tests.capturing.reference_interpreter import run
from tests.operators.adaptive.jobs import net


def scaler(scale: float) -> torch.amp.GradScaler:
    """One that grows after two good steps."""
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)


RECIPES: dict[str, Callable[[], dict[str, Any]]] = {
    "clipped sums": lambda: {"clip_norm": 0.1, "clip_value": 0.05, "accumulate": 2},
    "bfloat16": lambda: {"autocast": "bfloat16", "outputs": True},
    "overflow": lambda: {"scaler": scaler(2.0**126)},
    "all": lambda: {
        "clip_norm": 0.1,
        "accumulate": 3,
        "scaler": scaler(8.0),
        "autocast": "bfloat16",
    },
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_rounds_as_eager_does(name: str) -> None:
    """Seven steps: losses, parameters and the scale, to the last bit."""
    model = net()
    x, y = torch.randn(5, 6), torch.randn(5, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recipe = TrainingRecipe(optimizer, **RECIPES[name]())
    source = ModelSource(model, x, nn.functional.mse_loss, y, "net", recipe)
    eager = EagerSteps(source, training=True, threads=torch.get_num_threads())
    runs = [eager.step() for _ in range(7)]
    graph = capture_source(source, training=True)
    state, settings = initial_state(source, graph.program), StepSettings(graph.program, recipe)
    torch.manual_seed(0)
    for step, expected in enumerate(runs, start=1):
        state |= settings.before(step)
        made = run(graph, state)
        settings.after(step, {n: v.item() for n, v in made.items() if v.numel() == 1})
        assert made["loss"].item() == expected.outputs[0].item()
    for key, value in eager.model.named_parameters():
        assert torch.equal(state[f"parameter:{key}"], value)
    if recipe.scaler is not None:
        assert eager._source.recipe is not None
        assert eager._source.recipe.scaler is not None
        assert recipe.scaler.state_dict() == eager._source.recipe.scaler.state_dict()
    assert ("output" in made) == recipe.outputs


def test_what_the_loop_keeps_is_restored() -> None:
    """Where a snapshot was written before the loop took a step in, the step is taken in after."""
    model = nn.Linear(2, 1)

    def settings() -> StepSettings:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        half = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        recipe = TrainingRecipe(optimizer, scaler=scaler(4.0))
        return StepSettings(Program((), (), ()), recipe, (half,))

    def found(made: StepSettings) -> tuple[float, float]:
        assert made.optimizer is not None
        assert made.recipe.scaler is not None
        return made.optimizer.param_groups[0]["lr"], made.recipe.scaler.get_scale()

    first = settings()
    first.before(1)
    first.after(1, {"found_inf": 0.0})
    first.before(2)
    early, late = first.state_dict({"found_inf": 1.0}), settings()
    first.after(2, {"found_inf": 1.0})
    late.load_state_dict(early, 2)
    assert found(late) == found(first) == (0.25, 2.0)
    late = settings()
    late.load_state_dict(first.state_dict({"found_inf": 1.0}), 2)
    assert found(late) == (0.25, 2.0)


def test_a_scheduler_without_plain_state_is_refused() -> None:
    """By its class, before the first step."""
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=1.0)
    odd = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    odd.extra = torch.ones(1)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="scheduler StepLR"):
        StepSettings(Program((), (), ()), TrainingRecipe(optimizer), (odd,))
