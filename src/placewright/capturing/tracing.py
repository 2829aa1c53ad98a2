"""Stage 1, `trace`: one step of a model as a functional fx graph, inference or training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch.fx import traceback

from placewright.capturing.checks import check_parameters
from placewright.capturing.containers import MicroBatch, micro_batches, refilled, tensors_of
from placewright.capturing.functional import (
    StepInput,
    functional_graph,
    outputs_apart,
    step_inputs,
    write_back,
)
from placewright.capturing.python_state import in_mode
from placewright.capturing.source import ModelSource, TrainingRecipe, default_loss
from placewright.capturing.split_loss import CountedMeans, LossSplit, split_rows, whole_counts
from placewright.errors import InputError, UnsupportedError


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A functional graph and what its placeholders and outputs mean.

    Attributes
    ----------
    module
        Every node carries ``meta["custom"]`` with ``module`` and ``phase``.
    inputs
        One per placeholder, in order.
    outputs
        Names of the first outputs.
    gradients
        Keys of the parameters whose gradients are the outputs after those.
    structure
        What the model returned, an empty tensor in the place of each output; ``None`` in training.
    """

    module: fx.GraphModule
    inputs: tuple[StepInput, ...]
    outputs: tuple[str, ...]
    gradients: tuple[str, ...] = ()
    structure: Any = None


def trace(source: ModelSource, *, training: bool) -> Traced:
    """Trace one step.

    Inference is the forward pass in evaluation mode without gradients. A training step is forward,
    loss and backward in training mode: its outputs are the loss, then the gradients of
    `Traced.gradients`. Updates of buffers (running statistics) are in it, updates of parameters
    are appended later (`placewright.capturing.optimizer`).
    """
    if not training:
        return _inference(source)
    try:
        return _training(source, torch.autograd.grad)
    except InputError as error:
        # Other errors are the model's own, and would come again.
        if _REENTRANT not in str(error.__cause__):
            raise
    return _training(source, _accumulated_gradients)


def _inference(source: ModelSource) -> Traced:
    reads = step_inputs(replace(source, loss_fn=None, targets=None))
    names: list[str] = []
    structure: list[Any] = []
    empty = torch.empty(0)

    def step(*values: Tensor) -> Sequence[Tensor]:
        casting = (source.recipe or TrainingRecipe()).casting()
        with torch.no_grad(), traceback.annotate({"phase": "forward"}), casting:
            made, rebound = reads.run(values, lambda outputs, _: outputs, called=True)
            outputs = outputs_apart(tensors_of(made), rebound)
            write_back(rebound)
        if not outputs:
            raise InputError(
                "the model returns no tensor",
                where=f"model {type(source.model).__name__}",
                by=f"got {type(made).__name__}",
                hint="return tensors, alone or in tuples, lists, dicts or dataclasses that "
                "PyTorch's pytrees know",
            )
        names[:] = output_names(len(outputs))
        structure[:] = [refilled(made, repeat(empty))]
        return outputs

    with in_mode(source.model, training=False) as state:
        module = functional_graph(step, reads, state)
    return Traced(module, reads.tensors, tuple(names), structure=structure[0])


_REENTRANT = "use_reentrant=True"
"""In the error of PyTorch (2.13) for checkpoints that accumulate gradients in their backward."""


def _accumulated_gradients(
    loss: Tensor, parameters: Sequence[Tensor], *, allow_unused: bool
) -> Sequence[Tensor | None]:
    """Gradients as ``loss.backward()`` leaves them, which reentrant checkpoints need."""
    torch.autograd.backward(loss)
    gradients = [value.grad for value in parameters]
    for value in parameters:
        value.grad = None
    return gradients


