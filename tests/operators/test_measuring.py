"""Steps of a block that the measurement leaves out."""

from __future__ import annotations

from typing import Any, cast

import pytest

from placewright.operators.measuring import SHORT_S, MeasuringRounds


@pytest.mark.parametrize(
    ("seen_s", "warmup", "cold"),
    [
        ([], 3, 3),
        ([SHORT_S * 2] * 2, 3, 1),
        ([SHORT_S / 2] * 2, 3, 3),
        ([SHORT_S * 2] * 2, 0, 0),
    ],
)
def test_short_steps_are_warmed_up_in_every_block(
    seen_s: list[float], warmup: int, cold: int
) -> None:
    """Long ones in the first block, and one step after another plan; none where none is asked."""
    turns = MeasuringRounds(cast(Any, None), [cast(Any, None)])
    turns.step_s[0] = [seen_s]
    assert turns._cold_steps(0, warmup) == cold
