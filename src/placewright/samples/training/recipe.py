"""How the nodes train, and how an epoch is cut into steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How the nodes train.

    Attributes
    ----------
    batch
        Samples of a step, all nodes together.
    shares
        ``data``: a node's share of a step is its share of the samples. ``speed``: as many as
        its speed allows, from what it has (LB-BSP).
    local_steps
        Steps between two exchanges; 1 exchanges gradients, more average parameters.
    compression
        ``none``, ``fp16``, or ``top10``: the largest tenth of a gradient, the rest later.
    whole_epochs
        Exchange once per epoch, whatever `local_steps` says (federated averaging).
    precise
        Double precision.
    channels, depth
        Of the network: convolutions of 3 x 3.
    enlarged
        Images are so many times as wide and high for the network, and so are its kernels and
        what it pools: more to compute, hardly more gradients. A kernel covers what it covers
        otherwise, ``2 enlarged + 1`` wide.
    """

    epochs: int = 3
    batch: int = 64
    rate: float = 0.1
    seed: int = 0
    shares: str = "data"
    local_steps: int = 1
    compression: str = "none"
    whole_epochs: bool = False
    precise: bool = False
    channels: int = 8
    depth: int = 1
    enlarged: int = 1


def steps_of(total: int, batch: int) -> int:
    """Steps of an epoch."""
    return max(1, -(-total // batch))


def parts(samples: IntArray, steps: int, seed: int, epoch: int) -> list[IntArray]:
    """A node's samples of each step: shuffled, in parts that differ by at most one."""
    first = int(samples[0]) if len(samples) else 0
    shuffled = np.random.default_rng((seed, epoch, first)).permutation(samples)
    return [np.asarray(part) for part in np.array_split(shuffled, steps)]
