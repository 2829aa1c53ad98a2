"""StepForms: a model's steps on batches of other shapes than the example's, and its evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from placewright.capturing.containers import constants_of, in_order_of, leaves_of, refilled
from placewright.capturing.inputs import as_arguments
from placewright.capturing.model import capture_call
from placewright.capturing.source import ModelSource
from placewright.capturing.state import decode
from placewright.errors import InputError
from placewright.graph.graph import Graph
from placewright.graph.program import Program
from placewright.operators.carried_plan import carried_placement
from placewright.runtime.call_programs import CallProgram

Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...], str], ...]
"""Name, shape and dtype of every tensor of a batch."""

EPOCH = "epoch"
"""With a batch, the epoch of its step where that is not 0: repeated steps are as they were."""

BATCH = ("input", "target")
"""Roles of what a batch holds."""


@dataclass(frozen=True, slots=True, eq=False)
class StepForm:
    """A captured step for batches of one shape.

    `structure`: what the model returns, with empty tensors.
    `constants`: of the program, by its inputs.
    """

    graph: Graph
    structure: Any
    constants: Mapping[str, Tensor]

    @property
    def program(self) -> Program:
        """The program of the graph."""
        assert isinstance(self.graph.program, Program)
        return self.graph.program

    @classmethod
    def of(cls, source: ModelSource, *, training: bool) -> StepForm:
        """Capture a step on the source's own inputs and targets."""
        captured = capture_call(source, training=training)
        program = captured.graph.program
        constants = {
            item.name: decode(program.constants[item.name], item.spec)
            for item in program.inputs
            if item.role == "constant"
        }
        return cls(captured.graph, captured.structure, constants)

    def batch(self, inputs: Any, targets: Any = None) -> dict[str, Tensor]:
        """The tensors that the program reads of a batch, by program input."""
        given = batch_tensors(inputs, targets)
        names = [item.name for item in self.program.inputs if item.role in BATCH]
        return {name: given[name] for name in names if name in given}

    def returned(self, outputs: Mapping[str, Tensor]) -> Any:
        """The model's return value made of outputs of the program."""
        return refilled(self.structure, iter(model_outputs(self.program, outputs)))


