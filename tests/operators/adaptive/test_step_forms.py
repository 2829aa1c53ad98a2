"""Accumulation, clipping, casts and scaling of a step, interpreted, equal eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, TrainingRecipe
from placewright.capturing.state import initial_state
from placewright.errors import InputError
from placewright.graph.graph import Program
from placewright.operators.adaptive.step_forms import StepSettings
from placewright.operators.check import EagerSteps
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


def test_schedulers_that_would_do_nothing_or_cannot_be_stepped_are_refused() -> None:
    """Each with a way out; `step(metric)` in the loop is that of ReduceLROnPlateau."""
    model = nn.Linear(2, 1)
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=1.0) for _ in range(2))
    kinds = torch.optim.lr_scheduler
    for parameters, scheduler, text in (
        (optimizer, kinds.ReduceLROnPlateau(optimizer), r"metric.*step\(metric\) in the loop"),
        (optimizer, kinds.StepLR(other, 1), "of another optimizer.*make it from"),
        ("sgd", kinds.StepLR(other, 1), "needs an optimizer object.*give optimizer="),
        (optimizer, "cosine", "no learning-rate scheduler.*got 'cosine'"),
    ):
        with pytest.raises(InputError, match=f"(?s){text}"):
            StepSettings(Program((), (), ()), TrainingRecipe(parameters), (scheduler,))


def test_a_cycle_that_ends_and_groups_that_come_are_named() -> None:
    """OneCycleLR has so many steps; a group that is added later is on no worker."""
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=1.0, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=2)
    settings = StepSettings(Program((), (), ()), TrainingRecipe(optimizer), (cycle,))
    for step in (1, 2):
        settings.before(step)
        settings.after(step, {})
    with pytest.raises(InputError, match=r"(?s)OneCycleLR, step 3.*this step is done"):
        settings.after(3, {})
    optimizer.add_param_group({"params": nn.Linear(2, 1).parameters()})
    with pytest.raises(InputError, match=r"(?s)other parameter groups.*2 groups, 1 then"):
        settings.before(4)


def test_a_number_that_becomes_a_tensor_is_refused() -> None:
    """Before the step, as it is when a model is placed."""
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=1.0)
    settings = StepSettings(Program((), (), ()), TrainingRecipe(optimizer))
    settings.before(1)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
    with pytest.raises(InputError, match="'lr' of a parameter group cannot be sent"):
        settings.before(2)


def test_a_snapshot_with_other_schedulers_is_refused() -> None:
    """And one with other groups, or with a scaler; before anything of it is taken."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def settings(groups: int, schedulers: int, **more: Any) -> StepSettings:
        parts = [{"params": m.parameters()} for m in model] if groups == 2 else model.parameters()
        optimizer = torch.optim.SGD(parts, lr=1.0)
        halves = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) for _ in range(schedulers)]
        return StepSettings(Program((), (), ()), TrainingRecipe(optimizer, **more), tuple(halves))

    kept = settings(1, 1).state_dict({})
    for other, text in (
        (settings(2, 1), "other parameter groups.*1 there, 2 here"),
        (settings(1, 0), "other schedulers.*1 there, 0 here"),
        (settings(1, 1, scaler=scaler(4.0)), "other scalers.*0 there, 1 here"),
    ):
        with pytest.raises(InputError, match=f"(?s){text}.*or name another folder"):
            other.load_state_dict(kept, 3)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lr": "0.1"}, "lr of .*must be a number >= 0"),
        ({"lr": float("nan")}, "lr of .*must be a number >= 0"),
        ({"clip_norm": "1"}, "clip_norm of .*must be a number > 0"),
        ({"clip_value": float("nan")}, "clip_value of .*must be a number > 0"),
        ({"accumulate": 2.5}, "accumulate of .*must be a whole number >= 1"),
        ({"micro_batches": True}, "micro_batches of .*must be a whole number >= 1"),
        ({"autocast": "bf16"}, "autocast must be bfloat16 or float16"),
        ({"scaler": 2.0}, "scaler of .*must be a GradScaler"),
    ],
)
def test_a_wrong_recipe_is_named_in_four_parts(settings: dict[str, Any], text: str) -> None:
    """Also what Python would take for a number."""
    with pytest.raises(InputError, match=rf"(?s){text}.*got .*next: give"):
        TrainingRecipe(**settings)
