"""The zoo at sizes that train in under a second, for tests and for exactness checks."""

from __future__ import annotations

from typing import Any

import torch

from placewright.capturing.source import ModelSource
from placewright.capturing.zoo import factory

SIZES: dict[str, dict[str, Any]] = {
    "alexnet": {"batch": 2, "image_size": 64, "classes": 10, "width": 64},
    "vgg16": {"batch": 2, "image_size": 32, "classes": 10, "width": 64, "divide_by": 8},
    "inception_v3": {"batch": 2, "image_size": 299, "classes": 10, "divide_by": 16},
    "resnet50": {"batch": 2, "image_size": 64, "classes": 10, "width": 8},
    "rnnlm": {"batch": 2, "sequence": 5, "vocabulary": 50, "hidden": 16},
    "gnmt": {"batch": 2, "sequence": 4, "vocabulary": 50, "hidden": 16, "layers": 2},
    "bert": {"batch": 2, "sequence": 8, "vocabulary": 50, "hidden": 24, "layers": 2},
    "gpt2": {"batch": 2, "sequence": 8, "vocabulary": 50, "hidden": 24, "layers": 2},
}
"""Keyword arguments of each factory."""


def small(name: str, seed: int = 0, **sizes: Any) -> ModelSource:
    """A small model of the zoo with real weights, drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, inputs, loss_fn, targets = factory(name)(**{**SIZES[name], **sizes})
    return ModelSource(model, inputs, loss_fn, targets, name)
