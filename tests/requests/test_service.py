"""Refusals of services, with messages that name the field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.requests.conformance import two_servers
from placewright.requests.service import service_of


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"accuracy": [0.7, 1.2]}, "variant 'large'.*accuracy"),
        ({"latency_s": np.zeros((2, 2, 5))}, "server 'fast', variant 'small', batch 1.*above 0"),
        ({"latency_s": np.ones((2, 3, 5))}, "wrong shape"),
        ({"latency_s": np.full((2, 2, 5), np.inf)}, "no server runs variant 'small'"),
        ({"family": np.array([0, 1])}, "family that does not exist"),
        ({"family_names": ("a", "b")}, "family 'b' has no variant"),
        ({"server_names": ("x", "x")}, "'x' is there twice"),
        ({"noise": 0.7}, "noise"),
        ({"load_s": np.full((2, 2), -1.0)}, "load_s"),
        ({"memory_bytes": np.full(2, 9.0), "server_memory_bytes": np.ones(2)}, "does not fit"),
    ],
)
def test_a_wrong_service_is_refused(fields: dict[str, Any], says: str) -> None:
    """Every field, by name."""
    with pytest.raises(InputError, match=says):
        two_servers().replace(**fields)


def test_planned_times_are_longer_by_a_quantile_and_the_round_trip() -> None:
    """Two standard deviations of 5 % on top, and the time of each server's link."""
    service = two_servers(noise=0.05)
    assert np.allclose(service.planned_s(), service.latency_s * 1.1)
    far = service.replace(round_trip_s=np.array([0.0, 0.01]))
    assert np.allclose((far.planned_s() - service.planned_s()).T, [0.0, 0.01])
    assert service_of(("a",), ("v",), [0.5], np.ones((1, 1, 2))).planned_s().max() == 1.0


def test_kinds_differ_in_anything_that_is_known_of_servers() -> None:
    """Two with the same latencies and different links are two kinds; equal ones are one."""
    service = two_servers()
    alike = service.replace(latency_s=np.broadcast_to(service.latency_s[:1], (2, 2, 5)))
    assert service.kinds().tolist() == [0, 1]
    assert alike.kinds().tolist() == [0]
    assert alike.replace(round_trip_s=[0.5, 0.0]).kinds().tolist() == [0, 1]
    assert alike.replace(server_memory_bytes=[np.inf, 1.0]).kinds().tolist() == [0, 1]
