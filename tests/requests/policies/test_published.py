"""JF and MS reach their published values on the published arrivals."""

from __future__ import annotations

import pytest

from placewright.requests.capacity import played
from placewright.requests.readers import serving_problem
from tests.published import published


@pytest.mark.parametrize(
    ("scenario", "name", "success", "effective"),
    [
        ("w60_slo150_r400", "jf", 1.0, 0.80608),
        ("w60_slo150_r400", "ms", 0.999669, 0.842001),
        ("w60_slo150_r3600", "jf", 0.607888, 0.352405),
    ],
)
def test_jf_and_ms_reach_their_published_values(
    scenario: str, name: str, success: float, effective: float
) -> None:
    """Seed 0, every request counted."""
    judged = played(
        serving_problem(published("serving/ramsis_image.json"), scenario), name
    ).judgement
    assert judged.success_rate == pytest.approx(success, abs=1e-6)
    assert judged.value == pytest.approx(effective, abs=1e-6)
