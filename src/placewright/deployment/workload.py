"""Workload: a captured model on a cluster, with what its operators cost there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from placewright.capturing.recipe import TrainingRecipe
    from placewright.capturing.source import ModelSource
    from placewright.cluster.cluster import Cluster
    from placewright.graph.graph import Graph
    from placewright.operators.problem import OperatorProblem
    from placewright.planning.monitor import Monitor
    from placewright.profiling.build import Method
    from placewright.profiling.table import ProfileTable


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """What is placed, and where.

    Attributes
    ----------
    source
        The model with its example inputs, its loss and its targets.
    state
        A real tensor for every program input.
    problem
        The graph on the whole cluster, as profiled.
    structure
        What the model returns (`placewright.capturing.model.CapturedCall`), ``None`` if unknown.
    versions
        Of the model's weights when `state` was made of them.
    """

    source: ModelSource
    graph: Graph
    cluster: Cluster
    state: Mapping[str, torch.Tensor]
    problem: OperatorProblem
    structure: Any = None
    versions: tuple[int, ...] = ()

    def refreshed(self) -> Workload:
        """The workload with the model's weights as they are now; itself where none has changed."""
        from placewright.capturing.state import initial_state, versions

        if not self.versions or versions(self.source) == self.versions:
            return self
        state = initial_state(self.source, self.graph.program)
        return replace(self, state=state, versions=versions(self.source))

    def asked(self, **options: Any) -> Workload:
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
) -> ModelSource:
    """A model with what it is fed; a `ModelSource` is taken as it is."""
    from placewright.capturing.source import ModelSource, mean_square

    if isinstance(model, ModelSource):
        return _with_recipe(model, optimizer, lr) if training else model
    name = type(model).__name__
    if inputs is None:
        raise InputError(
            "the model's inputs are missing",
            where=f"place({name})",
            hint="give an example: a tensor, a tuple or list of arguments, or a dict",
        )
    if training and loss_fn is None:
        loss_fn = mean_square
    source = ModelSource(model, inputs, loss_fn, targets, name)
    return _with_recipe(source, optimizer, lr) if training else source


def _with_recipe(
    source: ModelSource, optimizer: str | torch.optim.Optimizer | TrainingRecipe, lr: float
) -> ModelSource:
    """The source with a recipe; one that it has already stays."""
    from placewright.capturing.named_state import parameters_of
    from placewright.capturing.recipe import recipe_of

    recipe = source.recipe or recipe_of(optimizer, lr)
    return replace(source, recipe=recipe.resolved(list(parameters_of(source).values())))


def profiled(
    source: ModelSource,
    cluster: Cluster,
    *,
    training: bool,
    method: Method,
    table: ProfileTable | None,
    monitor: Monitor,
) -> Workload:
    """Capture a model and profile it on a cluster; see `placewright.capture` and `profile`."""
    from placewright.capturing.model import capture_call
    from placewright.capturing.state import initial_state, versions
    from placewright.profiling.build import profile

    with monitor.meter(f"capturing {source.name}"):
        captured = capture_call(source, training=training)
        graph = captured.graph
    with monitor.meter(f"profiling {graph.name} on {cluster.name}"):
        state = initial_state(source, graph.program)
        problem = profile(graph, cluster, state=state, method=method, table=table)
    return Workload(source, graph, cluster, state, problem, captured.structure, versions(source))
