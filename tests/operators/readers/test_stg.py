"""Task graphs of the Standard Task Graph Set: values, cluster, refusals by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError
from placewright.operators.readers.task_graphs import read_stg
from placewright.planning.solving import solve

FORK = """  3
  0  0  0
  1  4  1  0
  2  4  1  0
  3  2  2  1  2
  4  0  1  3
# a comment
"""
SENT = "3\n0 0 0\n1 4 1 0 5\n2 4 1 0 5\n3 2 2 1 3 2 7\n4 0 1 3 0\n"


def written(folder: Path, text: str) -> Path:
    """A file with this text."""
    path = folder / "fork.stg"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("devices", "makespan"), [(1, 10.0), (2, 6.0), (3, 6.0)])
def test_a_fork_takes_its_longest_path(tmp_path: Path, devices: int, makespan: float) -> None:
    """On devices alike, without communication, as the set's known optima are meant."""
    problem = read_stg(written(tmp_path, FORK), devices=devices)
    assert problem.name == "fork"
    assert (problem.n, problem.t) == (5, 5)
    assert solve(problem, "exact", time_limit_s=20).value == makespan


def test_communication_stands_behind_each_predecessor(tmp_path: Path) -> None:
    """A unit takes a unit of time; on a cluster it has bytes, and times are over speeds."""
    path = written(tmp_path, SENT)
    problem = read_stg(path)
    assert problem.tensor_bytes.tolist() == [5, 5, 3, 7, 0]
    assert problem.seconds_per_byte.tolist() == [[0, 1], [1, 0]]
    cluster = Cluster.preset("edge-duo")
    problem = read_stg(path, cluster, bytes_per_unit=1e6)
    assert problem.tensor_bytes.tolist() == [5e6, 5e6, 3e6, 7e6, 0]
    assert problem.compute_s[1].tolist() == [4 / device.speed for device in cluster.devices]
    twice = read_stg(written(tmp_path, SENT.replace("2 1 3 2 7", "3 1 3 2 7 1 4")))
    assert twice.tensor_bytes.tolist() == [5, 5, 7, 7, 0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  3  2  2  1  2\n", "  3  2  2  1\n", "fork.stg:5: has the wrong length"),
        ("  4  0  1  3\n", "", "has the wrong number of tasks"),
        ("  3\n", "  3.5\n", "fork.stg:1: has no whole number of tasks"),
        ("  1  4", "  1  x", "fork.stg:3: must be numbers"),
        ("  1  4", "  1  -4", "fork.stg:3: must be numbers >= 0"),
        ("  3  2  2  1  2\n", "  3  2  2  1  9\n", "unknown operator 't9'"),
        ("  1  4  1  0\n", "  1  4  1  3\n", "cycle through operator 't1'"),
        ("  1  4  1  0\n", "  1.5  4  1  0\n", "fork.stg:3: has no whole numbers of tasks"),
        ("  1  4  1  0\n", "  1  4  1  0.5\n", "fork.stg:3: has no whole number of a task"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    """The error names the file, and the line where it is one's."""
    with pytest.raises(InputError, match=words) as error:
        read_stg(written(tmp_path, FORK.replace(old, new)))
    assert "fork.stg" in error.value.where


def test_devices_are_those_of_the_cluster_or_alike(tmp_path: Path) -> None:
    """Not both: one would be left out."""
    with pytest.raises(InputError, match="the cluster has its own devices"):
        read_stg(written(tmp_path, FORK), Cluster.preset("edge-duo"), devices=3)
