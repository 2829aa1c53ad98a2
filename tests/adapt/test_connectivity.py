"""Who can talk to whom: what needs no testbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.adapt.connectivity import all_talk
from placewright.errors import RunError
from placewright.testbed.node_handle import NodeHandle


def test_of_nobody_nobody_talks() -> None:
    """Which is not a testbed that was taken down."""
    assert all_talk([]) == frozenset()


def test_a_testbed_that_is_gone_says_so(tmp_path: Path) -> None:
    """Its control groups are not there; the devices are named."""
    handles = [NodeHandle(n, n, (str(tmp_path / n),), (0,), "10.0.0.1", "eth0") for n in "ab"]
    with pytest.raises(RunError, match="a, b: the testbed has been taken down"):
        all_talk(handles)
