"""How the nodes train, and how an epoch is cut into steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from placewright.io.arguments import Count, checked
from placewright.numerics.arrays import FloatArray, IntArray


@checked
@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How the nodes train.

    Attributes
    ----------
    batch
        Samples of a step, all nodes together.
    seed
        Of the order of samples, and of random numbers that the model draws.
    shares
        ``data``: a node's share of a step is its share of the samples. ``speed``: as many as
        its speed allows, from what it has (LB-BSP).
    local_steps
        Steps between two exchanges; 1 exchanges gradients, more average parameters.
    compression
        ``none``, ``fp16``, or ``top10``: the largest tenth of a gradient, the rest later.
    whole_epochs
        Exchange once per epoch, whatever `local_steps` says (federated averaging).
    """

    epochs: Count = 3
    batch: Count = 64
    seed: int = 0
    shares: Literal["data", "speed"] = "data"
    local_steps: Count = 1
    compression: Literal["none", "fp16", "top10"] = "none"
    whole_epochs: bool = False


def steps_of(total: int, batch: int) -> int:
    """Steps of an epoch."""
    return max(1, -(-total // batch))


def parts(samples: IntArray, steps: int, seed: int, epoch: int) -> list[IntArray]:
    """A node's samples of each step: shuffled, in parts that differ by at most one."""
    first = int(samples[0]) if len(samples) else 0
    shuffled = np.random.default_rng((seed, epoch, first)).permutation(samples)
    return [np.asarray(part) for part in np.array_split(shuffled, steps)]


def visits_by_speed(
    samples: IntArray, work: FloatArray, rank: int, recipe: Recipe, steps: int, epoch: int
) -> list[IntArray]:
    """A node's samples of each step where its speed tells how many: some more than once.

    `work`: shape (nodes,), seconds per sample of every node.
    """
    size = _by_speed(work, rank, recipe) * steps if len(samples) else 0
    rng = np.random.default_rng((recipe.seed, epoch, rank))
    rounds = -(-size // max(1, len(samples)))
    drawn = [rng.permutation(samples) for _ in range(rounds)]
    visits = np.concatenate(drawn)[:size] if drawn else samples
    return [np.asarray(part) for part in np.array_split(visits, steps)]


def part_sizes(held: int, total: int, work: FloatArray, rank: int, recipe: Recipe) -> set[int]:
    """Sizes of a node's parts of the steps of an epoch, those without a sample left out.

    `held`, `total`: samples of the node, and of all.
    """
    if recipe.shares == "speed":
        return {_by_speed(work, rank, recipe)} if held else set()
    least, more = divmod(held, steps_of(total, recipe.batch))
    return {least, least + (more > 0)} - {0}


def _by_speed(work: FloatArray, rank: int, recipe: Recipe) -> int:
    speed = 1.0 / work
    return max(1, round(recipe.batch * float(speed[rank] / speed.sum())))
