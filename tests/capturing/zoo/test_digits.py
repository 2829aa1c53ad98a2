"""Pictures of digits to train on."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from placewright.capturing.zoo.convolutional import pictures  # noqa: E402
from placewright.errors import InputError  # noqa: E402


def test_digits_where_there_are_enough() -> None:
    """Real ones of ten classes in a frame; made ones where a class runs out."""
    pytest.importorskip("sklearn")
    (pixels, labels), (_, tested) = pictures([50] * 10)
    assert len(labels) + len(tested) == 1797
    assert bool((pixels[:, 0, 0] == -1).all())
    (_, many), _ = pictures([500] + [1] * 9)
    assert torch.bincount(many).tolist() == [500] + [1] * 9


def test_more_classes_than_digits_are_refused() -> None:
    """By how many."""
    with pytest.raises(InputError, match="11 classes, at most 10"):
        pictures([1] * 11)
