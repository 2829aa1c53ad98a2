"""Small labelled images: handwritten digits, or made from a seed (a blob per class, in noise)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from placewright.errors import InputError, MissingDependencyError, UnknownNameError
from placewright.numerics.arrays import IntArray
from placewright.samples.problem import SampleProblem

SIDE, CLASSES = 12, 10
NOISE = 45.0
SHIFT = 2
BRIGHTEST = 255

KINDS = ("auto", "digits", "synthetic")
TEST_IMAGES = 500
TEST_DIGITS = 300


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """`pixels` of shape (n, side, side), 0 to 255, and `labels` of shape (n,)."""

    pixels: npt.NDArray[np.uint8]
    labels: IntArray

    def __len__(self) -> int:
        return len(self.labels)


def images(count: int, seed: int = 0, labels: IntArray | None = None) -> Images:
    """`count` images; classes are the same whatever the seed."""
    patterns = np.random.default_rng(0).uniform(40, 215, (CLASSES, SIDE, SIDE))
    rng = np.random.default_rng((0, seed))
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

    Raises `MissingDependencyError`: scikit-learn is not installed.
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


def pictures(problem: SampleProblem, kind: str = "auto", seed: int = 0) -> tuple[Images, Images]:
    """Images for all samples of `problem`, and others to test with.

    `kind`: ``digits``: handwritten ones; ``synthetic``: made from `seed`; ``auto``: digits where
    scikit-learn is installed and has enough of each class.

    Raises `UnknownNameError`: another kind.
    Raises `InputError`: more classes than images have.
    Raises `MissingDependencyError`: digits without scikit-learn.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of images", kind, KINDS)
    if problem.k > CLASSES:
        raise InputError(
            "the images to train on have fewer classes than the samples",
            where=problem.name,
            by=f"{problem.k} classes, at most {CLASSES}",
            hint="join classes, or leave them out of the file",
        )
    if kind == "digits" or (kind == "auto" and find_spec("sklearn") is not None):
        real, test = split(digits(seed), TEST_DIGITS)
        if kind == "digits" or _enough(problem, real.labels):
            return real, test
    return _synthetic(problem, seed), images(TEST_IMAGES, seed + 1)


def _enough(problem: SampleProblem, labels: IntArray) -> bool:
    wanted = problem.samples.sum(axis=0)
    if problem.k == 1:
        return len(labels) >= int(wanted[0])
    there = np.bincount(labels, minlength=CLASSES)
    return bool((there[: problem.k] >= wanted).all())


def _synthetic(problem: SampleProblem, seed: int) -> Images:
    """As many as there are samples; of each class, where there are several."""
    if problem.k == 1:
        return images(int(problem.held.sum()), seed)
    labels = np.repeat(np.arange(problem.k), problem.samples.sum(axis=0))
    return images(len(labels), seed, labels=labels)
