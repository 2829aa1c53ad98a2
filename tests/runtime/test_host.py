"""Devices of each process of a launcher."""

from __future__ import annotations

import pytest

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.runtime.host import Host, assign_ranks

TRIO = Cluster((Device("a", node="x"), Device("b", node="y"), Device("c", node="x")), name="trio")


def hosts(*names: str) -> list[Host]:
    """One per rank."""
    return [Host(name, name, (0,)) for name in names]


def test_devices_sit_on_hosts_of_their_nodes_names() -> None:
    """Whatever order torchrun gave the ranks; where no name is known, in order."""
    assert assign_ranks(TRIO, hosts("y", "x", "x")) == {"a": 1, "b": 0, "c": 2}
    assert assign_ranks(TRIO, hosts("h1", "h1", "h2")) == {"a": 0, "b": 1, "c": 2}


def test_a_node_with_too_few_processes_is_named() -> None:
    """What, where, how many are where, and how to say which node a machine is."""
    with pytest.raises(InputError, match=r"node 'x' has 2 devices and 1 processes") as caught:
        assign_ranks(TRIO, hosts("x", "y", "h3"))
    assert "PLACEWRIGHT_NODE=x" in str(caught.value)
    assert "h3 (1)" in str(caught.value)
