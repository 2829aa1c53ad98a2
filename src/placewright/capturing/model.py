"""capture(model, inputs) -> Graph: a PyTorch model in six stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from placewright.errors import InputError, MissingDependencyError
from placewright.graph.graph import Graph, Program

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("torch", extra="torch", purpose="capturing a model") from error

from placewright.capturing.assembly import assemble
from placewright.capturing.checks import check_memory
from placewright.capturing.containers import leaves_of, refilled
from placewright.capturing.dataflow import beside_use, colocate, resolve
from placewright.capturing.isolation import isolated_trace
from placewright.capturing.lowering import lower
from placewright.capturing.optimizer import append_recipe
from placewright.capturing.real_calls import RealCalls
from placewright.capturing.source import (
    ModelSource,
    OptimizerName,
    TrainingRecipe,
    as_arguments,
    load_model,
    recipe_of,
)
from placewright.capturing.state import decode, initial_state, stored_state
from placewright.capturing.tracing import trace
from placewright.io.arguments import checked
from placewright.io.tensor_files import AnyTensor, StoredTensor

BATCH = ("input", "target")
"""Roles of program inputs that come with every batch."""

State: TypeAlias = Mapping[str, AnyTensor]
"""A tensor for every program input, here or in a file."""

__all__ = [
    "Captured",
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
        ``loss_fn(outputs, targets) -> scalar``; where none is given, `default_loss`.
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
class Captured:
    """A captured step: the model, its graph, and what a call of it returns.

    Attributes
    ----------
    source
        The model with the example, loss and recipe that it was captured with.
    structure
        What the model returned, an empty tensor in the place of each output of the program, in
        order. ``None`` for a training step whose recipe keeps no outputs.
    """

    source: ModelSource
    graph: Graph
    structure: Any = None

    @property
    def program(self) -> Program:
        """How the graph is executed.

        Raises `InputError`: it was not captured from PyTorch.
        """
        if not isinstance(self.graph.program, Program):
            raise InputError(
                "the graph has no program to execute",
                where=self.graph.name,
                hint="capture a PyTorch model",
            )
        return self.graph.program

    def state(self, weights: Mapping[str, StoredTensor] | None = None) -> State | None:
        """A tensor for every program input, the model's own where it has one; see `initial_state`.

        `None` for a model on the meta device, unless its `weights` are in files.

        Raises `InputError`: the files are of another model.
        """
        if weights:
            return stored_state(self.source, self.program, weights)
        if any(m.value.is_meta for members in self.source.members() for m in members):
            return None
        return initial_state(self.source, self.program, copy=False)

    def constants(self) -> dict[str, torch.Tensor]:
        """The values of the program's constants."""
        program = self.program
        items = [item for item in program.inputs if item.role == "constant"]
        return {item.name: decode(program.constants[item.name], item.spec) for item in items}

    def batch(self, inputs: Any, targets: Any = None) -> dict[str, torch.Tensor]:
        """The tensors that the program reads of a batch, by program input."""
        given = batch_tensors(inputs, targets)
        names = [item.name for item in self.program.inputs if item.role in BATCH]
        return {name: given[name] for name in names if name in given}

    def returned(self, outputs: Mapping[str, torch.Tensor]) -> Any:
        """What the model returns, made of outputs of the program."""
        names = [output.name for output in self.program.outputs]
        own = (outputs[name] for name in names if name.partition(".")[0] == "output")
        return refilled(self.structure, own)


def batch_tensors(inputs: Any, targets: Any = None) -> dict[str, torch.Tensor]:
    """Tensors of a batch by program input: ``input:0``, ``target:0``."""
    pairs = zip(BATCH, (as_arguments(inputs, "batch"), targets), strict=True)
    return {
        f"{role}:{key}": leaf
        for role, tree in pairs
        for key, leaf in leaves_of(tree)
        if isinstance(leaf, torch.Tensor)
    }


def capture_call(
    source: ModelSource, *, training: bool = False, real: RealCalls | None = None
) -> Captured:
    """Capture one step of a model and the structure of what it returns; see `capture`.

    `real`: what the model computes, which the step is compared with.
    """
    with isolated_trace(type(source.model).__name__):
        return _captured(source, training=training, real=real)


def _captured(source: ModelSource, *, training: bool, real: RealCalls | None) -> Captured:
    """The six stages."""
    recipe = (source.recipe or TrainingRecipe()) if training else None
    own = source if training else replace(source, loss_fn=None)
    traced = trace(own, training=training)  # one functional fx graph, in two traces
    if real is not None:
        real.demand_of(traced)
    step = lower(traced)  # calls on named values
    if recipe is not None:
        step = append_recipe(step, recipe, own)
    check_memory(step.mutated(), own)
    flow = resolve(beside_use(step))  # producers, consumers, aliases, hidden orders
    groups = colocate(flow)  # what runs on one device
    return Captured(source, assemble(flow, groups, source), traced.structure)


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
