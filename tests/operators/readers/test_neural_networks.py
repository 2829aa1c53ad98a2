"""Workloads with accelerators around host memory: published splits, variants, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.cluster.files import load_cluster
from placewright.errors import InputError, UnknownNameError
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.readers.neural_networks import read_expert, read_msr, read_pipedream
from tests.published import published

EXPERTS = {
    ("layer_bert24_inference", "bert24_inference"): 20.084,
    ("layer_bert24_training", "bert24_training"): 49.405,
    ("layer_gnmt_inference", "gnmt_inference"): 46.209,
    ("layer_resnet50_inference", "resnet50_inference"): 43.918,
    ("layer_resnet50_training", "resnet50_inference"): 112.108,
}


@pytest.mark.parametrize(("workload", "expert"), EXPERTS)
def test_published_expert_splits_have_their_published_values(workload: str, expert: str) -> None:
    """Max load of the human splits in ms; a split of inference is taken for training too."""
    problem = read_msr(published(f"msr/throughput/{workload}.json"), contiguous=True)
    plan = read_expert(published(f"msr/experts/{expert}_expert.json"), problem)
    judgement = judge(problem, plan)
    assert 1e3 * judgement.value == pytest.approx(EXPERTS[workload, expert], abs=6e-4)
    assert judgement.feasible, judgement.violation


def written(folder: Path, **changes: Any) -> Path:
    """Three nodes with every quirk."""
    data: dict[str, Any] = {
        "maxSizePerFPGA": 10.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            {"id": 7, "supportedOnFpga": 0, "cpuLatency": 4.0, "fpgaLatency": 1.0,
             "isBackwardNode": 0, "colorClass": 3, "size": 1.0, "layerId": 5},
            {"id": 2, "supportedOnFpga": True, "cpuLatency": 6.0, "fpgaLatency": 2.0,
             "isBackwardNode": False},
            {"id": 5, "supportedOnFpga": 1, "cpuLatency": 8.0, "fpgaLatency": 3.0,
             "isBackwardNode": 1, "colorClass": 3},
        ],
        "edges": [
            {"sourceId": 7, "destId": 2, "cost": 0.5, "size": 99},
            {"sourceId": 7, "destId": 5, "cost": 0.5},
            {"sourceId": 2, "destId": 5, "cost": 0.25},
            {"sourceId": 2, "destId": 5, "cost": 0.25},
        ],
    }  # fmt: skip
    path = folder / "w.json"
    path.write_text(json.dumps(data | changes))
    return path


def test_variants_of_the_file_format(tmp_path: Path) -> None:
    """Booleans as numbers, no colour class, no size, an edge twice; milliseconds are seconds."""
    p = read_msr(written(tmp_path), cost_scale=1000)
    assert p.operator_names == ("7", "2", "5")
    assert p.device_names == ("acc0", "acc1", "cpu0")
    assert p.compute_s.tolist() == [
        [np.inf, np.inf, 0.004],
        [0.002, 0.002, 0.006],
        [0.003, 0.003, 0.008],
    ]
    assert p.colocation.tolist() == [0, 1, 0]
    assert p.is_backward.tolist() == [False, False, True]
    assert p.tensor_names == ("7", "2")
    assert p.tensor_bytes.tolist() == [500, 250]
    assert p.consumers.tolist() == [1, 2, 2]
    assert p.resident_bytes.tolist() == [1, 0, 0]
    assert p.memory_bytes.tolist() == [10, 10, np.inf]
    assert p.host_seconds_per_byte.tolist() == [0.001, 0.001, 0]


def test_values_are_seconds(tmp_path: Path) -> None:
    """By hand: 2 ms of work, 0.5 ms in, 0.25 ms out."""
    problem = read_msr(written(tmp_path))
    plan = OperatorPlan(np.array([2, 0, 2]))
    assert judge(problem, plan).value == pytest.approx(0.012)
    fast_cpu = problem.replace(compute_s=problem.compute_s * [1.0, 1.0, 0.1])
    assert judge(fast_cpu, plan).value == pytest.approx(0.00275)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": [{"sourceId": 7, "destId": 1, "cost": 0.5}]}, "edges[0].destId"),
        ({"edges": [{"sourceId": 7, "destId": 2, "cost": -1}]}, "edges[0].cost"),
        (
            {"edges": [{"sourceId": 7, "destId": j, "cost": j} for j in (2, 5)]},
            "edges[1].cost: edges from one node must have one cost",
        ),
        ({"edges": [{"sourceId": a, "destId": 9 - a, "cost": 1} for a in (7, 2)]}, "cycle"),
        ({"maxFPGAs": 0, "maxCPUs": 0}, "no device"),
        ({"maxCPUs": 10**6}, "maxCPUs"),
        ({"nodes": []}, "nodes"),
        ({"maxSizePerFPGA": None}, "maxSizePerFPGA"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """With the file and the field."""
    with pytest.raises(InputError) as error:
        read_msr(written(tmp_path, **changes))
    assert message in str(error.value)


def test_a_split_names_what_it_lacks(tmp_path: Path) -> None:
    """Unknown nodes, devices that are not there, and operators left out."""
    problem = read_msr(written(tmp_path))
    split = tmp_path / "split.json"
    for data, message, kind in (
        ({"cpus": [{"nodes": [9]}]}, "unknown operator '9'", UnknownNameError),
        ({"cpus": [{"nodes": []}, {"nodes": [7]}]}, "unknown device 'cpu1'", UnknownNameError),
        ({"cpus": [{"nodes": [7]}]}, "operator '2' has no device", InputError),
    ):
        split.write_text(json.dumps(data))
        with pytest.raises(kind) as error:
            read_expert(split, problem)
        assert message in str(error.value)
    split.write_text(json.dumps({"cpus": [{"nodes": [7]}], "fpgas": [{"nodes": [2]}]}))
    assert read_expert(split, problem).placement.tolist() == [2, 0, 2]


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
