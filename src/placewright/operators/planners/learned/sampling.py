"""Drawing devices from a policy, baselines, and the settings of torch while a planner learns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import MissingDependencyError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from placewright.operators.planners.learned.evaluation import Evaluations


def softmax(logits: FloatArray, allowed: BoolArray) -> FloatArray:
    """Shape (groups, m): probabilities, zero where a group may not go."""
    masked = np.where(allowed, logits, -np.inf)
    weight = np.exp(masked - masked.max(axis=-1, keepdims=True))
    chances: FloatArray = weight / weight.sum(axis=-1, keepdims=True)
    return chances


def drawn(chances: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """Shape (count, groups): a device per group, drawn independently."""
    below = np.cumsum(chances, axis=-1)
    below[:, -1] = np.inf
    last = chances.shape[1] - 1 - (chances[:, ::-1] > 0).argmax(axis=1)  # against rounding
    found = (rng.random((count, len(chances), 1)) >= below).sum(axis=-1)
    devices: IntArray = np.minimum(found, last)
    return devices


@dataclass(slots=True)
class MovingAverage:
    """Exponential moving average of costs; the first one sets it unless it has a start."""

    decay: float = 0.9
    value: float | None = None

    def update(self, cost: float) -> float:
        """Take a cost in; the average before it, which is the baseline of that cost."""
        before = cost if self.value is None else self.value
        self.value = self.decay * before + (1.0 - self.decay) * cost
        return before


@contextmanager
def torch_session(planner: str, evaluations: Evaluations) -> Iterator[None]:
    """Seed torch and limit it to one thread; both are restored afterwards.

    Networks here are so small that more threads cost more than they bring. What importing torch
    takes is added to the deadline: it is no planning.

    Raises `MissingDependencyError`: torch is not installed.
    """
    began = time.perf_counter()
    try:
        import torch
    except ImportError:
        raise MissingDependencyError(
            "torch", extra="torch", purpose=f"the planner {planner}"
        ) from None
    context, took_s = evaluations.context, time.perf_counter() - began
    evaluations.context = replace(context, deadline_s=context.deadline_s + took_s)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.seed)
            yield
    finally:
        torch.set_num_threads(before)
