"""Loss and gradients of a model as calls, for batches of any number of samples.

A captured step holds its batch size in some whole numbers: shapes of views, counts of a mean. Most
of them follow the batch size on a line, so that two captures tell the step of every other size;
a third one of another size checks it. Where it differs, each size is captured when it is first
asked for. Batches of one sample always are: PyTorch broadcasts them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.checks import check_memory
from placewright.capturing.isolation import isolated_trace
from placewright.capturing.lowering import Lowered, lower
from placewright.capturing.program_calls import (
    apply_settings,
    current_settings,
    dead_after,
    filled,
    materialise,
    resolve_target,
)
from placewright.capturing.source import ModelSource, modules_in
from placewright.capturing.split_loss import CountedMeans, LossSplit
from placewright.capturing.state import decode
from placewright.capturing.tracing import trace
from placewright.errors import UnsupportedError
from placewright.graph.graph import Const, Instruction, ProgramInput, ProgramOutput, Ref, TensorSpec

CAPTURED = (3, 4, 7)
"""Batch sizes: the first two give the line, the third checks it."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchProgram:
    """Calls on a batch of `samples`, in the order of eager mode.

    Attributes
    ----------
    outputs
        ``loss``, then gradients by the names of their parameters; or what the model returns.
    constants
        Name of an input -> base64 of its bytes.
    settings
        As of `placewright.graph.graph.Program`.
    """

    samples: int
    inputs: tuple[ProgramInput, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[ProgramOutput, ...]
    constants: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str | bool | int] = field(default_factory=dict)


MESSAGES = (BatchProgram, ProgramInput, ProgramOutput, Instruction, Ref, Const, TensorSpec)
"""Dataclasses that a program sent to a worker holds."""


class BatchPrograms:
    """Programs of one step by batch size.

    Parameters
    ----------
    batch
        The source with a batch of so many samples.
    training
        Loss and gradients in training mode; else what the model returns, in evaluation mode.
    updating
        Whether calls remain that do nothing but change buffers.
    """

    def __init__(
        self, batch: Callable[[int], ModelSource], *, training: bool, updating: bool = True
    ) -> None:
        self._batch, self._training, self._updating = batch, training, updating
        self._known: dict[int, BatchProgram] = {}
        self._on_line: bool | None = None

    def of(self, samples: int) -> BatchProgram:
        """The program for a batch of `samples`.

        Raises `UnsupportedError`, `InputError`: the model cannot be captured.
        """
        if samples not in self._known:
            line = samples > 1 and self._has_line()
            self._known[samples] = self._derived(samples) if line else self._captured(samples)
        return self._known[samples]

    def _has_line(self) -> bool:
        if self._on_line is None:
            first, second, third = map(self._captured, CAPTURED)
            self._known |= {first.samples: first, second.samples: second}
            try:
                self._on_line = _same(self._derived(third.samples), third)
            except _NoLine:
                self._on_line = False
        return self._on_line

    def _derived(self, samples: int) -> BatchProgram:
        first, second = self._known[CAPTURED[0]], self._known[CAPTURED[1]]
        steps = (samples - first.samples) / (second.samples - first.samples)
        made: BatchProgram = _between(first, second, steps)
        return made

    def _captured(self, samples: int) -> BatchProgram:
        source = self._batch(samples)
        with isolated_trace(type(source.model).__name__):
            step = lower(trace(source, training=self._training))
            check_memory(step.mutated(), source)
        _refuse_changed_parameters(step.mutated(), type(source.model).__name__)
        return _program(step if self._updating else step.needed(), samples)


def _refuse_changed_parameters(mutated: Collection[str], model: str) -> None:
    """Raise where a part of a batch would change a parameter before its gradient is used."""
    changed = sorted(name for name in mutated if name.startswith("parameter:"))
    if changed:
        raise UnsupportedError(
            "the forward pass changes a parameter in place, which parts of a batch on several "
            "nodes would each do otherwise",
            where=f"model {model}, {changed[0].replace(':', ' ')}",
            hint="change it in the loop instead (an embedding with max_norm does this: leave "
            "max_norm out), or take placewright.place(..., training=True)",
        )


class _NoLine(Exception):  # noqa: N818  (it is no error: another way is taken)
    """Two programs differ in more than whole numbers."""


def _between(first: Any, second: Any, steps: float) -> Any:
    """What lies `steps` differences of two programs beyond the first one."""
    if type(first) is not type(second):
        raise _NoLine
    if isinstance(first, BatchProgram | ProgramInput | ProgramOutput | Instruction | TensorSpec):
        names = first.__dataclass_fields__
        parts = {n: _between(getattr(first, n), getattr(second, n), steps) for n in names}
        return replace(first, **parts)
    if isinstance(first, tuple | list):
        if len(first) != len(second):
            raise _NoLine
        return type(first)(_between(a, b, steps) for a, b in zip(first, second, strict=True))
    if isinstance(first, Mapping):
        if list(first) != list(second):
            raise _NoLine
        return {key: _between(first[key], second[key], steps) for key in first}
    if type(first) is int:
        return round(first + steps * (second - first))
    if first != second:
        raise _NoLine
    return first


