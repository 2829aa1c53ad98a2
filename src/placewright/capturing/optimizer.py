"""Stage 3, `append_updates`: one update per parameter, after a lowered training step.

They are appended after the trace because the fused kernels cannot be functionalized (PyTorch
2.13), and they change only what lives on the parameter's device, so no parameter is ever copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from placewright.capturing.lowered import Call, Lowered, input_name
from placewright.capturing.named_state import parameters_of
from placewright.capturing.recipe import TrainingRecipe
from placewright.capturing.source import ModelSource
from placewright.capturing.update_rule import UPDATE
from placewright.capturing.user_optimizer import (
    NOTES,
    ParameterRule,
    parameter_rules,
    settings_input,
)
from placewright.errors import UnsupportedError
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Const, Instruction, ProgramInput, Ref

ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
"""The defaults of `torch.optim.Adam`."""
_FLOPS = {"adam": 15.0, "sgd": 2.0, "step": 1.0, "update": 15.0}
"""For each element of the parameter; Adam: two averages, their corrections, a root, a quotient.

An update by a class counts as Adam: analytic costs are those of its bytes anyway.
"""


def append_updates(lowered: Lowered, recipe: TrainingRecipe, source: ModelSource) -> Lowered:
    """Append the update of every parameter that has a gradient."""
    if not recipe.built_in:
        return _by_recipe(lowered, recipe, source)
    make, settings = _UPDATES[recipe.built_in]
    specs, updates = lowered.specs(), _Updates(recipe.lr)
    for key, gradient in lowered.gradients.items():
        parameter = specs[input_name("parameter", key)]
        strided = updates.like_parameter(key, parameter, gradient, specs[gradient])
        make(updates, key, parameter, strided)
    made = lowered.extended(updates.inputs, updates.calls)
    return replace(made, optimizer={"name": recipe.built_in, "lr": recipe.lr, **settings})


def _by_recipe(lowered: Lowered, recipe: TrainingRecipe, source: ModelSource) -> Lowered:
    """Accumulate, clip, and update by the real class of an optimizer object."""
    parameters = parameters_of(source)
    trained = [parameters[key] for key in lowered.gradients]
    optimizer = recipe.resolved(trained).optimizer
    assert isinstance(optimizer, torch.optim.Optimizer)
    rules = parameter_rules(optimizer, parameters)
    specs = lowered.specs()
    updates = _Updates(optimizer.param_groups[0].get("lr", 0.0))
    specs_of = {key: specs[input_name("parameter", key)] for key in lowered.gradients}
    gradients = {
        key: updates.like_parameter(key, specs_of[key], gradient, specs[gradient])
        for key, gradient in lowered.gradients.items()
    }
    for key, gradient in gradients.items():
        if key in rules:
            updates.by_rule(key, specs_of[key], gradient, rules[key], ())
    made = lowered.extended(updates.inputs, updates.calls)
    name = type(optimizer).__name__
    lr = max((float(g.get("lr", 0.0)) for g in optimizer.param_groups), default=0.0)
    return replace(made, optimizer={"name": name, "lr": lr})


class _Updates:
    """New program inputs and calls, in order.

    Names are ``KEY/KIND``: no traced operator's name has a dot or a slash, so none can clash.
    """

    def __init__(self, lr: float) -> None:
        self.lr = lr
        self.inputs: list[ProgramInput] = []
        self.calls: list[Call] = []

    def adam(self, key: str, spec: TensorSpec, gradient: str) -> None:
        """``_fused_adam_`` on one parameter; it wants the step count already increased."""
        if spec.dtype.startswith("complex"):
            raise UnsupportedError(
                f"fused Adam takes no {spec.dtype}",
                where=f"parameter {key!r}",
                hint="choose the optimizer sgd",
            )
        parameter = input_name("parameter", key)
        average, square = (self._state(key, kind, spec) for kind in ("exp_avg", "exp_avg_sq"))
        count = TensorSpec((), "float32", ())
        step = self._state(key, "step", count)
        self._update(key, "step", count, "aten.add_.Tensor", (Ref(step), 1), {}, (step,))
        tensors = (parameter, gradient, average, square)
        args = (*((Ref(name),) for name in tensors), (), (Ref(step),))
        kwargs = {"lr": self.lr, **ADAM, "amsgrad": False, "maximize": False}
        changed = (parameter, average, square)
        self._update(key, "adam", spec, "aten._fused_adam_.default", args, kwargs, changed)

    def sgd(self, key: str, spec: TensorSpec, gradient: str) -> None:
        """``parameter -= lr * gradient``."""
        parameter = input_name("parameter", key)
        args, scale = (Ref(parameter), Ref(gradient)), {"alpha": -self.lr}
        self._update(key, "sgd", spec, "aten.add_.Tensor", args, scale, (parameter,))

    def by_rule(
        self, key: str, spec: TensorSpec, gradient: str, rule: ParameterRule, hold: Sequence[str]
    ) -> None:
        """``placewright.update`` with the real class on one parameter."""
        parameter = input_name("parameter", key)
        settings = self._setting(settings_input(rule.group), len(rule.rule.numbers))
        pairs = zip(rule.rule.tensors, rule.state, strict=True)
        state = tuple(self._state(key, name, each) for name, each in pairs)
        notes = self._state(key, NOTES, TensorSpec((rule.rule.note_count,), "float64", (1,)))
        args = (
            *(Ref(parameter), Ref(gradient)),
            tuple(map(Ref, state)),
            *(Ref(settings), Ref(notes)),
            tuple(map(Ref, hold)),
            rule.rule.text(),
        )
        self._update(key, "update", spec, UPDATE, args, {}, (parameter, *state, notes))

    def _setting(self, name: str, size: int) -> str:
        if all(entry.name != name for entry in self.inputs):
            key = name.partition(":")[2]
            spec = TensorSpec((size,), "float64", (1,))
            self.inputs.append(ProgramInput(name, "setting", key, spec))
        return name

    def like_parameter(self, key: str, wanted: TensorSpec, gradient: str, given: TensorSpec) -> str:
        """The gradient with the parameter's strides, as autograd leaves it in ``.grad``.

        The fused kernels read memory in order, whatever the strides.
        """
        sizes = zip(wanted.shape, wanted.stride, given.stride, strict=True)
        if all(size == 1 or one == other for size, one, other in sizes):
            return gradient
        options = {"dtype": Const("dtype", wanted.dtype), "device": Const("device", "cpu")}
        size = (wanted.shape, wanted.stride)
        empty = self._call(key, "room", wanted, "aten.empty_strided.default", size, options)
        args = (Ref(empty), Ref(gradient))
        return self._call(key, "gradient", wanted, "aten.copy.default", args, {})

    def _state(self, key: str, kind: str, spec: TensorSpec) -> str:
        key = f"{key}/{kind}"
        self.inputs.append(ProgramInput(input_name("state", key), "state", key, spec))
        return self.inputs[-1].name

    def _update(
        self,
        key: str,
        kind: str,
        spec: TensorSpec,
        target: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        changed: tuple[str, ...],
    ) -> None:
        call = Instruction(f"{key}/{kind}", target, args, kwargs, (), mutates=changed)
        flops = _FLOPS[kind] * math.prod(spec.shape)
        module = key.rpartition(".")[0]
        self.calls.append(Call(call, (), "optimizer", module, elementwise_flops=flops))

    def _call(
        self,
        key: str,
        kind: str,
        spec: TensorSpec,
        target: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> str:
        name = f"{key}/{kind}"
        call = Instruction(name, target, args, kwargs, (name,))
        self.calls.append(Call(call, (spec,), "optimizer", key.rpartition(".")[0]))
        return name


_UPDATES: dict[str, tuple[Callable[[_Updates, str, TensorSpec, str], None], dict[str, float]]] = {
    "adam": (_Updates.adam, ADAM),
    "sgd": (_Updates.sgd, {}),
}
