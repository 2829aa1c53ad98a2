"""A node's samples on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.samples.data.shards import Shard


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """By the file that was written, which the command line says."""
    shard = Shard(tmp_path)
    shard.create()
    (tmp_path / "arriving" / "7.npz").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*arriving/7.npz'"):
        shard.put(7, [np.zeros((8, 8), dtype=np.uint8)], 1)
