"""What the nodes train: a model, its loss and optimizer, and the samples of a data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from placewright.capturing.gradients import BatchProgram, BatchPrograms, counting, evaluated
from placewright.capturing.guards import Guards
from placewright.capturing.lowered import input_name
from placewright.capturing.mode import in_mode
from placewright.capturing.source import ModelSource, as_arguments
from placewright.capturing.split_loss import CountedMeans, labels_of_a_row, split_loss
from placewright.capturing.state import demand_written, is_expanded
from placewright.capturing.updates import (
    GivenOptimizer,
    Update,
    check_parameters,
    optimizer_states,
    refuse_options,
    refuse_trained_loss,
    update_of,
    write_states,
)
from placewright.capturing.zoo.convolutional import classifier, pictures
from placewright.errors import InputError, UnsupportedError
from placewright.io.stored import write_file
from placewright.planning.contract import LOG
from placewright.samples.problem import SampleProblem
from placewright.samples.training.node_training import correct_of
from placewright.samples.training.sample_set import SampleSet, tensors

TESTED = 256
"""Samples of the test set that are looked at at once."""

EXAMPLE = 32
"""Samples on which the loss is tried."""

PADDED = 1e-3
"""Relative difference of a loss with and without padding that rounding does not explain."""


class Evaluation(NamedTuple):
    """Loss of the samples that count, share that is classified correctly, number of samples.

    The accuracy is not a number where outputs are no scores of classes.
    """

    loss: float
    accuracy: float
    samples: int


@dataclass(slots=True, eq=False)
class SampleJob:
    """A model, its loss and optimizer, and samples to train and to test on.

    Raises
    ------
    UnsupportedError
        The model cannot be captured; its loss is not made of the losses of single samples; or nodes
        cannot do what the optimizer does.

    Attributes
    ----------
    model
        Gets what was learned by `write_back`.
    loss_fn
        ``loss_fn(outputs, targets)``, a mean or a sum over the samples of a batch.
    test
        Samples that the loss and the accuracy after each epoch are of; without them the loss is
        that of the epoch.
    reduction
        ``mean`` or ``sum``: how the loss is made of those of the samples.
    labels
        Of every sample; 0: any number.
    """

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    samples: SampleSet
    optimizer: GivenOptimizer = "sgd"
    lr: float = 0.1
    test: SampleSet | None = None
    reduction: str = field(init=False)
    labels: float = field(init=False)
    _guards: Guards = field(init=False)
    _gradients: BatchPrograms = field(init=False)
    _tests: BatchPrograms = field(init=False)
    _counts: BatchPrograms = field(init=False)
    _mean: int = field(init=False)

    def __post_init__(self) -> None:
        for samples in (self.samples, self.test):
            if samples is not None and not len(samples):
                raise InputError("there is no sample", where=samples.where)
            if samples is not None:
                samples.batch(1)
        self.samples.pad_alike(self.test)
        refuse_options(self.optimizer, "accumulate", "autocast", "scaler")
        _ = self._source(1), self.update  # refuse what is no model, and other optimizers
        refuse_trained_loss(self.model, self.loss_fn)
        if isinstance(self.optimizer, Optimizer):
            check_parameters(self.optimizer, self.model, type(self.model).__name__)
        held = chain(self.model.named_parameters(), self.model.named_buffers())
        demand_written(dict(held), f"model {type(self.model).__name__}")
        self._capture()
        self._note_padding()

    @property
    def update(self) -> Update:
        """What the optimizer does, with its numbers as they are now."""
        return update_of(self.optimizer, self.lr, self.model)

    def renew(self) -> None:
        """Capture again what has changed since: modes, frozen parameters, attributes, settings."""
        if self._guards.follow().of_code:
            self._capture()

    def _capture(self) -> None:
        self._guards = Guards(self.model, self.loss_fn, training=True)
        self.reduction = self._demand_samples_apart()
        self._gradients = BatchPrograms(self._source, training=True)
        self._tests = BatchPrograms(lambda n: evaluated(self._source(n)), training=False)
        self._counts = BatchPrograms(
            lambda n: counting(self._source(n), self._mean), training=False, updating=False
        )

    def _source(self, count: int) -> ModelSource:
        inputs, targets = self.samples.batch(count)
        name = type(self.model).__name__
        return ModelSource(self.model, inputs, self.loss_fn, targets, name)

    def _demand_samples_apart(self) -> str:
        """How the loss of a batch is made of those of its samples: ``mean`` or ``sum``."""
        source = self._source(min(len(self.samples), EXAMPLE))
        found = split_loss(source)
        where = f"model {type(self.model).__name__}"
        if found.refusal:
            raise UnsupportedError(
                "the model mixes samples of a batch, which the nodes share"
                if found.mixes
                else "the loss of a batch is not made of the losses of its samples",
                where=where,
                by=found.refusal,
                hint="take a loss that is a mean or a sum over samples",
            )
        if sum(found.counted) > 1 or (found.inside and any(found.counted)):
            raise UnsupportedError(
                "the model computes its loss itself, and divides it by what it counts"
                if found.inside
                else "a loss with several means over labels or masks",
                where=where,
                by=f"{sum(found.counted)} of them",
                hint="give a loss_fn with one mean over labels, or a plain mean over samples",
            )
        if any(found.counted) and found.reduction == "sum":
            raise UnsupportedError(
                "a loss that adds a mean over labels and a sum over samples",
                where=where,
                hint="make both means, or both sums: nodes weight their gradients by one of them",
            )
        self._mean = found.counted.index(True) if any(found.counted) else -1
        self.labels = labels_of_a_row(source, self._mean) if self._mean >= 0 else 0.0
        return found.reduction

    def _note_padding(self) -> None:
        """Warn where the loss of a sample depends on how far `collate` has padded it."""
        padded = self.samples.padded
        if padded is None:
            return
        with in_mode(self.model, self.loss_fn, training=False), torch.no_grad():
            try:
                alone, beside = (float(self.loss_fn(self._called(x), y)) for x, y in padded)
            except RuntimeError:  # a model of one shape, which its samples are always padded to
                return
        if not math.isclose(alone, beside, rel_tol=PADDED, abs_tol=PADDED):
            LOG.warning(
                "the loss of %s depends on padding: %.6g for a sample alone, %.6g padded to the "
                "largest one, as nodes train it; mask what is padded",
                type(self.model).__name__,
                alone,
                beside,
            )

    def _called(self, inputs: Any) -> Any:
        """What the model returns for a batch."""
        arguments = as_arguments(inputs, type(self.model).__name__)
        return self.model(**arguments) if isinstance(arguments, dict) else self.model(*arguments)

    def evaluate(self, samples: SampleSet) -> Evaluation:
        """Loss and accuracy of the model as it is now, in evaluation mode.

        Raises `InputError`: there is no sample.
        """
        if not len(samples):
            raise InputError("there is no sample", where=samples.where)
        loss = counted = correct = 0.0
        with in_mode(self.model, self.loss_fn, training=False), torch.no_grad():
            for first in range(0, len(samples), TESTED):
                rows = range(first, min(first + TESTED, len(samples)))
                inputs, targets = samples.rows(rows)
                outputs = self._called(inputs)
                with CountedMeans() as means:
                    mean = float(self.loss_fn(outputs, targets))
                count = float(means.counts[self._mean]) if self._mean >= 0 else float(len(rows))
                loss += mean * (count if self.reduction == "mean" else 1.0) if count else 0.0
                counted += count
                scores = outputs if isinstance(outputs, Tensor) else None
                labels = targets if isinstance(targets, Tensor) else None
                correct += math.nan if labels is None else correct_of(scores, labels)
        return Evaluation(loss / counted, correct / len(samples), len(samples))

    def programs(self, sizes: Sequence[int]) -> tuple[BatchProgram, ...]:
        """Loss and gradients for batches of these sizes."""
        return tuple(self._gradients.of(size) for size in sorted(set(sizes)))

    def counts(self, sizes: Sequence[int]) -> tuple[BatchProgram, ...]:
        """What the loss is divided by, for batches of these sizes; none for a plain mean."""
        return tuple(self._counts.of(n) for n in sorted(set(sizes))) if self._mean >= 0 else ()

    def tests(self) -> tuple[BatchProgram, ...]:
        """Loss and outputs for the test samples, at most `TESTED` at once; none without them."""
        if self.test is None:
            return ()
        sizes = {min(TESTED, len(self.test)), len(self.test) % TESTED} - {0}
        return tuple(self._tests.of(size) for size in sorted(sizes))

    def state(self) -> dict[str, Tensor]:
        """Parameters, buffers and the optimizer's state by the names of a training state."""
        found = {
            input_name(role, key): value.detach().clone().contiguous()
            for (role, key), value in self._source(1).values().items()
            if role in ("parameter", "buffer") and isinstance(value, Tensor)
        }
        if isinstance(self.optimizer, Optimizer):
            found |= optimizer_states(self.optimizer, self.model, self.update)
        return found

    def save(self, path: Path) -> Path:
        """Write the model's parameters and buffers as a safetensors file."""
        held = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        return write_file(path, save(held))

    def write_back(self, state: Mapping[str, Tensor]) -> None:
        """Write what was learned into the model, and into the optimizer object."""
        with torch.no_grad():
            for (role, key), held in self._source(1).values().items():
                name = input_name(role, key)
                if name in state and isinstance(held, Tensor) and not is_expanded(held):
                    held.copy_(state[name])
        if isinstance(self.optimizer, Optimizer):
            write_states(self.optimizer, self.model, state)


def write_batch(samples: SampleSet, count: int, path: Path) -> str:
    """The first `count` samples as a file of tensors ``0``, ``1``, ...; its path."""
    inputs, targets = samples.batch(count)
    leaves = enumerate(tensors(inputs, targets))
    save_file({str(k): leaf.contiguous() for k, leaf in leaves}, path)
    return str(path)


def example_job(problem: SampleProblem, seed: int = 0, **sizes: int) -> SampleJob:
    """A small convolutional network on pictures of digits: as many as the problem has samples.

    Handwritten ones where scikit-learn is installed and has enough of each class.
    """
    wanted = problem.samples.sum(axis=0)
    train, test = pictures(wanted.tolist(), seed)
    model, loss_fn = classifier(seed=seed, **sizes)
    sets = [SampleSet((pixels, labels), "pictures") for pixels, labels in (train, test)]
    return SampleJob(model, loss_fn, sets[0], "sgd", 0.1, sets[1])