def _training(source: ModelSource, differentiate: Any) -> Traced:
    recipe, loss_fn = source.recipe or TrainingRecipe(), source.loss_fn or default_loss
    reads = step_inputs(source, scaled=recipe.scales)
    inputs, kept = reads.tensors, _Kept()
    trained = [k for k, x in enumerate(inputs) if x.role == "parameter" and x.value.requires_grad]
    reached: list[str] = []
    empty = torch.empty(0)  # a real one, made outside of the trace
    split = split_rows(source) if recipe.micro_batches > 1 else LossSplit()

    def counts(outputs: Any, part: MicroBatch) -> list[Tensor]:
        """What means of the whole batch are divided by; computed once, by no micro-batch."""
        targets = refilled(source.targets, iter(kept.targets))
        with traceback.annotate({"micro_batch": 0}):
            return whole_counts(split, loss_fn, outputs, targets, part)

    def loss_of(outputs: Any, targets: Any, part: MicroBatch | None) -> Tensor:
        if part is None:
            loss = loss_value(loss_fn, outputs, targets)
            check_loss(loss)
            return loss
        if kept.counts is None:
            kept.counts = counts(outputs, part)
        with CountedMeans(split.divisors(kept.counts, part.share)):
            loss = loss_value(loss_fn, outputs, targets)
        check_loss(loss)
        return loss * part.share

    def begun(values: Sequence[Tensor]) -> None:
        """Begin a step on the whole batch."""
        kept.counts = None
        kept.targets = [x for x, e in zip(values, inputs, strict=True) if e.role == "target"]

    def forward(*values: Tensor) -> Sequence[Tensor]:
        """Of the whole batch, or of its first micro-batch, as `step` begins."""
        begun(values)
        part, own = next(_parts(inputs, values, recipe))
        with traceback.annotate({"phase": "forward"}), recipe.casting():
            return [reads.run(own, lambda made, given: loss_of(made, given, part))[0]]

    def one(values: Sequence[Tensor], part: MicroBatch | None) -> _Pass:
        """Forward and backward pass; a micro-batch counts by its share."""

        def differentiated(outputs: Any, targets: Any) -> tuple[Tensor, Sequence[Tensor | None]]:
            loss = loss_of(outputs, targets, part)
            kept.outputs = outputs if recipe.outputs else None
            scaled = loss * values[-1] if recipe.scales else loss
            # Private, and the only way to know which module a backward operator belongs to.
            setup_stacktrace_preservation_hooks([scaled.grad_fn] if scaled.grad_fn else [])
            with (
                traceback.annotate({"phase": "backward"}),
                torch.autocast("cpu", enabled=False) if recipe.autocast else nullcontext(),
            ):
                parameters = [values[k] for k in trained]
                return loss, differentiate(scaled, parameters, allow_unused=True)

        with traceback.annotate({"phase": "forward"}), recipe.casting():
            (loss, gradients), rebound = reads.run(values, differentiated)
        used = {inputs[k].key: g for k, g in zip(trained, gradients, strict=True) if g is not None}
        _check_gradients(used)
        outputs = outputs_apart([x.detach() for x in tensors_of(kept.outputs)], rebound)
        with traceback.annotate({"phase": "forward"}):
            write_back(rebound)
        kept.names = output_names(len(outputs)) if recipe.outputs else []
        kept.structure = refilled(kept.outputs, repeat(empty))
        kept.outputs = None
        return _Pass(loss.detach(), outputs, used)

    def step(*values: Tensor) -> Sequence[Tensor]:
        begun(values)
        made = _in_micro_batches(_parts(inputs, values, recipe), one)
        reached[:] = made.gradients
        return [made.loss, *made.outputs, *made.gradients.values()]

    _check_trained(source.model, trained)
    check_parameters(source)
    # Whatever mode the caller is in, a training step has gradients.
    with (
        torch.enable_grad(),
        in_mode(source.model, source.loss_fn, training=True) as state,
    ):
        module = functional_graph(step, reads, state, forward)
    return Traced(module, inputs, ("loss", *kept.names), tuple(reached), kept.structure)


@dataclass(frozen=True, slots=True)
class _Pass:
    """What a forward and a backward pass made; gradients by the key of their parameter."""

    loss: Tensor
    outputs: Sequence[Tensor]
    gradients: dict[str, Tensor]

    def added(self, other: _Pass) -> _Pass:
        """The sum of losses and gradients with those of the next micro-batch."""
        gradients = dict(self.gradients)
        with torch.no_grad():
            for key, gradient in other.gradients.items():
                with traceback.annotate({"module": key.rpartition(".")[0]}):
                    known = gradients.get(key)
                    gradients[key] = gradient if known is None else known + gradient
            loss = self.loss + other.loss
        return _Pass(loss, self.outputs, gradients)


