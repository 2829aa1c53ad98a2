"""Profiles of PipeDream: published sums, the backward pass, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.cluster.files import load_cluster
from placewright.errors import InputError
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.readers.pipedream import read_pipedream
from tests.published import published

NUMBERS = "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size=4"
TWO = (
    "node1 -- Input -- " + NUMBERS.format(9, 0, 1) + "\n"
    "node2 -- Linear(a -- b) -- " + NUMBERS.format(1, 2, "[8; 2]") + "\n"
    "node3 -- ReLU -- " + NUMBERS.format(3, 4, 6.0) + "\n"
    "\tnode1 -- node2\n"
    "\tnode2 -- node3\n"
)


def test_a_layer_becomes_two_operators(tmp_path: Path) -> None:
    """Forward and backward share a device; gradients are as large as activations."""
    path = tmp_path / "two.graph.txt"
    path.write_text(TWO)
    p = read_pipedream(path, load_cluster("edge-duo"))
    assert p.name == "two"
    assert p.operator_names == ("node2", "node3", "node2/backward", "node3/backward")
    assert p.colocation.tolist() == [0, 1, 0, 1]
    assert p.tensor_bytes.tolist() == [10, 6, 10]
    assert p.consumers.tolist() == [1, 2, 3, 2]
    assert p.tensor_producer.tolist() == [0, 1, 3]
    assert p.resident_bytes.tolist() == [4, 4, 0, 0]
    first = judge(p, OperatorPlan(np.zeros(4))).value
    assert first == pytest.approx(0.010 / load_cluster("edge-duo").devices[0].speed)


@pytest.mark.parametrize(
    ("name", "layers"), [("alexnet", 22), ("gnmt", 45), ("resnet50", 176), ("vgg16", 40)]
)
def test_published_profiles_are_read(name: str, layers: int) -> None:
    """All layers but the data loader, each twice."""
    p = read_pipedream(published(f"pipedream/{name}.graph.txt"), load_cluster("edge-duo"))
    assert p.n == 2 * layers


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("node2 -- node3", "node2 -- node4", ":5: unknown node 'node4'"),
        ("[8; 2]", "[8; x]", ":2: activation_size must be numbers"),
        (", parameter_size=4", "", ":2: parameter_size is missing"),
        ("\tnode1", "node1", ":4: is neither a node nor an edge"),
    ],
)
def test_bad_lines_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    """With file and line."""
    path = tmp_path / "bad.txt"
    path.write_text(TWO.replace(old, new))
    with pytest.raises(InputError) as error:
        read_pipedream(path, load_cluster("edge-duo"))
    assert message in str(error.value)