def _same(one: BatchProgram, other: BatchProgram) -> bool:
    """Whether two programs are equal, field by field."""
    return all(getattr(one, n) == getattr(other, n) for n in one.__dataclass_fields__)


def _program(step: Lowered, samples: int) -> BatchProgram:
    gradients = (ProgramOutput(key, value) for key, value in step.gradients.items())
    return BatchProgram(
        samples,
        step.inputs,
        tuple(call.instruction for call in step.calls),
        (*step.outputs, *gradients),
        step.constants,
        current_settings(),
    )


class _Whole(nn.Module):
    """A model with its loss, called with inputs and targets."""

    def __init__(self, source: ModelSource, then: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.model, self.loss_fn, self.then = source.model, source.loss_fn, then
        # Not by `train`, which would give the modules inside this mode, too.
        self.training = source.model.training

    def forward(self, inputs: Any, targets: Any) -> Any:
        named = isinstance(inputs, dict)
        outputs = self.model(**inputs) if named else self.model(*inputs)
        return self.then(self.loss_fn, outputs, targets)


def evaluated(source: ModelSource) -> ModelSource:
    """The source as a model that returns its loss, then its outputs."""
    return _whole(source, lambda loss_fn, outputs, targets: (loss_fn(outputs, targets), outputs))


def counting(source: ModelSource, counted: Sequence[bool]) -> ModelSource:
    """The source as a model that returns what its means are divided by: one vector.

    `counted`: which of its means, as `CountedMeans` counts them.
    """

    def count(loss_fn: Any, outputs: Any, targets: Any) -> Tensor:
        with CountedMeans() as means:
            loss_fn(outputs, targets)
        return torch.stack(
            [c.double() for c, own in zip(means.counts, counted, strict=True) if own]
        )

    return _whole(source, count)


def divided(source: ModelSource, counted: tuple[bool, ...]) -> ModelSource:
    """The source with a loss whose counted means are divided by numbers that come with a batch.

    Behind the targets, in the order of the means.
    """
    loss_fn = source.loss_fn
    # A module among the arguments is found there, with the name that it has in the plain loss.
    held = () if isinstance(loss_fn, nn.Module) else modules_in(loss_fn)
    divisors = tuple(torch.ones((), dtype=torch.float64) for own in counted if own)
    return replace(
        source,
        loss_fn=partial(_divided, counted, loss_fn, *held),
        targets=(source.targets, divisors),
    )


def _divided(counted: tuple[bool, ...], loss_fn: Any, *given: Any) -> Any:
    *_, outputs, (targets, divisors) = given
    with CountedMeans(LossSplit(counted=counted).divisors(divisors, 1.0)):
        return loss_fn(outputs, targets)


def _whole(source: ModelSource, then: Callable[[Any, Any, Any], Any]) -> ModelSource:
    inputs = (source.arguments, source.targets)
    return ModelSource(_Whole(source, then), inputs, name=source.name)


class ProgramRun:
    """Executes a program, batch after batch.

    Parameters
    ----------
    state
        Parameters and buffers by input name; buffers that the program updates are changed.
    """

    def __init__(self, program: BatchProgram, state: Mapping[str, Tensor]) -> None:
        self.program = program
        self.held = {i.name: state[i.name] for i in program.inputs if i.name in state}
        for item in program.inputs:
            if item.name in program.constants:
                self.held[item.name] = decode(program.constants[item.name], item.spec)
        self.calls = [
            (
                resolve_target(call.target),
                materialise(call.args),
                {key: materialise(value) for key, value in call.kwargs.items()},
                call.results,
            )
            for call in program.instructions
        ]
        kept = {o.value for o in program.outputs} | {i.name for i in program.inputs}
        self.dead = dead_after(program.instructions, kept)

    @torch.no_grad()
    def __call__(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs by name; `batch`: inputs and targets by input name."""
        apply_settings(self.program.settings)
        values: dict[str, Any] = {**self.held, **batch}
        for (target, args, kwargs, results), dead in zip(self.calls, self.dead, strict=True):
            named = {key: filled(value, values) for key, value in kwargs.items()}
            made = target(*filled(args, values), **named)
            if len(results) == 1 and not isinstance(made, tuple | list):
                values[results[0]] = made
            else:
                values.update(zip(results, made, strict=True))
            for name in dead:
                del values[name]
        return {output.name: values[output.value] for output in self.program.outputs}
