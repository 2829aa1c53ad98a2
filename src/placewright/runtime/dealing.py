"""Dealing: which copy of a stage takes the next sample of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UNBOUNDED = 1 << 10
"""A window larger than that of any stream."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A device that has a stage: the whole model, or a part of it.

    `seconds`: that it is expected to take for a sample.
    `window`: most samples that it has and has not done.
    """

    device: int
    seconds: float
    window: int


Stages = tuple[tuple[Copy, ...], ...]
"""The devices of every stage, first the one in the placement; none where no stage has copies."""


def next_copy(copies: Sequence[Copy], waiting: Sequence[int]) -> int:
    """The copy that is expected to be done first with one more sample; ties: the first.

    Who is slower than expected has more waiting and gets fewer: shares follow the real speeds.

    `waiting`: by copy, samples that it has and has not done. One of them has room in its window.
    """
    free = [k for k, copy in enumerate(copies) if waiting[k] < copy.window]
    # With the position for ties, as all floats may be equal and every run should deal alike.
    return min(free, key=lambda k: ((waiting[k] + 1) * copies[k].seconds, k))
