"""capture(model, inputs) -> Graph: the way from a PyTorch model into Placewright."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from placewright.errors import MissingDependencyError
from placewright.graph.graph import Graph

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("torch", extra="torch", purpose="capturing a model") from error

from placewright.capturing.assemble import assemble
from placewright.capturing.inference import trace_inference
from placewright.capturing.lower import lower
from placewright.capturing.modules import module_tree
from placewright.capturing.optimizer import append_updates
from placewright.capturing.parameters import check_memory
from placewright.capturing.source import ModelSource, load_model, mean_square
from placewright.capturing.training import trace_training

__all__ = ["ModelSource", "capture", "capture_source", "load_model"]


def capture(
    model: torch.nn.Module,
    inputs: Any,
    *,
    training: bool = False,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
    targets: Any = None,
    optimizer: str = "adam",
    lr: float = 1e-3,
    name: str = "",
) -> Graph:
    """What one step of `model` computes, as operators and tensors, with a program to run it.

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
        ``adam`` (as ``torch.optim.Adam(fused=True)``) or ``sgd``.
    lr
        Learning rate.

    Raises
    ------
    UnsupportedError
        The model cannot be traced; says where in it and why.
    InputError
        The model does not run on these inputs.

    Warns
    -----
    CaptureWarning
        A module counts steps in an attribute that is a number: a program has its first value.

    Notes
    -----
    What is captured is what eager PyTorch runs on the CPU, operator by operator, with one known
    departure in the last digits: in evaluation mode eager replaces a whole
    ``nn.TransformerEncoderLayer`` by one fused kernel.
    """
    name = name or type(model).__name__
    settings: Mapping[str, Any] = {}
    if training:
        sketch = lower(trace_training(model, inputs, loss_fn or mean_square, targets))
        settings = append_updates(sketch, optimizer, lr)
    else:
        sketch = lower(trace_inference(model, inputs))
    source = ModelSource(model, inputs, loss_fn if training else None, targets)
    check_memory(sketch.changed(), source)
    return _with_modules(assemble(sketch, name, training=training, optimizer=settings), model)


def _with_modules(graph: Graph, model: torch.nn.Module) -> Graph:
    kept = (entry for entry in graph.program.inputs if entry.role in ("parameter", "buffer"))
    return replace(graph, modules=module_tree(model, {e.key: e.colocation for e in kept}))


def capture_source(source: ModelSource, *, training: bool = False, **settings: Any) -> Graph:
    """`capture` of what `load_model` returned."""
    return capture(
        source.model,
        source.inputs,
        training=training,
        loss_fn=source.loss_fn,
        targets=source.targets,
        **{"name": source.name, **settings},
    )
