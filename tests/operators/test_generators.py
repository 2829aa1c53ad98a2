"""Random task graphs: sizes of the published shapes, ratios that were asked for, determinism."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import InputError
from placewright.operators.generators import generate_tasks


@pytest.mark.parametrize(
    ("shape", "size", "tasks", "edges"),
    [
        ("fft", 4, 15, 22),  # 2 m - 1 calls with 2 m - 2 edges, m log2 m butterflies with 2 each
        ("fft", 8, 39, 62),
        ("gaussian", 5, 14, 19),  # (m^2 + m - 2) / 2
        ("fork-join", 5, 19, 30),
        ("layered", 50, 50, None),
    ],
)
def test_sizes_are_those_of_the_shapes(
    shape: str, size: int, tasks: int, edges: int | None
) -> None:
    """As Topcuoglu et al. 2002 count them."""
    problem = generate_tasks(shape, size)
    assert problem.n == tasks
    assert edges is None or problem.t == edges
    assert len(problem.topology.order) == tasks


def test_ccr_and_heterogeneity_are_those_asked_for() -> None:
    """Mean transfer over mean time; times within the spread of their mean."""
    problem = generate_tasks("layered", 4000, devices=3, ccr=5.0, heterogeneity=0.5, seed=2)
    transfers = problem.tensor_bytes.mean()
    assert transfers / problem.compute_s.mean() == pytest.approx(5.0, rel=0.1)
    assert (problem.compute_s.max(axis=1) <= problem.compute_s.min(axis=1) * 1.25 / 0.75).all()
    alike = generate_tasks("layered", 50, heterogeneity=0.0).compute_s
    assert np.array_equal(alike, np.repeat(alike[:, :1], 4, axis=1))
    assert generate_tasks("fft", 8, seed=3).hash() == generate_tasks("fft", 8, seed=3).hash()
    assert generate_tasks("fft", 8, seed=3).hash() != generate_tasks("fft", 8, seed=4).hash()


def test_an_fft_has_a_power_of_two_of_points() -> None:
    """The error names the two nearest."""
    with pytest.raises(InputError, match="power of two") as caught:
        generate_tasks("fft", 6)
    assert "4 or 8" in str(caught.value)
