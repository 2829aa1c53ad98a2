"""Small labelled images: handwritten digits, or made from a seed (a blob per class, in noise)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import numpy as np
import numpy.typing as npt

from placewright.errors import MissingDependencyError
from placewright.numerics.arrays import IntArray

SIDE, CLASSES = 12, 10
NOISE = 45.0
SHIFT = 2
BRIGHTEST = 255


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """`pixels` of shape (n, side, side), 0 to 255, and `labels` of shape (n,)."""

    pixels: npt.NDArray[np.uint8]
    labels: IntArray

    def __len__(self) -> int:
        return len(self.labels)


def images(count: int, seed: int = 0, world: int = 0, labels: IntArray | None = None) -> Images:
    """`count` images; the same `world` has the same classes, whatever the seed."""
    patterns = np.random.default_rng(world).uniform(40, 215, (CLASSES, SIDE, SIDE))
    rng = np.random.default_rng((world, seed))
    labels = rng.integers(0, CLASSES, count) if labels is None else labels
    shifts = rng.integers(-SHIFT, SHIFT + 1, (count, 2))
    moved = np.stack(
        [
            np.roll(patterns[label], shift, axis=(0, 1))
            for label, shift in zip(labels.tolist(), shifts.tolist(), strict=True)
        ]
    )
    noisy = moved + rng.normal(0, NOISE, moved.shape)
    return Images(np.clip(noisy, 0, 255).astype(np.uint8), labels)


def digits(seed: int = 0) -> Images:
    """The 1,797 handwritten digits that come with scikit-learn, shuffled, in a frame of 12 x 12.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998,
    doi:10.24432/C50P49 (the test part).

    Raises
    ------
    MissingDependencyError
        scikit-learn is not installed.
    """
    try:
        found = import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise MissingDependencyError(
            "scikit-learn", extra="dev", purpose="training on handwritten digits"
        ) from None
    order = np.random.default_rng(seed).permutation(len(found.target))
    margin = (SIDE - found.images.shape[1]) // 2
    framed = np.pad(found.images[order], ((0, 0), (margin, margin), (margin, margin)))
    pixels = np.clip(framed * BRIGHTEST / found.images.max(), 0, BRIGHTEST).astype(np.uint8)
    return Images(pixels, found.target[order].astype(np.int64))


def split(data: Images, test: int) -> tuple[Images, Images]:
    """The first `test` images, kept for testing, behind the others."""
    return (
        Images(data.pixels[test:], data.labels[test:]),
        Images(data.pixels[:test], data.labels[:test]),
    )
