"""Stage 3: what a recipe does with gradients, and one update per parameter, as operators.

Updates are appended after the trace because the fused kernels cannot be functionalized (PyTorch
2.13), and they change only what lives on the parameter's device, so no parameter is ever copied.

`append_recipe`:

    backward -> accumulate -> unscale -> clip by value -> norms -> total -> clip -> update
                per parameter                             |        one       per parameter

Each arrow is a tensor of the graph, so that what must be known everywhere (the total norm, whether
anything overflowed) travels like any other tensor, in an order that eager mode has too: the
placed step rounds as eager does, on any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from placewright.capturing.lowering import Call, Lowered
from placewright.capturing.source import ModelSource, TrainingRecipe
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
from placewright.errors import UnsupportedError
from placewright.graph.graph import (
    Const,
    Instruction,
    ProgramInput,
    ProgramOutput,
    Ref,
    TensorSpec,
    input_name,
)

ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
"""The defaults of `torch.optim.Adam`."""
_FLOPS = {"adam": 15.0, "sgd": 2.0, "step": 1.0, "update": 15.0, "accumulate": 1.0}
"""For each element of the parameter; Adam: two averages, their corrections, a root, a quotient.

An update by a class counts as Adam: analytic costs are those of its bytes anyway.
"""


_PER_ELEMENT = ("clamped", "clipped")


def append_updates(lowered: Lowered, optimizer: str, lr: float) -> Lowered:
    """Append the built-in update of every parameter that has a gradient."""
    make, settings = _UPDATES[optimizer]
    specs, updates = lowered.specs(), Updates(lr)
    for key, gradient in lowered.gradients.items():
        parameter = specs[input_name("parameter", key)]
        strided = updates.like_parameter(key, parameter, gradient, specs[gradient])
        make(updates, key, parameter, strided)
    made = lowered.extended(updates.inputs, updates.calls)
    return replace(made, optimizer={"name": optimizer, "lr": lr, **settings})


class Updates:
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
        average, square = (self.state(key, kind, spec) for kind in ("exp_avg", "exp_avg_sq"))
        count = TensorSpec((), "float32", ())
        step = self.state(key, "step", count)
        self.update(key, "step", count, "aten.add_.Tensor", (Ref(step), 1), {}, (step,))
        tensors = (parameter, gradient, average, square)
        args = (*((Ref(name),) for name in tensors), (), (Ref(step),))
        kwargs = {"lr": self.lr, **ADAM, "amsgrad": False, "maximize": False}
        changed = (parameter, average, square)
        self.update(key, "adam", spec, "aten._fused_adam_.default", args, kwargs, changed)

    def sgd(self, key: str, spec: TensorSpec, gradient: str) -> None:
        """``parameter -= lr * gradient``."""
        parameter = input_name("parameter", key)
        args, scale = (Ref(parameter), Ref(gradient)), {"alpha": -self.lr}
        self.update(key, "sgd", spec, "aten.add_.Tensor", args, scale, (parameter,))

    def like_parameter(self, key: str, wanted: TensorSpec, gradient: str, given: TensorSpec) -> str:
        """The gradient with the parameter's strides, as autograd leaves it in ``.grad``.

        The fused kernels read memory in order, whatever the strides.
        """
        sizes = zip(wanted.shape, wanted.stride, given.stride, strict=True)
        if all(size == 1 or one == other for size, one, other in sizes):
            return gradient
        options = {"dtype": Const("dtype", wanted.dtype), "device": Const("device", "cpu")}
        size = (wanted.shape, wanted.stride)
        empty = self.call(key, "room", wanted, "aten.empty_strided.default", size, options)
        args = (Ref(empty), Ref(gradient))
        return self.call(key, "gradient", wanted, "aten.copy.default", args, {})

    def state(self, key: str, kind: str, spec: TensorSpec) -> str:
        """A new tensor of state; the name of the program input."""
        key = f"{key}/{kind}"
        self.inputs.append(ProgramInput(input_name("state", key), "state", key, spec))
        return self.inputs[-1].name

    def update(
        self,
        key: str,
        kind: str,
        spec: TensorSpec,
        target: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        changed: tuple[str, ...],
    ) -> None:
        """A call that changes program inputs in place."""
        call = Instruction(f"{key}/{kind}", target, args, kwargs, (), mutates=changed)
        flops = _FLOPS[kind] * math.prod(spec.shape)
        module = key.rpartition(".")[0]
        self.calls.append(Call(call, (), "optimizer", module, elementwise_flops=flops))

    def call(
        self,
        key: str,
        kind: str,
        spec: TensorSpec,
        target: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> str:
        """A call with one result; its name."""
        name = f"{key}/{kind}"
        call = Instruction(name, target, args, kwargs, (name,))
        work = float(math.prod(spec.shape)) if kind in _PER_ELEMENT else 0.0
        module = key.rpartition(".")[0]
        self.calls.append(Call(call, (spec,), "optimizer", module, elementwise_flops=work))
        return name


_UPDATES: dict[str, tuple[Callable[[Updates, str, TensorSpec, str], None], dict[str, float]]] = {
    "adam": (Updates.adam, ADAM),
    "sgd": (Updates.sgd, {}),
}


_EPSILON = 1e-6
"""That ``torch.nn.utils.clip_grad_norm_`` adds to the norm."""


def append_recipe(lowered: Lowered, recipe: TrainingRecipe, source: ModelSource) -> Lowered:
    """Append all that happens with gradients."""
    if recipe.built_in:
        return append_updates(lowered, recipe.built_in, recipe.lr)
    parameters = source.parameters()
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


_ADDED = "accumulated"
"""Kind of the state in which gradients of several steps are added up."""


def accumulated_gradients(state: Mapping[str, Any]) -> dict[str, Any]:
    """Those in the state of a program that are kept for a later update."""
    return {name: value for name, value in state.items() if name.endswith(f"/{_ADDED}")}


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
            kept = self.state(key, _ADDED, self.specs[key])
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
