"""Devices and the links between them."""

from __future__ import annotations

import math

import pytest

from placewright.cluster.cluster import LOCAL_BANDWIDTH, Cluster, Device, Link
from placewright.errors import InputError

DEVICES = (Device("a"), Device("b"), Device("c"))


def test_a_one_way_link_has_no_way_back() -> None:
    """Devices of one node that a link joins one way do not copy the other way."""
    cluster = Cluster(DEVICES, (Link("a", "b", 1e6, 1e-3),))
    latency, per_byte, channel, _ = cluster.link_arrays()
    assert (latency[0, 1], per_byte[0, 1]) == (1e-3, 1e-6)
    assert math.isinf(latency[1, 0])
    assert math.isinf(per_byte[1, 0])
    assert channel[1, 0] == -1


def test_devices_that_no_link_joins_copy_through_their_host() -> None:
    """Both ways, within a node only."""
    cluster = Cluster((*DEVICES, Device("far", node="far")), (Link("a", "b", 1e6),))
    found = {(k.source, k.target): k.bandwidth for k in cluster.local_links()}
    pairs = [("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")]
    assert found == dict.fromkeys(pairs, LOCAL_BANDWIDTH)


@pytest.mark.parametrize("overhead", [-1e-6, float("inf"), float("nan")])
def test_an_overhead_is_a_number_of_seconds(overhead: float) -> None:
    """Zero and unknown are fine; less than nothing and without end are not."""
    assert Device("a", launch_overhead_s=0.0).launch_overhead_s == 0
    with pytest.raises(InputError, match="launch_overhead must be zero or more"):
        Device("a", launch_overhead_s=overhead)
