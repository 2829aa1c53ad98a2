"""Workload: a captured model on a cluster, with what its operators cost there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError
from placewright.numerics.collector import collector_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from placewright.capturing.guards import Guards
    from placewright.capturing.recipe import TrainingRecipe
    from placewright.capturing.source import ModelSource
    from placewright.cluster.cluster import Cluster
    from placewright.deployment.workers import State
    from placewright.graph.graph import Graph
    from placewright.io.tensor_files import StoredTensor
    from placewright.operators.problem import OperatorProblem
    from placewright.planning.contract import Monitor
    from placewright.profiling.build import Method
    from placewright.profiling.table import ProfileTable


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
    source
        The model with its example inputs, its loss and its targets.
    state
        A tensor for every program input, here or in a file; ``None`` for a model without weights,
        which can be planned and not run.
    problem
        The graph on the whole cluster, as profiled.
    structure
        What the model returns (`placewright.capturing.model.CapturedCall`), ``None`` if unknown.
    guards
        What the captured step assumes of the model and the process.
    weights
        What the files hold from which `state` was made, by name in the model.
    files
        Where they are, to be opened again if they change; ``None`` if that is of no use.
    """

    source: ModelSource
    graph: Graph
    cluster: Cluster
    state: State | None
    problem: OperatorProblem
    structure: Any = None
    guards: Guards | None = None
    weights: Mapping[str, StoredTensor] = field(default_factory=dict)
    files: str | Path | None = None

    @property
    def values(self) -> State:
        """The state, to run with.

        Raises `InputError`: the model has no weights.
        """
        if self.state is None:
            raise InputError(
                "the model is on the meta device and has no weights, so it cannot be run",
                where=f"model {self.graph.name}",
                by=f"{_meta_count(self.source.model)} of its tensors have no values",
                hint="give their safetensors files: place(..., weights=FOLDER)",
            )
        return self.state

    def refreshed(self, *, files: bool = False, model: bool = False) -> Workload:
        """The workload with the weights as they are now.

        `files`: look whether those in files are others.
        `model`: those of the model in this process are.
        """
        from placewright.capturing.state import initial_state

        if files and self.files is not None and self._are_others():
            from placewright.io.tensor_files import stored_tensors

            stored = stored_tensors(self.files)
            state = state_of(self.source, self.graph, stored)
            return replace(self, state=state, weights=stored)
        if not model or self.state is None or self.weights:
            return self
        return replace(self, state=initial_state(self.source, self.graph.program, copy=False))

    def _are_others(self) -> bool:
        """Whether a file was replaced since its header was read."""
        one_of_each = {stored.path: stored for stored in self.weights.values()}
        return not all(stored.is_current() for stored in one_of_each.values())

    def with_options(self, **options: Any) -> Workload:
        """The same workload with other options of the problem: its objective, for one."""
        return replace(self, problem=self.problem.replace(**options))


def source_of(
    model: Any,
    inputs: Any = None,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    targets: Any = None,
    *,
    training: bool = False,
    optimizer: str | torch.optim.Optimizer | TrainingRecipe = "adam",
    lr: float = 1e-3,
    micro_batches: int | None = None,
) -> ModelSource:
    """A model with what it is fed; a `ModelSource` is taken as it is."""
    import torch

    from placewright.capturing.source import ModelSource, mean_square

    if micro_batches is not None and not training:
        raise InputError(
            "micro-batches are for training steps",
            where=f"micro_batches={micro_batches}",
            hint="add training=True; for inference give several batches to placed.stream",
        )
    if isinstance(model, ModelSource):
        return with_recipe(model, optimizer, lr, micro_batches) if training else model
    name = type(model).__name__
    if not isinstance(model, torch.nn.Module):
        raise InputError(
            "a torch.nn.Module is placed",
            where=f"place({name})",
            hint="give the model itself, or what placewright.load_model returns; wrap a function "
            "into a module whose forward calls it",
        )
    if inputs is None:
        raise InputError(
            "the model's inputs are missing",
            where=f"place({name})",
            hint="give an example: a tensor, a tuple or list of arguments, or a dict",
        )
    if training and loss_fn is None:
        loss_fn = mean_square
    source = ModelSource(model, inputs, loss_fn, targets, name)
    return with_recipe(source, optimizer, lr, micro_batches) if training else source


def with_recipe(
    source: ModelSource,
    optimizer: str | torch.optim.Optimizer | TrainingRecipe = "adam",
    lr: float = 1e-3,
    micro_batches: int | None = None,
) -> ModelSource:
    """The source with a recipe; one that it has already stays, but for its micro-batches."""
    from placewright.capturing.recipe import recipe_of

    recipe = source.recipe or recipe_of(optimizer, lr)
    if micro_batches is not None:
        recipe = replace(recipe, micro_batches=micro_batches)
    return replace(source, recipe=recipe)


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
) -> Workload:
    """Capture a model and profile it on a cluster; see `placewright.capture` and `profile`."""
    from placewright.capturing.guards import Guards
    from placewright.capturing.inputs import as_arguments
    from placewright.capturing.mode import fill_caches
    from placewright.capturing.model import capture_call
    from placewright.io.tensor_files import stored_tensors
    from placewright.profiling.build import profile

    with monitor.meter(f"capturing {source.name}"):
        if method != "analytic" and weights is None:
            loss_fn, inputs = source.loss_fn, as_arguments(source.inputs, source.name)
            fill_caches(source.model, loss_fn, inputs, source.targets, training=training)
        captured = capture_call(source, training=training)
        guards = Guards(source.model, source.loss_fn if training else None, training=training)
        graph = captured.graph
    with monitor.meter(f"profiling {graph.name} on {cluster.name}"):
        stored = {} if weights is None else stored_tensors(weights)
        state = state_of(source, graph, stored)
        measured = state if weights is None or method == "in-place" else None
        problem = profile(graph, cluster, state=measured, method=method, table=table)
    made = (source, graph, cluster, state, problem, captured.structure, guards, stored)
    return Workload(*made, files=weights)


def _meta_count(model: torch.nn.Module) -> int:
    """Parameters and buffers on the meta device."""
    return sum(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def state_of(
    source: ModelSource, graph: Graph, weights: Mapping[str, StoredTensor] | None = None
) -> State | None:
    """Initial values of a captured model; ``None`` where it is on the meta device.

    `weights`: tensors in files by name in the model, from which workers read what they need.
    Raises `InputError`: the files are of another model.
    """
    from placewright.capturing.state import has_weights, initial_state, stored_state

    if weights:
        return stored_state(source, graph.program, weights)
    if not has_weights(source):
        return None
    return initial_state(source, graph.program, copy=False)
