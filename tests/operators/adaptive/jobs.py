"""A small training job for the tests of adapt."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, default_loss
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.graph.graph import Graph
from placewright.operators.adaptive.run import AdaptiveJob
from placewright.profiling.profiler import profile
from tests.processes import limit_memory

LINKS = tuple(Link(a, b, 1e9, 5e-5) for a in "abc" for b in "abc" if a != b)
TRIO = Cluster(tuple(Device(n, node=n) for n in "abc"), LINKS, name="trio")


def net() -> torch.nn.Module:
    """Linear layers with a batch norm (buffers) and dropout (random numbers)."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(8, 3),
    )


def job(cluster: Cluster = TRIO) -> tuple[ModelSource, AdaptiveJob]:
    """Its training step on the cluster, costs by formula."""
    source, graph = small_source(), _captured()
    problem = profile(graph, cluster, method="analytic")
    return source, AdaptiveJob(graph, cluster, problem, initial_state(source, graph.program))


def small_source() -> ModelSource:
    """The model with a batch."""
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    return ModelSource(net(), (x,), default_loss, None, "small")


@cache
def _captured() -> Graph:
    """Once for all tests: nothing changes it."""
    return capture_source(small_source(), training=True)


def starve(session: Any, spare_bytes: int) -> None:
    """Limit the memory of the worker of b, the second one."""
    limit_memory(session.group.processes[1].pid, spare_bytes)
