"""Devices and the links between them."""

from __future__ import annotations

import math
from itertools import pairwise, permutations

import numpy as np
import pytest

from placewright.cluster.cluster import LOCAL_BANDWIDTH, ROUTED_BYTES, Cluster, Device, Link
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
    with pytest.raises(InputError, match="launch_overhead_s of Device 'a': must be a number >= 0"):
        Device("a", launch_overhead_s=overhead)


def test_devices_without_a_link_send_through_others() -> None:
    """Latencies add up, the slowest link is the limit and its channel is held; shortest by 1 MB."""
    devices = tuple(Device(name, node=name) for name in "abcde")
    cluster = Cluster(
        devices,
        (
            *(Link("a", "b", 1e8, 1e-3), Link("b", "c", 2e7, 2e-3, "slow"), Link("c", "d", 1e8)),
            *(Link("d", "a", 1e9), Link("a", "c", 1e3, 0.0, "modem"), Link("b", "e", 1e6)),
        ),
    )
    latency, per_byte, channel, names = cluster.link_arrays()
    assert (latency[0, 3], per_byte[0, 3]) == (pytest.approx(3e-3), 1 / 2e7)
    assert names[channel[0, 3]] == "slow"
    assert names[channel[0, 2]] == "modem"  # a link of its own is taken as it is
    assert {(k.source, k.target) for k in cluster.routed_links()} == {
        *(("a", "d"), ("a", "e"), ("b", "a"), ("b", "d"), ("c", "a"), ("c", "b"), ("c", "e")),
        *(("d", "b"), ("d", "c"), ("d", "e")),
    }
    assert math.isinf(latency[4, 0])


@pytest.mark.parametrize("seed", range(5))
def test_routes_are_shortest_paths(seed: int) -> None:
    """By brute force over all simple ways between five nodes."""
    rng = np.random.default_rng(seed)
    names = "abcde"
    pairs = [(a, b) for a, b in permutations(names, 2) if rng.random() < 0.4]
    links = {(a, b): Link(a, b, float(rng.uniform(1e5, 1e7)), 0.01) for a, b in pairs}
    cluster = Cluster(tuple(Device(n, node=n) for n in names), tuple(links.values()))
    found = {(k.source, k.target): k for k in cluster.routed_links()}
    for a, b in permutations(names, 2):
        inner = [n for n in names if n not in (a, b)]
        ways = [
            [links[hop] for hop in pairwise((a, *middle, b))]
            for count in range(4)
            for middle in permutations(inner, count)
            if all(hop in links for hop in pairwise((a, *middle, b)))
        ]
        if not ways or (a, b) in links:
            assert (a, b) not in found
            continue
        best = min(ways, key=lambda way: sum(k.latency_s + ROUTED_BYTES / k.bandwidth for k in way))
        assert found[a, b].bandwidth == min(k.bandwidth for k in best)
        assert found[a, b].latency_s == pytest.approx(sum(k.latency_s for k in best))
