"""Refusals of sample problems."""

from __future__ import annotations

import pytest

from placewright.errors import InputError
from tests.samples.tiny import tiny


@pytest.mark.parametrize(
    ("samples", "changes", "match"),
    [
        ([1, 1], {"node_names": ("a", "a")}, "the node 'a' is there twice"),
        ([0, 0], {}, "there are no samples"),
        # Their sum as a 64-bit number would be negative, or a small number again.
        ([5 * 10**18] * 2, {"seconds_per_sample": [0.0, 0.0]}, "too many samples"),
        ([5 * 10**18] * 4, {"seconds_per_sample": [0.0] * 4}, "too many samples"),
    ],
)
def test_wrong_problems_are_refused(
    samples: list[int], changes: dict[str, object], match: str
) -> None:
    """By name of the node or with the numbers."""
    with pytest.raises(InputError, match=match):
        tiny(samples, **changes)
