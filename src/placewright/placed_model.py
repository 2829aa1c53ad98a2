"""place(model, inputs) -> Result: capture, profile and solve in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from placewright.cluster.cluster import Cluster
from placewright.planning.contract import Planner, Progress, silent
from placewright.planning.result import Result
from placewright.planning.solving import AUTO, solve


def place(
    model: Any,
    inputs: Any,
    cluster: Cluster | None = None,
    training: bool = False,
    *,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    targets: Any = None,
    planner: str | Planner = AUTO,
    time_limit_s: float = 60.0,
    seed: int = 0,
    progress: Progress = silent,
) -> Result:
    """Decide where each operator of a PyTorch model should run.

    Parameters
    ----------
    model
        A ``torch.nn.Module``.
    inputs
        What the model is called with: a tensor, a tuple or list of arguments, or a dict.
    cluster
        The devices; this machine by default.
    training
        Place the whole step (forward, loss, backward, Adam) instead of the forward pass.
    loss_fn, targets
        ``loss_fn(outputs, targets)``; the mean square of the outputs where none is given.

    Returns
    -------
    A `Result`: the plan, its value in seconds, a lower bound and the gap.
    """
    from placewright.capturing.model import capture
    from placewright.capturing.source import ModelSource, mean_square
    from placewright.capturing.state import initial_state
    from placewright.profiling.build import profile

    if training and loss_fn is None:
        loss_fn = mean_square
    name = type(model).__name__
    graph = capture(model, inputs, training=training, loss_fn=loss_fn, targets=targets, name=name)
    source = ModelSource(model, inputs, loss_fn, targets, name)
    state = initial_state(source, graph.program)
    problem = profile(graph, cluster or Cluster.detect(), state=state)
    return solve(problem, planner, time_limit_s=time_limit_s, seed=seed, progress=progress)
