"""Clusters as drawings."""

from __future__ import annotations

import pytest

from placewright.cluster.cluster import Cluster
from placewright.cluster.drawing import MOST_HOSTS, HostBox, drawn
from placewright.cluster.schema import preset_names


def overlaps(one: HostBox, other: HostBox) -> bool:
    """Whether two boxes cover each other."""
    across = one.x < other.x + other.width and other.x < one.x + one.width
    return across and one.y < other.y + other.height and other.y < one.y + one.height


@pytest.mark.parametrize("name", preset_names())
def test_no_host_is_drawn_over_another(name: str) -> None:
    """All devices of every preset are in the drawing; shared channels have their name."""
    cluster = Cluster.preset(name)
    found = drawn(cluster)
    assert found is not None
    hosts = found.hosts
    assert not any(overlaps(a, b) for k, a in enumerate(hosts) for b in hosts[:k])
    assert {row.name for host in hosts for row in host.rows} == set(cluster.device_names)
    named = {wire.name for wire in found.wires} | {
        b.label.partition(":")[0] for h in hosts for b in h.buses if b.shared
    }
    shared = {k.channel for k in cluster.links if k.channel != f"{k.source}->{k.target}"}
    assert {name for name in named if name} <= shared


@pytest.mark.parametrize("count", [3, 5, 8, MOST_HOSTS, MOST_HOSTS + 1])
def test_many_hosts(count: int) -> None:
    """None over another; very many are not drawn."""
    devices = "".join(f"  - {{name: d{k}, node: n{k}}}\n" for k in range(count))
    found = drawn(Cluster.from_text(f"devices:\n{devices}", where="x"))
    if count > MOST_HOSTS:
        assert found is None
        return
    assert found is not None
    assert not any(overlaps(a, b) for k, a in enumerate(found.hosts) for b in found.hosts[:k])