def _parts(
    inputs: Sequence[StepInput], values: Sequence[Tensor], recipe: TrainingRecipe
) -> Iterator[tuple[MicroBatch | None, Sequence[Tensor]]]:
    """What is passed forward and backward, one after the other: the batch, or its parts."""
    if recipe.micro_batches == 1:
        yield None, values
        return
    fed = [entry.role in ("input", "target") for entry in inputs]
    batch = [value for value, given in zip(values, fed, strict=True) if given]
    for k, part in enumerate(micro_batches(batch, recipe.micro_batches, recipe.reduction), 1):
        with traceback.annotate({"micro_batch": k, "phase": "forward"}):
            own = [part.part(x) if g else x for x, g in zip(values, fed, strict=True)]
        yield part, own


def _in_micro_batches(
    parts: Iterable[tuple[MicroBatch | None, Sequence[Tensor]]],
    one: Callable[[Sequence[Tensor], MicroBatch | None], _Pass],
) -> _Pass:
    """One pass per part after the other, as a loop in eager mode does them."""
    total: _Pass | None = None
    outputs = []
    for k, (part, own) in enumerate(parts, 1):
        if part is None:
            return one(own, None)
        with traceback.annotate({"micro_batch": k}):
            made = one(own, part)
        outputs.append(made.outputs)
        _check_rows(made.outputs, part)
        with traceback.annotate({"micro_batch": k, "phase": "backward"}):
            total = made if total is None else total.added(made)
    assert total is not None
    with traceback.annotate({"phase": "forward"}):
        whole = [torch.cat(same) for same in zip(*outputs, strict=True)]
    return replace(total, outputs=whole)


def _check_rows(outputs: Sequence[Tensor], part: MicroBatch) -> None:
    """Raise where outputs of micro-batches are no rows of the output of the batch."""
    for output in outputs:
        if output.dim() == 0 or output.shape[0] != part.rows:
            raise UnsupportedError(
                "an output without a row per sample cannot be put together from micro-batches",
                where="TrainingRecipe(outputs=True)",
                by=f"shape {tuple(output.shape)}, {part.rows} rows of inputs",
                hint="leave outputs=True out, or train without micro-batches",
            )


@dataclass(slots=True)
class _Kept:
    """What the model returned in a training step, and what its tensors are called.

    `targets`: of the whole batch; `counts`: what its means are divided by, once a micro-batch
    needs it.
    """

    outputs: Any = None
    targets: list[Tensor] = field(default_factory=list)
    counts: list[Tensor] | None = None
    names: list[str] = field(default_factory=list)
    structure: Any = None


def output_names(count: int) -> list[str]:
    """Names of the outputs of a program that returns so many tensors."""
    return ["output"] if count == 1 else [f"output.{k}" for k in range(count)]


def _check_gradients(gradients: Mapping[str, Tensor]) -> None:
    for key, gradient in gradients.items():
        if gradient.layout is not torch.strided:
            raise UnsupportedError(
                f"a gradient of layout {gradient.layout}",
                where=f"parameter {key!r}",
                hint="build the embedding with sparse=False; for SparseAdam, which takes no "
                "others, train with Adam, which also moves rows that a batch does not look up, "
                "or with SGD or Adagrad without momentum, which do not",
            )


def _check_trained(model: nn.Module, trained: Sequence[int]) -> None:
    if not trained:
        raise InputError(
            "no parameter requires a gradient, so there is nothing to train",
            where=f"model {type(model).__name__}",
            hint="capture it with training=False",
        )


def loss_value(loss_fn: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor:
    """What the loss function returns; `InputError` where it needs targets and there are none."""
    try:
        return loss_fn(outputs, targets)
    except (AttributeError, TypeError) as error:
        if targets is not None or "NoneType" not in str(error):
            raise
        raise InputError(
            "the loss needs targets, and none are given",
            where="loss_fn(outputs, targets)",
            by=f"targets are None: {error}",
            hint="give targets=... like those of a training step, in a factory as the fourth "
            "of (model, inputs, loss_fn, targets)",
        ) from error


def check_loss(loss: Any) -> None:
    """Raise `InputError` unless a loss can be differentiated."""
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(
            "the loss must be one number that depends on the parameters",
            where="loss_fn(outputs, targets)",
            by=f"got {got}",
            hint="reduce it with .mean() or .sum(), without .detach()",
        )
