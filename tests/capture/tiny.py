"""The zoo at sizes that take milliseconds."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from placewright.capture import zoo
from placewright.capture.model import capture_source
from placewright.capture.source import ModelSource
from placewright.graph.graph import Graph

SENTENCES = {"sequence": 5, "vocabulary": 50, "hidden": 16}

SIZES: dict[str, dict[str, Any]] = {
    "alexnet": {"image_size": 63, "width": 64, "classes": 10},
    "vgg16": {"image_size": 32, "width": 32, "classes": 10, "divide_by": 8},
    "inception_v3": {"image_size": 299, "classes": 10, "divide_by": 16},
    "resnet50": {"image_size": 32, "width": 8, "classes": 10},
    "rnnlm": SENTENCES,
    "gnmt": SENTENCES,
    "bert": {**SENTENCES, "hidden": 128, "layers": 2},
    "gpt2": {**SENTENCES, "hidden": 128, "layers": 2},
}


@cache
def tiny_graph(name: str, *, training: bool = False) -> Graph:
    """The graph of `tiny(name)`."""
    return capture_source(tiny(name), training=training)


def tiny(name: str, seed: int = 0) -> ModelSource:
    """The zoo model called `name`, small, with two samples, really built."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ModelSource(*zoo.factory(name)(batch=2, **SIZES[name]), name=name)
