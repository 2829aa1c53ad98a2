"""Which images a run trains on and is tested with: real ones where they are there and enough."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from placewright.errors import UnknownNameError
from placewright.numerics.arrays import IntArray
from placewright.samples.data.images import CLASSES, Images, digits, images, split
from placewright.samples.problem import SampleProblem

KINDS = ("auto", "digits", "synthetic")
TEST_IMAGES = 500
TEST_DIGITS = 300


def pictures(problem: SampleProblem, kind: str = "auto", seed: int = 0) -> tuple[Images, Images]:
    """Images for all samples of `problem`, and others to test with.

    Parameters
    ----------
    kind
        ``digits``: handwritten ones; ``synthetic``: made from `seed`; ``auto``: digits where
        scikit-learn is installed and has enough of each class.

    Raises
    ------
    UnknownNameError
        Another kind.
    MissingDependencyError
        Digits without scikit-learn.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of images", kind, KINDS)
    if kind == "digits" or (kind == "auto" and find_spec("sklearn") is not None):
        real, test = split(digits(seed), TEST_DIGITS)
        if kind == "digits" or _enough(problem, real.labels):
            return real, test
    return _synthetic(problem, seed), images(TEST_IMAGES, seed + 1)


def _enough(problem: SampleProblem, labels: IntArray) -> bool:
    asked = problem.samples.sum(axis=0)
    if problem.k == 1:
        return len(labels) >= int(asked[0])
    there = np.bincount(labels, minlength=CLASSES)
    return problem.k <= CLASSES and bool((there[: problem.k] >= asked).all())


def _synthetic(problem: SampleProblem, seed: int) -> Images:
    """As many as there are samples; of each class, where there are several."""
    if problem.k == 1:
        return images(int(problem.held.sum()), seed)
    labels = np.repeat(np.arange(problem.k), problem.samples.sum(axis=0))
    return images(len(labels), seed, labels=labels)
