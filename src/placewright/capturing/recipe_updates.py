"""Stage 3, `append_recipe`: what a recipe does with gradients, and the updates, as operators.

    backward -> accumulate -> unscale -> clip by value -> norms -> total -> clip -> update
                per parameter                             |        one       per parameter

Each arrow is a tensor of the graph, so that what must be known everywhere (the total norm, whether
anything overflowed) travels like any other tensor, in an order that eager mode has too: the
placed step rounds as eager does, on any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from placewright.capturing.lowered import Call, Lowered, input_name
from placewright.capturing.named_state import parameters_of
from placewright.capturing.optimizer import Updates, append_updates
from placewright.capturing.recipe import TrainingRecipe
from placewright.capturing.source import ModelSource
from placewright.capturing.update_rule import ACCUMULATE, UNSCALE, UPDATE
from placewright.capturing.user_optimizer import (
    FIRST,
    HOLD,
    INVERSE,
    NOTES,
    ParameterRule,
    parameter_rules,
    settings_input,
)
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Instruction, ProgramInput, ProgramOutput, Ref

_EPSILON = 1e-6
"""That ``torch.nn.utils.clip_grad_norm_`` adds to the norm."""


def append_recipe(lowered: Lowered, recipe: TrainingRecipe, source: ModelSource) -> Lowered:
    """Append all that happens with gradients."""
    if recipe.built_in:
        return append_updates(lowered, recipe.built_in, recipe.lr)
    parameters = parameters_of(source)
    optimizer = recipe.optimizer
    assert isinstance(optimizer, torch.optim.Optimizer)
    rules, updates = parameter_rules(optimizer, parameters), _RecipeUpdates(lowered)
    hold, outputs = [], list[ProgramOutput]()
    if recipe.accumulate > 1:
        updates.accumulate()
        hold.append(updates.setting(HOLD, TensorSpec((1,), "float64", (1,))))
    if recipe.scales:
        hold.append(updates.unscale(rules))
        outputs.append(ProgramOutput("found_inf", hold[-1]))
    if recipe.clip_value is not None:
        updates.clip_values(recipe.clip_value)
    if recipe.clip_norm is not None:
        outputs.append(ProgramOutput("grad_norm", updates.clip_norm(recipe.clip_norm)))
    for key, gradient in updates.gradients.items():
        if key in rules:
            updates.by_rule(key, gradient, rules[key], hold)
    made = lowered.extended(updates.inputs, updates.calls)
    lr = max((float(g.get("lr", 0.0)) for g in optimizer.param_groups), default=0.0)
    return replace(
        made,
        outputs=(*made.outputs, *outputs),
        optimizer={"name": type(optimizer).__name__, "lr": lr},
    )


class _RecipeUpdates(Updates):
    """Stages between backward and update; `gradients` are those after the last stage."""

    def __init__(self, lowered: Lowered) -> None:
        super().__init__(0.0)
        specs = lowered.specs()
        self.specs = {key: specs[input_name("parameter", key)] for key in lowered.gradients}
        self.gradients = {
            key: self.like_parameter(key, self.specs[key], gradient, specs[gradient])
            for key, gradient in lowered.gradients.items()
        }

    def accumulate(self) -> None:
        """Add up the gradients of several steps, in tensors of state."""
        first = self.setting(FIRST, TensorSpec((1,), "float64", (1,)))
        for key, gradient in self.gradients.items():
            kept = self.state(key, "accumulated", self.specs[key])
            args = (Ref(kept), Ref(gradient), Ref(first))
            self.update(key, "accumulate", self.specs[key], ACCUMULATE, args, {}, (kept,))
            # From here on the gradient is the tensor of state, read behind its update.
            self.gradients[key] = kept

    def unscale(self, rules: Mapping[str, ParameterRule]) -> str:
        """Undo the scale of the loss; the value that says whether anything overflowed."""
        inverse = self.setting(INVERSE, _number("float32"))
        found = []
        for key in [key for key in self.gradients if key in rules]:
            name, spec = f"{key}/unscale", self.specs[key]
            results = (f"{name}.0", f"{name}.1")
            args = (Ref(self.gradients[key]), Ref(inverse))
            call = Instruction(name, UNSCALE, args, {}, results)
            module, work = key.rpartition(".")[0], float(math.prod(spec.shape))
            specs = (spec, _number("float32"))
            self.calls.append(Call(call, specs, "optimizer", module, elementwise_flops=work))
            self.gradients[key] = results[0]
            found.append(results[1])
        stacked = self._stack("overflow", found, "float32")
        return self.call("overflow", "any", _number("float32"), "aten.amax.default", stacked, {})

    def clip_values(self, limit: float) -> None:
        """As ``torch.nn.utils.clip_grad_value_``."""
        for key, gradient in self.gradients.items():
            args = (Ref(gradient), -limit, limit)
            self.gradients[key] = self.call(
                key, "clamped", self.specs[key], "aten.clamp.default", args, {}
            )

    def clip_norm(self, limit: float) -> str:
        """As ``torch.nn.utils.clip_grad_norm_``; the total norm."""
        norms = [self._norm(key, gradient) for key, gradient in self.gradients.items()]
        dtype = self.specs[next(iter(self.gradients))].dtype
        number, whole = _number(dtype), self._stack("clip", norms, dtype)
        norm, add = "aten.linalg_vector_norm.default", "aten.add.Tensor"
        total = self.call("clip", "norm", number, norm, (*whole, 2.0), {})
        above = self.call("clip", "above", number, add, (Ref(total), _EPSILON), {})
        inverse = self.call("clip", "inverse", number, "aten.reciprocal.default", (Ref(above),), {})
        scale = self.call("clip", "scale", number, "aten.mul.Tensor", (Ref(inverse), limit), {})
        # As PyTorch does: never scaled up, and without a branch on a value.
        most = (Ref(scale), None, 1.0)
        factor = self.call("clip", "factor", number, "aten.clamp.default", most, {})
        for key, gradient in self.gradients.items():
            args = (Ref(gradient), Ref(factor))
            self.gradients[key] = self.call(
                key, "clipped", self.specs[key], "aten.mul.Tensor", args, {}
            )
        return total

    def _norm(self, key: str, gradient: str) -> str:
        target, args = "aten.linalg_vector_norm.default", (Ref(gradient), 2.0)
        return self.call(key, "norm", _number(self.specs[key].dtype), target, args, {})

    def _stack(self, key: str, numbers: Sequence[str], dtype: str) -> tuple[Ref]:
        spec = TensorSpec((len(numbers),), dtype, (1,))
        parts = (tuple(map(Ref, numbers)),)
        return (Ref(self.call(key, "stack", spec, "aten.stack.default", parts, {})),)

    def by_rule(self, key: str, gradient: str, rule: ParameterRule, hold: Sequence[str]) -> None:
        """``placewright.update`` with the real class on one parameter."""
        parameter = input_name("parameter", key)
        settings = self.setting(
            settings_input(rule.group), TensorSpec((len(rule.rule.numbers),), "float64", (1,))
        )
        pairs = zip(rule.rule.tensors, rule.state, strict=True)
        state = tuple(self.state(key, name, each) for name, each in pairs)
        notes = self.state(key, NOTES, TensorSpec((rule.rule.note_count,), "float64", (1,)))
        args = (
            *(Ref(parameter), Ref(gradient)),
            tuple(map(Ref, state)),
            *(Ref(settings), Ref(notes)),
            tuple(map(Ref, hold)),
            rule.rule.text(),
        )
        self.update(key, "update", self.specs[key], UPDATE, args, {}, (parameter, *state, notes))

    def setting(self, name: str, spec: TensorSpec) -> str:
        """A program input that is fed with every batch; its name."""
        if all(entry.name != name for entry in self.inputs):
            key = name.partition(":")[2]
            self.inputs.append(ProgramInput(name, "setting", key, spec))
        return name


def _number(dtype: str) -> TensorSpec:
    return TensorSpec((), dtype, ())
