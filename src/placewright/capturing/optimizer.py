"""Updates of the parameters, appended to a lowered step, one parameter at a time.

They are appended after the trace because the fused kernels cannot be functionalized, and they
change only what lives on the parameter's device, so no copy of a parameter is ever made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from placewright.capturing.draft import Draft, Sketch, input_name
from placewright.errors import UnknownNameError, UnsupportedError
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Const, Instruction, ProgramInput, Ref

ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
"""The defaults of `torch.optim.Adam`."""
_FLOPS = {"adam": 15.0, "sgd": 2.0, "step": 1.0}
"""For each element of the parameter; Adam: two averages, their corrections, a root, a quotient."""


def append_updates(sketch: Sketch, optimizer: str, lr: float) -> Mapping[str, Any]:
    """Append the update of every parameter that has a gradient.

    Returns
    -------
    Mapping
        The optimizer's name and its settings.

    Raises
    ------
    UnknownNameError
        An optimizer other than ``adam`` and ``sgd``.
    """
    if optimizer not in _UPDATES:
        raise UnknownNameError("optimizer", optimizer, _UPDATES)
    update, settings = _UPDATES[optimizer]
    for key, gradient in sketch.gradients.items():
        update(sketch, key, _like_parameter(sketch, key, gradient), lr)
    return {"name": optimizer, "lr": lr, **settings}


def _adam(sketch: Sketch, key: str, gradient: str, lr: float) -> None:
    """``_fused_adam_`` on one parameter; it wants the step count already increased."""
    parameter = input_name("parameter", key)
    spec = sketch.specs[parameter]
    if spec.dtype.startswith("complex"):
        raise UnsupportedError(
            f"fused Adam takes no {spec.dtype}",
            where=f"parameter {key!r}",
            hint="choose the optimizer sgd",
        )
    average, square = (_state(sketch, f"{key}/{kind}", spec) for kind in ("exp_avg", "exp_avg_sq"))
    step = _state(sketch, f"{key}/step", TensorSpec((), "float32", ()))
    _add(sketch, key, "step", "aten.add_.Tensor", (Ref(step), 1), {}, (step,))
    args = ((Ref(parameter),), (Ref(gradient),), (Ref(average),), (Ref(square),), (), (Ref(step),))
    kwargs = {"lr": lr, **ADAM, "amsgrad": False, "maximize": False}
    changed = (parameter, average, square)
    _add(sketch, key, "adam", "aten._fused_adam_.default", args, kwargs, changed)


def _sgd(sketch: Sketch, key: str, gradient: str, lr: float) -> None:
    parameter = input_name("parameter", key)
    args = (Ref(parameter), Ref(gradient))
    _add(sketch, key, "sgd", "aten.add_.Tensor", args, {"alpha": -lr}, (parameter,))


_UPDATES: dict[str, tuple[Callable[[Sketch, str, str, float], None], dict[str, float]]] = {
    "adam": (_adam, ADAM),
    "sgd": (_sgd, {}),
}


def _like_parameter(sketch: Sketch, key: str, gradient: str) -> str:
    """The gradient with the parameter's strides, as autograd leaves it in ``.grad``.

    The fused kernels go through memory without looking at strides.
    """
    wanted, given = sketch.specs[input_name("parameter", key)], sketch.specs[gradient]
    if _same_strides(wanted, given):
        return gradient
    size, stride = wanted.shape, wanted.stride
    options = {"dtype": Const("dtype", wanted.dtype), "device": Const("device", "cpu")}
    room = _named(key, "room")
    call = Instruction(room, "aten.empty_strided.default", (size, stride), options, (room,))
    sketch.add(Draft(call, (wanted,), "optimizer", _module(key)))
    name = _named(key, "gradient")
    call = Instruction(name, "aten.copy.default", (Ref(room), Ref(gradient)), {}, (name,))
    return sketch.add(Draft(call, (wanted,), "optimizer", _module(key)))


def _same_strides(a: TensorSpec, b: TensorSpec) -> bool:
    sizes = zip(a.shape, a.stride, b.stride, strict=True)
    return all(size == 1 or one == other for size, one, other in sizes)


def _add(
    sketch: Sketch,
    key: str,
    kind: str,
    target: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    changed: tuple[str, ...],
) -> None:
    call = Instruction(_named(key, kind), target, args, kwargs, (), mutates=changed)
    count = _FLOPS[kind] * math.prod(sketch.specs[changed[0]].shape)
    sketch.add(Draft(call, (), "optimizer", _module(key), elementwise_flops=count))


def _state(sketch: Sketch, key: str, spec: TensorSpec) -> str:
    return sketch.add_input(ProgramInput(input_name("state", key), "state", key, spec))


def _named(key: str, kind: str) -> str:
    # Dots and slashes cannot occur in the names of traced operators, so nothing can clash.
    return f"{key}/{kind}"


def _module(key: str) -> str:
    return key.rpartition(".")[0]
