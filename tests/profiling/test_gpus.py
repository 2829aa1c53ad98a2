"""GPUs of this machine are measured, others are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from placewright.cluster.cluster import Cluster, Device
from placewright.cluster.devices import analytic_seconds
from placewright.graph.graph import Graph
from placewright.numerics.arrays import FloatArray
from placewright.profiling import measuring, profiler
from placewright.profiling.profiler import GpuHere, ProfileTable, fits, gpus_here, profile
from tests.runtime.chain import diamond

CLUSTER = Cluster((Device("c"), Device("g", kind="gpu", memory_bytes=1e4), Device("h", kind="gpu")))


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with one GPU, on which a step takes a second an operator, or two one by one."""
    calls = []

    on_cpu, alone_on_cpu = measuring.in_place_seconds, measuring.isolated_seconds

    def whole_step(
        graph: Graph, state: Mapping[str, torch.Tensor], *, gpu: int | None = None, cores: int = 1
    ) -> FloatArray:
        if gpu is None:
            return on_cpu(graph, state, cores=cores)
        calls.append(f"in place on {gpu}")
        return np.ones(len(graph.operators))

    def one_by_one(graph: Graph, *, torch_device: str = "cpu", cores: int = 1) -> FloatArray:
        if torch_device == "cpu":
            return alone_on_cpu(graph, cores=cores)
        calls.append(f"isolated on {torch_device}")
        return np.full(len(graph.operators), 2.0)

    monkeypatch.setattr(measuring, "in_place_seconds", whole_step)
    monkeypatch.setattr(measuring, "isolated_seconds", one_by_one)
    monkeypatch.setattr(profiler, "gpus_here", lambda devices: {"g": GpuHere(0, "some model")})
    return calls


def test_only_the_gpu_that_is_here_is_measured_and_only_once(one_gpu: list[str]) -> None:
    """The CPU and the GPU are measured, the second GPU is computed; a kept profile is used."""
    graph, state = diamond()
    table = ProfileTable()
    problem = profile(graph, CLUSTER, state=state, table=table)
    assert problem.compute_s[:, 1].tolist() == [1.0] * 4
    formula = analytic_seconds(graph.operators, CLUSTER.devices[2])
    assert np.array_equal(problem.compute_s[:, 2], formula)
    profile(graph, CLUSTER, state=state, table=table)
    assert one_gpu == ["in place on 0"]


def test_a_step_that_may_not_fit_is_measured_operator_by_operator(one_gpu: list[str]) -> None:
    """So is one without weights; nothing is measured where costs are to be computed."""
    graph, state = diamond()
    small = replace(CLUSTER.devices[1], memory_bytes=100)
    assert fits(graph, CLUSTER.devices[1])
    assert not fits(graph, small)
    cluster = Cluster((CLUSTER.devices[0], small))
    problem = profile(graph, cluster, state=state)
    assert problem.compute_s[:, 1].tolist() == [2.0] * 4
    profile(graph, CLUSTER)
    profile(graph, CLUSTER, method="analytic")
    assert one_gpu == ["isolated on cuda:0"] * 2


def test_what_is_measured_on_a_gpu_is_scaled_by_its_speed(one_gpu: list[str]) -> None:
    """Half the speed is twice the time, but for a kind that the device is better at."""
    graph, state = diamond()
    slow = replace(CLUSTER.devices[1], speed=0.5, speed_by_kind={"relu": 4.0})
    cluster = Cluster((CLUSTER.devices[0], slow))
    table = ProfileTable()
    assert profile(graph, cluster, state=state, table=table).compute_s[0, 1] == 0.5
    assert profile(graph, cluster, state=state, table=table).compute_s[1:, 1].tolist() == [2.0] * 3
    assert one_gpu == ["in place on 0"]


def test_gpus_are_counted_in_the_clusters_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are, by their position among the GPUs."""
    assert gpus_here(CLUSTER.devices) == {} or torch.cuda.is_available()
    has_gpus(monkeypatch, 1)
    assert gpus_here(CLUSTER.devices) == {"g": GpuHere(0, "model 0")}


def test_only_gpus_of_one_node_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the node that is called as this machine, or of the first, however many are here."""
    has_gpus(monkeypatch, 4)
    devices = [Device(f"{node}{k}", kind="gpu", node=node) for k in range(2) for node in "xy"]
    monkeypatch.setenv("PLACEWRIGHT_NODE", "elsewhere")
    assert gpus_here(devices) == {"x0": GpuHere(0, "model 0"), "x1": GpuHere(1, "model 1")}
    monkeypatch.setenv("PLACEWRIGHT_NODE", "y")
    assert list(gpus_here(devices)) == ["y0", "y1"]


def has_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A machine with so many."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda k: f"model {k}")
