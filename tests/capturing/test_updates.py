"""What a plan of layers takes as an optimizer, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from placewright.capturing.source import TrainingRecipe
from placewright.capturing.updates import (
    check_parameters,
    current_settings,
    refuse_options,
    update_of,
)
from placewright.errors import InputError, PlacewrightError

OPTIM = torch.optim


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("given", "made", "moments"),
    [
        ("adam", OPTIM.Adam, 2),
        ("sgd", OPTIM.SGD, 0),
        (OPTIM.AdamW, OPTIM.AdamW, 2),
        (OPTIM.Adam(_layers().parameters(), lr=0.5, amsgrad=True), OPTIM.Adam, 3),
        (OPTIM.SGD(_layers().parameters(), lr=0.5, momentum=0.9), OPTIM.SGD, 1),
    ],
)
def test_a_name_a_class_and_an_object_make_the_same_kind(
    given: Any, made: type, moments: int
) -> None:
    """With its settings, and as many states as it has for each parameter."""
    update = update_of(given, 0.5)
    found = update.made(_layers().parameters())
    assert type(found) is made
    assert found.param_groups[0]["lr"] == 0.5
    assert len(update.moments) == moments
    if isinstance(given, OPTIM.Optimizer):
        ours, theirs = found.param_groups[0], given.param_groups[0]
        assert {**ours, "params": []} == {**theirs, "params": [], **_position(0)}


def _position(group: int) -> dict[str, Any]:
    return {"placewright_group": group}


def _two_groups() -> OPTIM.Optimizer:
    first, second = _layers()
    groups = [{"params": [*first.parameters()]}, {"params": [*second.parameters()], "lr": 0.2}]
    return OPTIM.AdamW(groups, lr=0.1)


def _two_kinds() -> OPTIM.Optimizer:
    first, second = _layers()
    groups = [{"params": [*first.parameters()]}, {"params": [*second.parameters()]}]
    made = OPTIM.SGD(groups, lr=0.1, momentum=0.9)
    made.param_groups[1]["nesterov"] = True
    return made


def _hooked() -> OPTIM.Optimizer:
    made = OPTIM.SGD(_layers().parameters(), 0.1)
    made.register_step_post_hook(lambda *_: None)
    return made


REFUSED: dict[str, tuple[Any, str]] = {
    "a class": (OPTIM.LBFGS, "LBFGS"),
    "an object": (OPTIM.Adagrad(_layers().parameters()), "Adagrad"),
    "a name": ("adamw", "adamw"),
    "groups of an unknown model": (_two_groups(), "lr 0.2, in the first 0.1"),
    "groups of two kinds": (_two_kinds(), "nesterov True, in the first False"),
    "micro-batches": (TrainingRecipe("sgd", micro_batches=4), "micro_batches=4"),
    "outputs": (TrainingRecipe("sgd", outputs=True), "outputs=True"),
    "an object in a recipe": (TrainingRecipe(OPTIM.Adagrad(_layers().parameters())), "Adagrad"),
    "a hook": (_hooked(), "hooks"),
    "a tensor": (OPTIM.Adam(_layers().parameters(), torch.tensor(0.1)), "'lr'"),
    "dampening": (OPTIM.SGD(_layers().parameters(), 0.1, 0.9, 0.5), "dampening"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_workers_cannot_do_is_refused_by_name(name: str) -> None:
    """With a hint."""
    given, says = REFUSED[name]
    with pytest.raises(PlacewrightError, match=says) as caught:
        update_of(given)
    assert caught.value.hint or name == "a name"


def test_groups_keep_their_numbers_by_name() -> None:
    """Also where an optimizer has parameters of some of the groups only."""
    model = _layers()
    first, second = model
    groups = [{"params": [*first.parameters()], "name": "a"}, {"params": [*second.parameters()]}]
    given = OPTIM.AdamW(groups, lr=0.1)
    given.param_groups[1].update(lr=1, weight_decay=0.0)
    update = update_of(given, model=model)
    named = {n: p for n, p in model.named_parameters() if n != "0.weight"}
    both, one = update.made(named.values(), named), update.made([second.weight], ["1.weight"])
    assert [len(g["params"]) for g in both.param_groups] == [1, 2]
    assert [g["lr"] for g in (*both.param_groups, *one.param_groups)] == [0.1, 1, 1]
    given.param_groups[1]["lr"] = 0.5
    for made in (both, one):
        update.set_numbers(made, current_settings(given, update).tolist())
    assert [g["lr"] for g in (*both.param_groups, *one.param_groups)] == [0.1, 0.5, 0.5]
    assert [g["weight_decay"] for g in both.param_groups] == [0.01, 0.0]


def test_groups_with_the_same_settings_are_one() -> None:
    """Numbers are read as they are now; those that decide what state there is may not change."""
    model = _layers()
    given = OPTIM.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
    placed = update_of(given)
    for group in given.param_groups:
        group["lr"] = 0.3
    (numbers,) = current_settings(given, placed).tolist()
    assert 0.3 in numbers
    for group in given.param_groups:
        group["momentum"] = 0.9
    with pytest.raises(InputError, match=r"momentum 0\.9"):
        current_settings(given, placed)


def test_an_optimizer_has_the_trained_parameters() -> None:
    """All of them, and none of another model."""
    model = _layers()
    with pytest.raises(InputError, match=r"without '1.weight'"):
        check_parameters(OPTIM.SGD(model[0].parameters(), 0.1), model, "layers")
    both = OPTIM.SGD([*model.parameters(), *_layers().parameters()], 0.1)
    with pytest.raises(InputError, match="of another model"):
        check_parameters(both, model, "layers")
    model[1].requires_grad_(False)
    check_parameters(OPTIM.SGD(model[0].parameters(), 0.1), model, "layers")


def test_options_that_a_program_does_not_know_are_refused_by_it() -> None:
    """Others, and recipes that leave them out, are not."""
    refuse_options("sgd", "accumulate")
    refuse_options(
        TrainingRecipe("sgd", scaler=torch.amp.GradScaler("cpu", enabled=False)), "scaler"
    )
    for name, value in {"accumulate": 4, "autocast": "bfloat16"}.items():
        with pytest.raises(PlacewrightError, match=f"{name}={value}"):
            refuse_options(
                replace(TrainingRecipe("sgd"), **{name: value}), "accumulate", "autocast"
            )
