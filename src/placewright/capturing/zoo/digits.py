"""A small classifier of digits, and pictures for it: handwritten ones, or made from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor, nn

from placewright.errors import InputError, MissingDependencyError
from placewright.numerics.arrays import IntArray

SIDE, CLASSES = 12, 10
NOISE, SHIFT, BRIGHTEST = 45.0, 2, 255
TEST_IMAGES, TEST_DIGITS = 500, 300

Labelled = tuple[Tensor, Tensor]
"""Pictures of shape (n, 1, side, side) from -1 to 1, and their classes, shape (n,)."""


def classifier(
    channels: int = 8, depth: int = 1, enlarged: int = 1, seed: int = 0
) -> tuple[nn.Module, nn.Module]:
    """Convolutions, a pooling and a linear layer; and the loss.

    `enlarged`: pictures are so many times as wide and high for the network, and so are its kernels
    and what it pools: more to compute, hardly more gradients.
    """
    sizes = [(1, channels), *[(channels, channels)] * (depth - 1)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        convolutions = [nn.Conv2d(a, b, 2 * enlarged + 1, padding=enlarged) for a, b in sizes]
        model = nn.Sequential(
            nn.Upsample(scale_factor=enlarged) if enlarged > 1 else nn.Identity(),
            *(layer for convolution in convolutions for layer in (convolution, nn.ReLU())),
            nn.MaxPool2d(2 * enlarged),
            nn.Flatten(),
            nn.Linear(channels * (SIDE // 2) ** 2, CLASSES),
        )
    return model, nn.CrossEntropyLoss()


def pictures(wanted: Sequence[int], seed: int = 0) -> tuple[Labelled, Labelled]:
    """Pictures to train on and others to test with.

    Handwritten ones where scikit-learn is installed and has enough of each class, else made from
    `seed`.

    Parameters
    ----------
    wanted
        How many of each class; a single number: in all, of any class.

    Raises
    ------
    InputError
        More classes than pictures have.
    """
    if len(wanted) > CLASSES:
        raise InputError(
            "the pictures of digits have fewer classes than the samples",
            where="example model",
            by=f"{len(wanted)} classes, at most {CLASSES}",
            hint="give a model and a data set of your own, or join classes",
        )
    if find_spec("sklearn") is not None:
        pixels, labels = handwritten(seed)
        if _enough(labels[TEST_DIGITS:], wanted):
            return (pixels[TEST_DIGITS:], labels[TEST_DIGITS:]), (
                pixels[:TEST_DIGITS],
                labels[:TEST_DIGITS],
            )
    classes = None if len(wanted) == 1 else np.repeat(np.arange(len(wanted)), wanted)
    return drawn(sum(wanted), seed, classes), drawn(TEST_IMAGES, seed + 1)


def _enough(labels: Tensor, wanted: Sequence[int]) -> bool:
    if len(wanted) == 1:
        return len(labels) >= wanted[0]
    there = torch.bincount(labels, minlength=CLASSES)
    return all(int(there[c]) >= count for c, count in enumerate(wanted))


def drawn(count: int, seed: int = 0, labels: IntArray | None = None) -> Labelled:
    """Pictures made from a seed, a pattern per class in noise; classes are alike for all seeds."""
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
    return _labelled(np.clip(noisy, 0, BRIGHTEST), labels)


def handwritten(seed: int = 0) -> Labelled:
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
    return _labelled(framed * BRIGHTEST / found.images.max(), found.target[order].astype(np.int64))


def _labelled(
    pixels: np.ndarray[tuple[int, ...], np.dtype[np.float64]], labels: IntArray
) -> Labelled:
    whole = np.clip(pixels, 0, BRIGHTEST).astype(np.uint8)
    scaled = torch.tensor(whole.astype(np.float32) / 128.0 - 1.0)
    return scaled[:, None], torch.tensor(labels)
