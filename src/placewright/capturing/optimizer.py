"""Stage 3, `append_updates`: one update per parameter, after a lowered training step.

They are appended after the trace because the fused kernels cannot be functionalized (PyTorch
2.13), and they change only what lives on the parameter's device, so no parameter is ever copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from placewright.capturing.lowered import Call, Lowered, input_name
from placewright.errors import UnsupportedError
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Const, Instruction, ProgramInput, Ref

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
