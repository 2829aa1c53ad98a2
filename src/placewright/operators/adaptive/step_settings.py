"""StepSettings: the numbers that are fed with every batch: learning rates, scales, accumulation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

import torch

from placewright.capturing.recipe import TrainingRecipe
from placewright.capturing.user_optimizer import (
    FIRST,
    HOLD,
    INVERSE,
    SCALE,
    check_settings,
    current_settings,
)
from placewright.errors import InputError
from placewright.graph.program import Program

_PLAIN = (bool, str, type(None))
"""Settings of a group that are no numbers."""


class StepSettings:
    """Knows the optimizer, the scaler and the schedulers of a training loop.

    They are the user's own objects, in the process of the loop: workers get numbers.

    `schedulers`: stepped after every update, and kept in snapshots.
    """

    def __init__(
        self,
        program: Program,
        recipe: TrainingRecipe | None = None,
        schedulers: tuple[Any, ...] = (),
    ) -> None:
        self.program, self.recipe = program, recipe or TrainingRecipe()
        given = self.recipe.optimizer
        self.optimizer = given if isinstance(given, torch.optim.Optimizer) else None
        self.schedulers, self.done = schedulers, 0
        self._checked: tuple[list[Any], dict[str, Any]] = ([], {})
        self._groups = 0 if self.optimizer is None else len(self.optimizer.param_groups)
        for scheduler in schedulers:
            _check_stepped(scheduler, self.optimizer)
            _check_kept(scheduler)

    def before(self, step: int, program: Program | None = None) -> dict[str, torch.Tensor]:
        """Settings that a step is fed with beside its batch, by program input.

        `step`: its number, from 1.
        `program`: for a batch of another shape, the one that was captured for it.
        """
        if self.optimizer is None:
            return {}
        if len(self.optimizer.param_groups) != self._groups:
            raise InputError(
                "the optimizer has other parameter groups than when the model was placed",
                where=f"optimizer {type(self.optimizer).__name__}",
                by=f"{len(self.optimizer.param_groups)} groups, {self._groups} then",
                hint="finish this trainer and make another one with the new groups",
            )
        # Schedulers warn where they step before an optimizer that they have not seen a step of.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        found = current_settings(program or self.program, self.optimizer)
        self._check(found)
        if self.recipe.accumulate > 1:
            found[FIRST] = torch.tensor([float((step - 1) % self.recipe.accumulate == 0)]).double()
            found[HOLD] = torch.tensor([float(not self._updates(step))]).double()
        if self.recipe.scales:
            assert self.recipe.scaler is not None
            scale = torch.tensor(self.recipe.scaler.get_scale(), dtype=torch.float32)
            # In float64, as GradScaler does.
            found |= {SCALE: scale, INVERSE: scale.double().reciprocal().float()}
        return found

    def _check(self, settings: Mapping[str, torch.Tensor]) -> None:
        """Look at what else has changed where a number has become 0, or is no longer 0.

        Schedules change learning rates in every step, and a full look takes milliseconds.
        """
        assert self.optimizer is not None
        plain = [
            tuple((k, v) for k, v in group.items() if isinstance(v, _PLAIN))
            for group in self.optimizer.param_groups
        ]
        zeros = {name: (values == 0).tolist() for name, values in settings.items()}
        if (plain, zeros) != self._checked:
            if self._checked != ([], {}):
                check_settings(self.program, self.optimizer)
            self._checked = plain, zeros

    def after(self, step: int, scalars: Mapping[str, float]) -> None:
        """Take in that a step has been done: the scaler's and the schedulers' own steps."""
        self.done = step
        if not self._updates(step):
            return
        if self.recipe.scales:
            self._update_scaler(scalars["found_inf"])
        for scheduler in self.schedulers:
            try:
                scheduler.step()
            except ValueError as error:  # OneCycleLR after its last step
                raise InputError(
                    "a scheduler cannot be stepped any more",
                    where=f"{_scheduler_name(scheduler)}, step {step}",
                    by=" ".join(str(error).split()),
                    hint="make it for as many updates as the loop does; this step is done and kept",
                ) from error

    def _updates(self, step: int) -> bool:
        return step % self.recipe.accumulate == 0

    def _update_scaler(self, found_inf: float) -> None:
        """Let the scaler grow or shrink, as if it had looked at the gradients itself."""
        scaler, here = self.recipe.scaler, torch.device("cpu")
        assert scaler is not None
        if scaler._scale is None:
            scaler._lazy_init_scale_growth_tracker(here)
        found = torch.tensor(found_inf, dtype=torch.float32)
        scaler._per_optimizer_states[id(self.optimizer)]["found_inf_per_device"] = {here: found}
        scaler.update()

    def state_dict(self, scalars: Mapping[str, float]) -> dict[str, Any]:
        """Groups' numbers, scaler and schedulers, as plain data.

        `scalars`: of the last step, which `after` may not have taken in yet.
        """
        if self.optimizer is None:
            return {}
        scaler = self.recipe.scaler.state_dict() if self.recipe.scaler is not None else {}
        return {
            "groups": [
                {k: v for k, v in group.items() if k not in ("params", "param_names")}
                for group in self.optimizer.param_groups
            ],
            "done": self.done,
            "scalars": dict(scalars),
            "scaler": scaler,
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Go on from what `state_dict` gave when `step` steps had been done."""
        if self.optimizer is None or not state:
            return
        for what, here, there in (
            ("parameter groups", self._groups, len(state["groups"])),
            ("schedulers", len(self.schedulers), len(state["schedulers"])),
            ("scalers", int(self.recipe.scales), int(bool(state["scaler"]))),
        ):
            if here != there:
                raise InputError(
                    f"the snapshot was written with other {what}",
                    where=f"the snapshot of step {step}",
                    by=f"{there} there, {here} here",
                    hint="make the optimizer, its scaler and its schedulers as in the run that is "
                    "continued, or name another folder",
                )
        for group, kept in zip(self.optimizer.param_groups, state["groups"], strict=True):
            group |= {k: tuple(v) if isinstance(v, list) else v for k, v in kept.items()}
        if self.recipe.scaler is not None and state["scaler"]:
            self.recipe.scaler.load_state_dict(state["scaler"])
        for scheduler, kept in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(kept)
        # The snapshot was written between the step and `after`: the schedulers' own step is made up
        # for.
        if state["done"] < step:
            self.after(step, state["scalars"])
        self.done = step


