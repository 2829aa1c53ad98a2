"""Models to try Placewright on: our own short files, no weights.

A factory takes sizes by keyword and returns ``(model, inputs, loss_fn, targets)``. Its defaults
are the sizes of the paper; tests pass smaller ones. Built under ``torch.device("meta")`` a model
has shapes and no memory, which is all that planning needs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from placewright.errors import UnknownNameError
from placewright.io.arguments import checked

FACTORIES = {
    "alexnet": "placewright.capturing.zoo.convolutional:alexnet",
    "vgg16": "placewright.capturing.zoo.convolutional:vgg16",
    "inception_v3": "placewright.capturing.zoo.convolutional:inception_v3",
    "resnet50": "placewright.capturing.zoo.convolutional:resnet50",
    "rnnlm": "placewright.capturing.zoo.language:rnnlm",
    "gnmt": "placewright.capturing.zoo.language:gnmt",
    "bert": "placewright.capturing.zoo.language:bert",
    "gpt2": "placewright.capturing.zoo.language:gpt2",
}
"""Name -> ``module:function``; a module is imported when its model is asked for."""

TRAINING_BATCH = 4
"""Default samples per training step; the default of inference is one."""


@checked
def zoo_models() -> tuple[str, ...]:
    """Names of the models that ship with Placewright: `load_model` takes ``zoo:NAME``."""
    return tuple(FACTORIES)


def factory(name: str) -> Callable[..., Any]:
    """The factory of the model called `name`; `UnknownNameError` offers the nearest name."""
    if name not in FACTORIES:
        raise UnknownNameError("zoo model", name, FACTORIES)
    module, _, function = FACTORIES[name].partition(":")
    made: Callable[..., Any] = getattr(import_module(module), function)
    return made
