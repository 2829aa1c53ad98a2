"""Control groups of both versions, on imitated folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.errors import UnsupportedError
from placewright.testbed.groups import (
    RUNTIME_BYTES,
    Trees,
    find_trees,
    killed_for_memory,
    quota_us,
)


@given(st.floats(0.001, 64))
def test_a_quota_is_the_share_asked_for(cores: float) -> None:
    """Within a microsecond per period, and never less than the kernel's least."""
    quota, period = quota_us(cores)
    assert quota >= 1_000
    assert abs(quota / period - cores) <= max(1 / period, 0.001 * cores)


def test_the_tree_with_the_cpu_controller_is_taken(tmp_path: Path) -> None:
    """Version 1 where it has CPU and memory, version 2 else, an error where neither has."""
    mounts, unified = tmp_path / "mounts", tmp_path / "unified"
    unified.mkdir()
    (unified / "cgroup.controllers").write_text("hugetlb\n")
    v2 = f"cgroup2 {unified} cgroup2 rw 0 0\n"
    mounts.write_text(v2)
    with pytest.raises(UnsupportedError, match="control group"):
        find_trees(mounts)
    mounts.write_text(f"cgroup /c cgroup rw,cpu,cpuacct 0 0\ncgroup /m cgroup rw,memory 0 0\n{v2}")
    assert find_trees(mounts) == Trees(1, Path("/c"), Path("/m"))
    (unified / "cgroup.controllers").write_text("cpuset cpu memory\n")
    mounts.write_text(v2)
    assert find_trees(mounts) == Trees(2, unified, unified)


def test_version_2_is_written_as_the_kernel_reads_it(tmp_path: Path) -> None:
    """Controllers are handed down, limits are in ``cpu.max`` and ``memory.max``."""
    trees = Trees(2, tmp_path, tmp_path)
    assert trees.make("bed/a") == (tmp_path / "bed/a",)
    for parent in (tmp_path, tmp_path / "bed"):
        assert (parent / "cgroup.subtree_control").read_text() == "+cpu +memory"
    trees.limit_cpu("bed/a", 0.25)
    trees.limit_memory("bed/a", 2**30)
    assert (tmp_path / "bed/a/cpu.max").read_text() == "2500 10000"
    assert (tmp_path / "bed/a/memory.max").read_text() == str(2**30 + RUNTIME_BYTES)
    assert (trees.cpu_limit("bed/a"), trees.memory_limit("bed/a")) == (0.25, 2**30)
    trees.limit_cpu("bed/a", float("inf"))
    trees.limit_memory("bed/a", float("inf"))
    assert (trees.cpu_limit("bed/a"), trees.memory_limit("bed/a")) == (float("inf"),) * 2


def test_processes_that_the_kernel_killed_for_memory_are_counted(tmp_path: Path) -> None:
    """In both versions; a group that says nothing has none."""
    assert killed_for_memory(tmp_path) == 0
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert killed_for_memory(tmp_path) == 2
    (tmp_path / "memory.events").write_text("low 0\noom 4\noom_kill 3\n")
    assert killed_for_memory(tmp_path) == 3
