"""The cluster presets."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.cluster.cluster import Cluster
from placewright.cluster.schema import preset_names
from placewright.errors import UnknownNameError


def test_names() -> None:
    """The presets that the documentation speaks of are there."""
    assert {"edge-duo", "edge-quad", "server-4gpu", "mixed-8"} <= set(preset_names())


def test_edge_duo_is_what_it_is_said_to_be() -> None:
    """Two different single-core boards on 1 Gbit/s with 0.2 ms."""
    duo = Cluster.preset("edge-duo")
    assert [(d.speed, d.cores, d.node) for d in duo.devices] == [(1.0, 1, "a"), (0.5, 1, "b")]
    assert {(k.bandwidth, k.latency_s) for k in duo.links} == {(125e6, 2e-4)}


@pytest.mark.parametrize("name", preset_names())
def test_every_pair_of_devices_can_talk(name: str) -> None:
    """No preset has an island."""
    latency, per_byte, channel, _ = Cluster.preset(name).link_arrays()
    assert np.isfinite(latency).all()
    assert np.isfinite(per_byte).all()
    assert (channel[~np.eye(len(channel), dtype=bool)] >= 0).all()


def test_unknown_preset_offers_the_nearest() -> None:
    """A slip of the finger is answered with the name that was meant."""
    with pytest.raises(UnknownNameError, match="did you mean 'server-4gpu'"):
        Cluster.preset("server4gpu")
