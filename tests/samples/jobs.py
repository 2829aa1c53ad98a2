"""Pictures of digits as samples, and a small network that learns them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from placewright.capturing.zoo.convolutional import classifier, drawn  # noqa: E402
from placewright.numerics.arrays import IntArray  # noqa: E402
from placewright.samples.training.job import SampleJob  # noqa: E402
from placewright.samples.training.sample_set import SampleSet  # noqa: E402


def images(count: int, seed: int = 0, labels: IntArray | None = None) -> SampleSet:
    """Made from a seed."""
    return SampleSet(drawn(count, seed, labels), "pictures")


def digits_job(
    count: int = 20, seed: int = 1, *, test: int = 20, precise: bool = False, **settings: Any
) -> SampleJob:
    """The network, `count` pictures to train on and `test` others."""
    network = {k: settings.pop(k) for k in ("channels", "depth", "enlarged") if k in settings}
    model, loss_fn = classifier(**network)
    sets = [drawn(count, seed), drawn(test, 2)]
    if precise:
        model, sets = model.double(), [(x.double(), y) for x, y in sets]
    samples, tested = (SampleSet(each, "pictures") for each in sets)
    return SampleJob(model, loss_fn, samples, test=tested, **settings)
