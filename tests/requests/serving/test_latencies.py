"""Latencies measured at start and kept up to date."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.requests.serving.latencies import LatencyTable


def test_sizes_between_lie_on_a_line() -> None:
    """Measured sizes are means; others are interpolated; larger ones than measured cannot run."""
    table = LatencyTable(6)
    table.resize(1, 1)
    table.measured(0, 0, {1: [1.0, 3.0], 2: [3.0], 4: [5.0, 7.0]})
    assert table.latency_s()[0, 0].tolist() == [0, 2, 3, 4.5, 6, np.inf, np.inf]


def test_factor_follows_what_batches_take() -> None:
    """A server that becomes twice as slow is known to be; others keep their factor."""
    table = LatencyTable(2)
    table.resize(2, 1)
    for server in (0, 1):
        table.measured(server, 0, {1: [1.0], 2: [1.5]})
    assert not table.changed()
    for _ in range(200):
        table.observe(1, 0, 2, 3.0)
    assert table.expected_s(1, 0, 1) == pytest.approx(2.0, rel=1e-3)
    assert table.expected_s(0, 0, 1) == 1.0
    assert table.changed()
    assert not table.changed()


def test_noise_is_the_spread_around_the_table() -> None:
    """Relative standard deviation of many batches, once they are observed."""
    table = LatencyTable(1)
    table.resize(1, 1)
    table.measured(0, 0, {1: [1.0]})
    for draw in np.random.default_rng(0).normal(1.0, 0.2, 2000):
        table.observe(0, 0, 1, draw)
    assert table.noise == pytest.approx(0.2, rel=0.2)


def test_rare_long_batches_are_no_noise() -> None:
    """They do not change the spread of the others; how late they are is known apart."""
    table = LatencyTable(1)
    table.resize(1, 1)
    table.measured(0, 0, {1: [1.0]})
    for batch in range(400):
        table.observe(0, 0, 1, 3.0 if batch % 40 == 39 else 1.0)
    assert table.noise < 0.1
    assert table.late_s == pytest.approx(2.0, abs=0.2)
    assert len(table.ratios) == 400


def test_added_servers_and_removed_variants() -> None:
    """What was measured stays where it belongs."""
    table = LatencyTable(1)
    table.resize(1, 2)
    table.measured(0, 0, {1: [1.0]})
    table.measured(0, 1, {1: [2.0]})
    table.resize(2, 3)
    assert table.seconds[0, :2, 1].tolist() == [1.0, 2.0]
    assert np.isinf(table.seconds[1, :, 1]).all()
    assert np.isinf(table.seconds[0, 2, 1])
    table.remove_variant(0)
    assert table.seconds[0, 0, 1] == 2.0
    assert table.latency_s().shape == (2, 2, 2)
