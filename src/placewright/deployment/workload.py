"""Workload: a captured model on a cluster, with what its operators cost there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError
from placewright.numerics.collector import collector_paused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from placewright.capturing.guards import Guards
    from placewright.capturing.model import Captured, State
    from placewright.capturing.source import ModelSource
    from placewright.cluster.cluster import Cluster
    from placewright.graph.graph import Graph
    from placewright.io.tensor_files import StoredTensor
    from placewright.operators.problem import OperatorProblem
    from placewright.planning.contract import Monitor
    from placewright.profiling.profiler import Method, ProfileTable


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """Peak of a device as the judge predicted it, and as it was measured in its worker."""

    predicted_bytes: float
    measured_bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """What is placed, and where.

    Attributes
    ----------
    captured
        The model with its example, its graph and what it returns.
    state
        A tensor for every program input, here or in a file; ``None`` for a model without weights,
        which can be planned and not run.
    problem
        The graph on the whole cluster, as profiled.
    guards
        What the captured step assumes of the model and the process.
    weights
        What the files hold from which `state` was made, by name in the model.
    files
        Where they are, to be opened again if they change; ``None`` if that is of no use.
    """

    captured: Captured
    cluster: Cluster
    state: State | None
    problem: OperatorProblem
    guards: Guards | None = None
    weights: Mapping[str, StoredTensor] = field(default_factory=dict)
    files: str | Path | None = None

    @property
    def source(self) -> ModelSource:
        """The model with its example inputs, its loss and its targets."""
        return self.captured.source

    @property
    def graph(self) -> Graph:
        """The operators, with the program that executes them."""
        return self.captured.graph

    @property
    def values(self) -> State:
        """The state, to run with.

        Raises `InputError`: the model has no weights.
        """
        if self.state is None:
            model = self.source.model
            missing = sum(x.is_meta for x in (*model.parameters(), *model.buffers()))
            raise InputError(
                "the model is on the meta device and has no weights, so it cannot be run",
                where=f"model {self.graph.name}",
                by=f"{missing} of its tensors have no values",
                hint="give their safetensors files: place(..., weights=FOLDER)",
            )
        return self.state

    def refreshed(self, *, files: bool = False, model: bool = False) -> Workload:
        """The workload with the weights as they are now.

        `files`: look whether those in files are others.
        `model`: those of the model in this process are.
        """
        if files and self.files is not None and self._are_others():
            from placewright.io.tensor_files import stored_tensors

            stored = stored_tensors(self.files)
            return replace(self, state=self.captured.state(stored), weights=stored)
        if not model or self.state is None or self.weights:
            return self
        return replace(self, state=self.captured.state())

    def _are_others(self) -> bool:
        """Whether a file was replaced since its header was read."""
        one_of_each = {stored.path: stored for stored in self.weights.values()}
        return not all(stored.is_current() for stored in one_of_each.values())

    def with_options(self, **options: Any) -> Workload:
        """The same workload with other options of the problem: its objective, for one."""
        return replace(self, problem=self.problem.replace(**options))


@collector_paused()
def profiled(
    source: ModelSource,
    cluster: Cluster,
    *,
    training: bool,
    method: Method,
    table: ProfileTable | None,
    weights: str | Path | None = None,
    monitor: Monitor,
    planned: bool = True,
) -> Workload:
    """Capture a model and profile it on a cluster; see `placewright.capture` and `profile`.

    `planned`: a plan is wanted, and nothing is measured where there can be none.
    """
    from placewright.capturing.guards import Guards
    from placewright.capturing.isolation import refuse_transforms
    from placewright.capturing.model import capture_call
    from placewright.capturing.real_calls import called
    from placewright.io.tensor_files import stored_tensors
    from placewright.profiling.profiler import profile

    refuse_transforms(f"model {source.name}")
    with monitor.meter(f"capturing {source.name}"):
        real = called(source, training=training) if weights is None else None
        captured = capture_call(source, training=training, real=real)
        guards = Guards(source.model, source.loss_fn if training else None, training=training)
    if planned:
        refuse_what_cannot_fit(captured.graph, cluster)
    with monitor.meter(f"profiling {captured.graph.name} on {cluster.name}"):
        stored = {} if weights is None else stored_tensors(weights)
        state = captured.state(stored)
        measured = state if weights is None or method == "in-place" else None
        problem = profile(captured.graph, cluster, state=measured, method=method, table=table)
    return Workload(captured, cluster, state, problem, guards, stored, weights)


def refuse_what_cannot_fit(graph: Graph, cluster: Cluster) -> None:
    """Raise `InfeasibleError` where the bytes of a graph fit a cluster at no costs whatever."""
    import numpy as np

    from placewright.operators.bounds import check_fits
    from placewright.profiling.profiler import operator_problem

    at_no_cost = np.zeros((len(graph.operators), len(cluster.devices)))
    check_fits(operator_problem(graph, cluster, at_no_cost))
