"""The size of a job, and the devices of its sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from placewright.cluster.cluster import Cluster
from placewright.errors import WorkerError
from placewright.graph.graph import Graph
from placewright.graph.program import Program
from placewright.runtime.engines.local import LocalGroup
from tests.operators.adaptive.jobs import job


class Opened:
    """A session that remembers what it was opened on."""

    def __init__(self, graph: Graph, cluster: Cluster, state: Mapping[str, torch.Tensor]) -> None:
        self.cluster, self.state, self.up = cluster, state, False

    def __enter__(self) -> Opened:
        self.up = True
        return self


def test_a_snapshot_takes_what_steps_change() -> None:
    """Parameters and buffers, in bytes; not the batch."""
    _, training_job = job()
    assert isinstance(training_job.graph.program, Program)
    changed = [
        training_job.state[item.name] for item in training_job.graph.program.inputs if item.mutated
    ]
    assert training_job.state_bytes == sum(t.numel() * t.element_size() for t in changed) > 0


def test_a_session_is_on_those_who_are_named_with_what_has_changed() -> None:
    """Their links, the state as it was but for what is given; up when it is returned."""
    _, training_job = job()
    name = next(iter(training_job.state))
    new = training_job.state[name] + 1
    made: Any = replace(training_job, open=Opened).session(("c", "a"), {name: new})
    assert made.up
    assert made.cluster.device_names == ("a", "c")
    assert {link.source for link in made.cluster.links} == {"a", "c"}
    assert made.state.keys() == training_job.state.keys()
    assert made.state[name] is new
    assert training_job.state[name] is not new


def test_workers_that_do_not_come_up_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start has a limit like every order; here it is none at all."""
    _, training_job = job()
    monkeypatch.setattr(LocalGroup, "start_limit_s", 0.0)
    with pytest.raises(WorkerError, match=r"'a', 'b'.*no answer in time"):
        training_job.session(("a", "b"), {})