def _scheduler_name(scheduler: Any) -> str:
    return f"scheduler {type(scheduler).__name__}"


def _check_stepped(scheduler: Any, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise for what would have no effect, or cannot be stepped after every update."""
    what = by = hint = ""
    step = getattr(scheduler, "step", None)
    if not callable(step) or not hasattr(scheduler, "state_dict"):
        what, by = "this is no learning-rate scheduler", f"got {scheduler!r:.60}"
        hint = "give objects of torch.optim.lr_scheduler"
    elif optimizer is None:
        what, by = "a scheduler needs an optimizer object", "the optimizer was given by name"
        hint = "give optimizer=torch.optim.Adam(model.parameters(), ...), and make it from that"
    elif getattr(scheduler, "optimizer", optimizer) is not optimizer:
        what, by = "the scheduler is of another optimizer", "it would change nothing here"
        hint = "make it from the optimizer object that the model is placed with"
    elif any(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in _arguments(step)):
        what, by = "the scheduler is stepped with a metric", "step() has arguments without defaults"
        hint = "leave it out of schedulers and call its step(metric) in the loop: what it sets "
        hint += "takes effect in the next step"
    if what:
        raise InputError(what, where=_scheduler_name(scheduler), by=by, hint=hint)


def _arguments(function: Any) -> list[Parameter]:
    return list(signature(function).parameters.values())


def _check_kept(scheduler: Any) -> None:
    try:
        json.dumps(scheduler.state_dict())
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(
            "the state of a scheduler cannot be kept in snapshots",
            where=_scheduler_name(scheduler),
            by=str(error),
            hint="its state_dict() must hold numbers, strings, lists and dicts; or step it in the "
            "loop instead of giving it to the trainer",
        ) from error
