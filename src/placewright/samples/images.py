"""Small labelled images made from a seed: a blob per class, shifted, in noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placewright.arrays import IntArray

SIDE, CLASSES = 12, 10
NOISE = 45.0
SHIFT = 2


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """`pixels` of shape (n, side, side), 0 to 255, and `labels` of shape (n,)."""

    pixels: npt.NDArray[np.uint8]
    labels: IntArray

    def __len__(self) -> int:
        return len(self.labels)


def images(count: int, seed: int = 0, world: int = 0) -> Images:
    """`count` images; the same `world` has the same classes, whatever the seed."""
    patterns = np.random.default_rng(world).uniform(40, 215, (CLASSES, SIDE, SIDE))
    rng = np.random.default_rng((world, seed))
    labels = rng.integers(0, CLASSES, count)
    shifts = rng.integers(-SHIFT, SHIFT + 1, (count, 2))
    moved = np.stack(
        [
            np.roll(patterns[label], shift, axis=(0, 1))
            for label, shift in zip(labels.tolist(), shifts.tolist(), strict=True)
        ]
    )
    noisy = moved + rng.normal(0, NOISE, moved.shape)
    return Images(np.clip(noisy, 0, 255).astype(np.uint8), labels)
