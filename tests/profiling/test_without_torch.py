"""Planning needs no PyTorch: costs are computed, or taken from a kept profile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from placewright.cluster.cluster import Cluster, Device
from placewright.cluster.files import write_cluster
from placewright.errors import MissingDependencyError
from placewright.graph.files import write_graph
from placewright.profiling import profiler
from placewright.profiling.profile_warnings import NotMeasuredWarning
from placewright.profiling.profiler import ProfileTable, profile, profile_key
from tests.runtime.chain import diamond

CLUSTER = Cluster((Device("c", cores=1), Device("g", kind="gpu")))
GRAPH, _ = diamond()


@pytest.fixture
def nothing_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without PyTorch, as far as a profile can see."""
    monkeypatch.setitem(sys.modules, "placewright.profiling.measuring", None)
    monkeypatch.setattr(profiler, "torch_installed", lambda: False)


@pytest.mark.usefixtures("nothing_measures")
def test_auto_computes_and_says_so() -> None:
    """A GPU in the cluster is no reason to look for PyTorch."""
    with pytest.warns(NotMeasuredWarning, match=r"(?s)diamond are computed.*placewright\[torch\]"):
        problem = profile(GRAPH, CLUSTER)
    assert np.array_equal(problem.compute_s, profile(GRAPH, CLUSTER, method="analytic").compute_s)


@pytest.mark.usefixtures("nothing_measures")
def test_what_was_kept_where_pytorch_is_needs_none_here() -> None:
    """All that would be measured is in the table: nothing to warn of."""
    table = ProfileTable()
    table.add(profile_key(GRAPH, "isolated", 1), GRAPH, np.array([1.0, 2.0, 3.0, 4.0]))
    for method in ("auto", "isolated"):
        problem = profile(GRAPH, CLUSTER, method=method, table=table)  # type: ignore[arg-type]
        assert problem.compute_s[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.usefixtures("nothing_measures")
def test_a_method_that_measures_says_what_to_install() -> None:
    """It was asked for, so nothing else stands in."""
    with pytest.raises(MissingDependencyError, match="method isolated needs the package 'torch'"):
        profile(GRAPH, CLUSTER, method="isolated")


def test_a_captured_graph_is_planned_in_a_process_without_pytorch(tmp_path: Path) -> None:
    """From the file to the plan, on a cluster with a GPU."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from placewright.cli.main import main; main(sys.argv[1:])"
    )
    graph = write_graph(GRAPH, tmp_path / "graph.json")
    cluster = write_cluster(CLUSTER, tmp_path / "cluster.yaml")
    command = ["operators", "plan", graph, "--on", cluster, "--planner", "round-robin"]
    process = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "warning: costs of diamond are computed from FLOPs and bytes" in process.stderr