def model_outputs(program: Program, outputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Those outputs of a program that the model returned, in order."""
    names = [output.name for output in program.outputs]
    return [outputs[name] for name in names if name.partition(".")[0] == "output"]


def batch_tensors(inputs: Any, targets: Any = None) -> dict[str, Tensor]:
    """Tensors of a batch by program input: ``input:0``, ``target:0``."""
    pairs = zip(BATCH, (as_arguments(inputs, "batch"), targets), strict=True)
    return {
        f"{role}:{key}": leaf
        for role, tree in pairs
        for key, leaf in leaves_of(tree)
        if isinstance(leaf, Tensor)
    }


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """Shapes of a batch; settings that go with it are left out."""
    found = [
        (name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
        if name.partition(":")[0] in BATCH
    ]
    return tuple(sorted(found))


@dataclass(slots=True, eq=False)
class StepForms:
    """Captures steps for batches of other shapes when they first come, and keeps them.

    `source`: the model with its example and its recipe.
    `graph`: the training step that is placed: for batches like the example.
    `epoch`: how often the model has become another one since; each has captures of its own.
    """

    source: ModelSource
    graph: Graph
    epoch: int = 0
    _training: dict[tuple[int, Shapes], StepForm] = field(default_factory=dict)
    _evaluation: dict[tuple[Any, ...], StepForm] = field(default_factory=dict)
    _placed: dict[tuple[int, tuple[int, ...]], CallProgram] = field(default_factory=dict)

    def in_order(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """A batch for training in the containers of the example."""
        arguments = as_arguments(self.source.inputs, self.graph.name)
        given = in_order_of(arguments, as_arguments(inputs, "batch"))
        return given, in_order_of(self.source.targets, targets)

    def check_constants(self, inputs: Any, targets: Any) -> None:
        """Raise `InputError` where such a batch has other values than the example beside tensors.

        A captured step has them built in.
        """
        example = (as_arguments(self.source.inputs, self.graph.name), self.source.targets)
        for role, one, other in zip(BATCH, example, (inputs, targets), strict=True):
            known, found = dict(constants_of(one)), dict(constants_of(other))
            for path in dict.fromkeys((*known, *found)):
                values = [repr(x[path]) if path in x else "a tensor" for x in (found, known)]
                if values[0] != values[1]:
                    raise InputError(
                        f"{role} {path} differs from the example's".replace("  ", " "),
                        where="Trainer.step",
                        by=f"{values[0]}, the example has {values[1]}",
                        hint="what is no tensor is a constant of the captured step: make a tensor "
                        "of it, or place the model with such an example",
                    )

    def training(self, inputs: Any, targets: Any) -> StepForm:
        """The form of a training step on such a batch."""
        key = self.epoch, shapes_of(batch_tensors(inputs, targets))
        if key not in self._training:
            source = replace(self.source, inputs=inputs, targets=targets)
            self._training[key] = StepForm.of(source, training=True)
        return self._training[key]

    def evaluation(self, inputs: Any) -> StepForm:
        """The form of a forward pass in evaluation mode."""
        self._check_dtypes(batch_tensors(inputs))
        key = (self.epoch, shapes_of(batch_tensors(inputs)), *constants_of(inputs))
        if key not in self._evaluation:
            source = replace(self.source, inputs=inputs, loss_fn=None, targets=None)
            self._evaluation[key] = StepForm.of(source, training=False)
        return self._evaluation[key]

    def _check_dtypes(self, given: Mapping[str, Tensor]) -> None:
        """Raise `InputError` where an input has another dtype than the example's.

        Tracing on fake tensors does not find all of them, and a worker that raises names no input.
        """
        example = batch_tensors(self.source.inputs)
        for name, tensor in given.items():
            if name in example and tensor.dtype != example[name].dtype:
                raise InputError(
                    f"{name.replace(':', ' ')} has another dtype than the example's",
                    where="Trainer.evaluate",
                    by=f"{tensor.dtype}, the example has {example[name].dtype}",
                    hint=f"convert it with .to({example[name].dtype})",
                )

    def of_batch(self, batch: Mapping[str, Tensor]) -> StepForm | None:
        """The form of a batch that `training` has seen; ``None`` for one like the example."""
        epoch = int(batch[EPOCH].item()) if EPOCH in batch else 0
        return self._training.get((epoch, shapes_of(batch)))

    def marked(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """A batch with the epoch in which its step is done."""
        return {**batch, EPOCH: torch.tensor(self.epoch)} if self.epoch else batch

    def renew(self) -> None:
        """Capture what is called from now on anew: the model has become another one."""
        self.epoch += 1

    def placed(self, form: StepForm, placement: Sequence[int]) -> CallProgram:
        """The form on the devices that have the parameters; `placement`: of the training step."""
        key = (id(form), tuple(placement))
        if key not in self._placed:
            carried = carried_placement(self.graph, placement, form.graph)
            _draw_where(self.graph, placement, form.graph, carried)
            # In the order of the capture, which is that of eager mode.
            order = range(len(form.graph.operators))
            self._placed[key] = CallProgram(form.graph, carried, order, form.constants)
        return self._placed[key]


def _draw_where(graph: Graph, placement: Sequence[int], other: Graph, carried: list[int]) -> None:
    """Random numbers are drawn where the placed step draws them: they are one sequence."""
    home, drawing = next((placement[k] for k in _random(graph)), None), set(_random(other))
    if home is None:
        return
    groups = {other.operators[k].colocation for k in drawing} - {""}
    for k, operator in enumerate(other.operators):
        if operator.colocation in groups or k in drawing:
            carried[k] = home


def _random(graph: Graph) -> Iterator[int]:
    assert isinstance(graph.program, Program)
    return (k for k, call in enumerate(graph.program.instructions) if call.random)
