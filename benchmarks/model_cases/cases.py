"""CASES: the models and situations in which placed runs are compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from placewright.capturing.source import ModelSource
from small_zoo import SIZES, small

from .architectures import ARCHITECTURES, LOSSES
from .caches import DECODING, PAST_TRAINING
from .situations import SITUATIONS
from .special import SPECIAL
from .transformers_models import TRANSFORMERS

Step = Literal["training", "inference", "layers", "situation"]


@dataclass(frozen=True, slots=True)
class Case:
    """A named model; `make` builds it with random weights and inputs.

    Attributes
    ----------
    step
        What is compared with eager: training steps or inference, operator by operator; training
        steps, layer by layer; or a situation, which compares itself.
    compare
        Of a situation: the largest difference.
    """

    name: str
    make: Callable[[], ModelSource]
    step: Step = "training"
    compare: Callable[[], float] | None = None

    @property
    def training(self) -> bool:
        """Whether training steps are compared."""
        return self.step in ("training", "layers")

    @property
    def key(self) -> str:
        """The name, with the step where it is no training step."""
        return self.name if self.step in ("training", "situation") else f"{self.name}, {self.step}"

    def source(self, seed: int = 0) -> ModelSource:
        """The model, drawn from `seed`; the caller's random state is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return replace(self.make(), name=self.name)


def _no_model() -> ModelSource:
    raise ValueError("a situation makes its models itself")


def _all() -> Iterator[Case]:
    for name in SIZES:
        yield Case(f"zoo:{name}", lambda name=name: small(name))  # type: ignore[misc]
    for made in (TRANSFORMERS, PAST_TRAINING, SPECIAL):
        yield from (Case(name, make) for name, make in made.items())
    yield from (Case(name, make, "inference") for name, make in DECODING.items())
    for name, make in ARCHITECTURES.items():
        yield from (Case(name, make, step) for step in ("training", "inference", "layers"))
    for name, make in LOSSES.items():
        yield from (Case(name, make, step) for step in ("training", "layers"))
    for name, compare in SITUATIONS.items():
        yield Case(name, _no_model, "situation", compare)


CASES: Mapping[str, Case] = {case.key: case for case in _all()}
"""By name."""
