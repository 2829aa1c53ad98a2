"""capture(model, inputs) -> Graph: a PyTorch model in six stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from placewright.errors import MissingDependencyError
from placewright.graph.graph import Graph

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("torch", extra="torch", purpose="capturing a model") from error

from placewright.capturing.assembly import assemble
from placewright.capturing.checks import check_memory
from placewright.capturing.colocation import colocate
from placewright.capturing.dataflow import beside_use, resolve
from placewright.capturing.isolation import isolated_trace
from placewright.capturing.lowering import lower
from placewright.capturing.optimizer import append_recipe
from placewright.capturing.recipe import OptimizerName, TrainingRecipe, recipe_of
from placewright.capturing.source import ModelSource, load_model
from placewright.capturing.tracing import trace
from placewright.io.arguments import checked

__all__ = [
    "CapturedCall",
    "ModelSource",
    "capture",
    "capture_call",
    "capture_source",
    "load_model",
]


@checked
def capture(
    model: torch.nn.Module,
    inputs: Any,
    *,
    training: bool = False,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
    targets: Any = None,
    optimizer: OptimizerName | torch.optim.Optimizer | TrainingRecipe = "adam",
    lr: float = 1e-3,
    name: str = "",
) -> Graph:
    """Capture one step of `model` as operators and tensors, with a program to run it.

    Nothing is computed: the model is traced on fake tensors, so it may live on the meta device.
    The model is left as it was, its training mode included.

    Parameters
    ----------
    inputs
        A tuple or list of positional arguments, a dict of keyword arguments, or one tensor.
    training
        Take the whole step: forward, loss, backward, update of parameters and buffers.
    loss_fn
        ``loss_fn(outputs, targets) -> scalar``; the mean square of the outputs stands in.
    optimizer
        ``adam`` (as ``torch.optim.Adam(fused=True)``), ``sgd``, an optimizer object that has the
        model's parameters, or a `placewright.TrainingRecipe`.
    lr
        Learning rate of an optimizer that is a name.

    Raises
    ------
    UnsupportedError
        The model cannot be traced, says where in it and why; it is not a function of its inputs
        (it draws from `random`, or computes with what it counts); or the optimizer does not work
        tensor by tensor.
    InputError
        The model does not run on these inputs.

    Notes
    -----
    What is captured is what eager PyTorch runs on the CPU, operator by operator, with one known
    departure in the last digits: in evaluation mode eager replaces a whole
    ``nn.TransformerEncoderLayer`` by one fused kernel.
    """
    source = ModelSource(model, inputs, loss_fn if training else None, targets, name)
    recipe = recipe_of(optimizer, lr) if training else None
    return capture_call(replace(source, recipe=recipe), training=training).graph


@dataclass(frozen=True, slots=True, eq=False)
class CapturedCall:
    """A captured step and what a call of the model returns.

    `structure`: what the model returned, an empty tensor in the place of each output of the
    program, in order: `placewright.capturing.containers.refilled` puts others there. ``None`` for a
    training step whose recipe keeps no outputs.
    """

    graph: Graph
    structure: Any


def capture_call(source: ModelSource, *, training: bool = False) -> CapturedCall:
    """Capture one step of a model and the structure of what it returns; see `capture`."""
    with isolated_trace(type(source.model).__name__):
        return _captured(source if training else replace(source, loss_fn=None), training=training)


def _captured(source: ModelSource, *, training: bool) -> CapturedCall:
    """The six stages."""
    recipe = (source.recipe or TrainingRecipe()) if training else None
    model, name = source.model, source.name or type(source.model).__name__
    traced = trace(source, training=training)  # one functional fx graph, in two traces
    step = lower(traced)  # calls on named values
    if recipe is not None:
        step = append_recipe(step, recipe, source)
    check_memory(step.mutated(), source)
    flow = resolve(beside_use(step))  # producers, consumers, aliases, hidden orders
    groups = colocate(flow)  # what runs on one device
    return CapturedCall(assemble(flow, groups, model, name), traced.structure)


@checked
def capture_source(source: ModelSource, *, training: bool = False, **settings: Any) -> Graph:
    """`capture` of what `load_model` returned; its recipe, if any, goes before `settings`."""
    if source.recipe is not None:
        settings["optimizer"] = source.recipe
    return capture(
        source.model,
        source.inputs,
        training=training,
        loss_fn=source.loss_fn,
        targets=source.targets,
        **{"name": source.name, **settings},
    )
