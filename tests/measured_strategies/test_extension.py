"""Profiles of single passes decomposed into their known parts."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.measured_strategies.datasheets import DATA_SHEETS, OTHER, data_sheet
from benchmarks.measured_strategies.extension import Shape, SinglePass

HIDDEN, TOKENS, SENT = 1024, 1024, 2.0 * 1024 * 1024
BANDWIDTH, START, EXPOSED, WORK = 4e9, 5e-4, 1e-3, 4e-3
SIZES = np.array([1.0, 4.0])


def profile(*, embeds: bool, nominal: float) -> SinglePass:
    """An embedding and three blocks of known parts at degrees 1, 2 and 4."""
    degrees = (1, 2, 4)
    rows = []
    for t in degrees:
        reduced = START + 2 * (t - 1) / t * SENT / BANDWIDTH if t > 1 else 0.0
        rows.append([1e-4 + embeds * reduced, *[EXPOSED + WORK / t + 2 * reduced] * 3])
    split = np.array([1.0, 2.0, 4.0])
    held = np.array([5e7 / (split if embeds else np.ones(3)), *[1.2e7 / split] * 3])
    shape = Shape(HIDDEN, 16, TOKENS, 2)
    return SinglePass(np.array(rows), degrees, held, np.full((4, 3), SENT), "T4", nominal, shape)


def test_parts_are_told_apart_by_embedding_and_degrees() -> None:
    """Bandwidth, exposed launching, and the growth of work and sending with the samples."""
    single = profile(embeds=True, nominal=1e10)
    assert single.ring_bandwidth() == pytest.approx(BANDWIDTH)
    assert single.exposed_s() == pytest.approx(EXPOSED)
    ahead, back = single.tables(SIZES)
    added = 3 * 2 * single.parameters[1] / 320e9
    for t, degree in enumerate(single.degrees):
        sent = 2 * 2 * (degree - 1) / degree * SENT / BANDWIDTH
        begun = 2 * START * (degree > 1)
        assert ahead[t, :, 1] == pytest.approx(begun + SIZES * (WORK / degree + sent))
        expected = added[t] + begun + SIZES * (2 * WORK / degree + sent)
        assert back[t, :, 1] == pytest.approx(expected)


def test_a_slower_nominal_bandwidth_is_an_upper_limit() -> None:
    """What an embedding shows is at most what the node's links can do."""
    assert profile(embeds=True, nominal=1e9).ring_bandwidth() == 1e9
    assert profile(embeds=False, nominal=1e10).ring_bandwidth() == 1e10


def test_blocks_that_no_degree_shortens_are_bound_by_launching() -> None:
    """The narrow ones start as many kernels; half of that shows in the wide ones."""
    forward = np.array([[1e-4, *[2e-3] * 3, *[4e-3] * 3]] * 2)
    forward[1, 1:] += 1e-4
    held = np.array([[1e3, 1e3], *[[1e5, 5e4]] * 3, *[[9e4, 4.5e4]] * 3])
    single = SinglePass(
        forward, (1, 2), held, np.full((7, 2), 1e3), "V100", 2e10, Shape(64, 0, 0, 2)
    )
    ahead, back = single.tables(SIZES)
    assert single.exposed_s() == pytest.approx(1e-3, rel=0.01)
    assert ahead[0, :, 4] == pytest.approx(SIZES * 3e-3, rel=0.01)
    assert back[0, :, 4] == pytest.approx(SIZES * 6e-3, rel=0.01)
    assert ahead[0, 0, 1] == pytest.approx(2e-3, rel=0.01)


@pytest.mark.parametrize(
    ("name", "sheet"),
    [
        ("Tesla-V100-SXM2-16GB", "V100"),
        ("NVIDIA A100-40", "A100"),
        ("RTX 2080 Ti", "2080TI"),
        ("GH-96", "GH"),
        ("H100", "H100"),
    ],
)
def test_devices_are_known_by_what_their_names_hold(name: str, sheet: str) -> None:
    """Whatever vendor, series and memory stand around it; others count as T4."""
    assert data_sheet(name) is DATA_SHEETS[sheet]
    assert data_sheet("TPU v4") is OTHER
