"""Models to try Placewright on: our own short files, no weights.

A factory takes sizes by keyword and returns ``(model, inputs, loss_fn, targets)``. Its defaults
are the sizes of the paper; tests pass smaller ones. Built under ``torch.device("meta")`` a model
has shapes and no memory, which is all that planning needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from placewright.errors import check_known
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

EXAMPLES = {
    "small_gpt": (
        "placewright.capturing.zoo.language:small_gpt",
        "placewright.capturing.zoo.language:text_batches",
    ),
}
"""Name -> model that is trained in a moment, and its data: ``batches(samples)`` without end."""

TRAINING_BATCH = 4
"""Default samples per training step; the default of inference is one."""


@checked
def zoo_models() -> tuple[str, ...]:
    """Names of the models that ship with Placewright: `load_model` takes ``zoo:NAME``."""
    return tuple(FACTORIES)


def zoo_batches(source: str) -> Callable[[int], Iterator[tuple[Any, Any]]] | None:
    """The data of ``zoo:NAME``: inputs and targets of so many samples, batch by batch.

    ``None`` where the model has no more than the batch that its factory returns.
    """
    scheme, _, name = source.partition(":")
    return _function(EXAMPLES[name][1]) if scheme == "zoo" and name in EXAMPLES else None


def factory(name: str) -> Callable[..., Any]:
    """The factory of the model called `name`; `UnknownNameError` offers the nearest name."""
    known = FACTORIES | {name: model for name, (model, _) in EXAMPLES.items()}
    check_known("zoo model", name, known)
    return _function(known[name])


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
