"""CASES: the models on which placed runs are compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from placewright.capturing.source import ModelSource
from placewright.testing.small_zoo import SIZES, small

from .caches import DECODING, PAST_TRAINING
from .special import SPECIAL
from .transformers_models import TRANSFORMERS


@dataclass(frozen=True, slots=True)
class Case:
    """A named model; `make` builds it with random weights and inputs.

    It is compared over training steps if `training`, else over inference.
    """

    name: str
    make: Callable[[], ModelSource]
    training: bool = True

    def source(self, seed: int = 0) -> ModelSource:
        """The model, drawn from `seed`; the caller's random state is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return replace(self.make(), name=self.name)


def _all() -> Iterator[Case]:
    for name in SIZES:
        yield Case(f"zoo:{name}", lambda name=name: small(name))  # type: ignore[misc]
    for made in (TRANSFORMERS, PAST_TRAINING, SPECIAL):
        yield from (Case(name, make) for name, make in made.items())
    yield from (Case(name, make, training=False) for name, make in DECODING.items())


CASES: Mapping[str, Case] = {case.name: case for case in _all()}
"""By name."""
