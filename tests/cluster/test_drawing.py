"""Drawings of clusters: every device is there, and no host covers another."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

from placewright.cluster.cluster import Cluster
from placewright.cluster.drawing import MOST_DEVICES, MOST_HOSTS, cluster_drawing
from placewright.cluster.schema import preset_names

Box = tuple[float, float, float, float]


def parsed(cluster: Cluster) -> ElementTree.Element:
    """The drawing as XML."""
    drawn = cluster_drawing(cluster)
    assert drawn is not None
    return ElementTree.fromstring(drawn)


def boxes(drawn: ElementTree.Element) -> list[Box]:
    """Left, top, right and bottom of every host."""
    found = []
    for host in drawn.findall("g"):
        x, y = map(float, re.findall(r"-?[\d.]+", host.attrib["transform"]))
        frame = host.find("rect")
        assert frame is not None
        found.append((x, y, x + float(frame.attrib["width"]), y + float(frame.attrib["height"])))
    return found


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes cover each other."""
    across = one[0] < other[2] and other[0] < one[2]
    return across and one[1] < other[3] and other[1] < one[3]


def hosts(count: int) -> Cluster:
    """So many, a device on each."""
    devices = "".join(f"  - {{name: d{k}, node: n{k}}}\n" for k in range(count))
    return Cluster.from_text(f"devices:\n{devices}", where="x")


@pytest.mark.parametrize("cluster", [*preset_names(), 3, 5, 8, MOST_HOSTS])
def test_no_host_is_drawn_over_another(cluster: str | int) -> None:
    """All devices are drawn, within the frame; shared channels have their name."""
    given = Cluster.preset(cluster) if isinstance(cluster, str) else hosts(cluster)
    drawn = parsed(given)
    found = boxes(drawn)
    assert len(found) == len(given.nodes)
    assert not any(overlap(a, b) for a, b in combinations(found, 2))
    width, height = float(drawn.attrib["width"]), float(drawn.attrib["height"])
    assert all(a[0] >= 0 and a[1] >= 0 and a[2] <= width and a[3] <= height for a in found)
    texts = [each.text for each in drawn.iter("text")]
    assert {*given.device_names} <= {*texts}
    named = {each.text for each in drawn.iter("tspan") if each.get("class") == "channel"}
    assert named <= {link.channel for link in given.links}


def test_very_many_hosts_or_devices_are_not_drawn() -> None:
    """Nobody could read them."""
    assert cluster_drawing(hosts(MOST_HOSTS + 1)) is None
    devices = ", ".join(["{}"] * (MOST_DEVICES + 1))
    assert cluster_drawing(Cluster.from_text(f"devices: [{devices}]", where="x")) is None


def test_a_notebook_shows_the_drawing() -> None:
    """Of many hosts the table; names are escaped."""
    assert "<svg" in Cluster.preset("edge-duo")._repr_html_()
    assert "<pre>" in hosts(MOST_HOSTS + 1)._repr_html_()
    hostile = Cluster.from_text("devices:\n  - {name: '<b>', node: '<i>'}\n", where="x")
    assert not {"<b>", "<i>"} & {*re.findall("<.>", hostile._repr_html_())}
