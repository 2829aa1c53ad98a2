"""What the nodes train: a model, its loss and optimizer, and the samples of a data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from placewright.capturing.checks import check_plain
from placewright.capturing.gradients import (
    BatchProgram,
    BatchPrograms,
    counting,
    divided,
    evaluated,
)
from placewright.capturing.guards import Guards
from placewright.capturing.python_state import in_mode
from placewright.capturing.source import ModelSource, as_arguments
from placewright.capturing.split_loss import CountedMeans, LossSplit, split_loss
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
from placewright.graph.graph import input_name
from placewright.io.stored import write_file
from placewright.io.tensor_files import write_tensors
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
    split
        How the loss of a batch is made of those of its samples.
    """

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    samples: SampleSet
    optimizer: GivenOptimizer = "sgd"
    lr: float = 0.1
    test: SampleSet | None = None
    split: LossSplit = field(init=False)
    _guards: Guards = field(init=False)
    _gradients: BatchPrograms = field(init=False)
    _tests: BatchPrograms = field(init=False)
    _counts: BatchPrograms = field(init=False)

    def __post_init__(self) -> None:
        for samples in (self.samples, self.test):
            if samples is not None and not len(samples):
                raise InputError("there is no sample", where=samples.where)
            if samples is not None:
                samples.follow(self.samples)
                samples.demand_repeatable()
        self.samples.pad_alike(self.test)
        self.samples.demand_alone()
        refuse_options(self.optimizer, "accumulate", "autocast", "scaler")
        check_plain(self._source(1))
        _ = self.update  # refuse other optimizers
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
        self.split = self._demand_samples_apart()
        self._gradients = BatchPrograms(self._divided, training=True)
        self._tests = BatchPrograms(lambda n: evaluated(self._divided(n)), training=False)
        self._counts = BatchPrograms(
            lambda n: counting(self._source(n), self.split.counted), training=False, updating=False
        )

    def _source(self, count: int) -> ModelSource:
        inputs, targets = self.samples.batch(count)
        name = type(self.model).__name__
        return ModelSource(self.model, inputs, self.loss_fn, targets, name)

    def _divided(self, count: int) -> ModelSource:
        """The source with a loss that divides by what all nodes count, where it counts."""
        source = self._source(count)
        return divided(source, self.split.counted) if self.counts_labels else source

    @property
    def _example(self) -> int:
        """Samples on which the loss is tried."""
        return min(len(self.samples), EXAMPLE)

    @property
    def counts_labels(self) -> bool:
        """Whether the loss has means over something else than rows."""
        return any(self.split.counted)

    def _demand_samples_apart(self) -> LossSplit:
        """How the loss of a batch is made of those of its samples."""
        source = self._source(self._example)
        found = split_loss(source)
        where = f"model {type(self.model).__name__}"
        if found.refusal and found.fails:
            raise InputError(
                "the model or its loss fails on samples of the data set",
                where=f"{where}, {self.samples.where}",
                by=found.refusal,
                hint="see that inputs and targets are what they take: dtypes, keys of dicts as "
                "names of arguments, classes counted from 0",
            )
        if found.refusal:
            raise UnsupportedError(
                "the model mixes samples of a batch, which the nodes share"
                if found.mixes
                else "the loss of a batch is not made of the losses of its samples",
                where=where,
                by=found.refusal,
                hint="take a loss that is a mean or a sum over samples, and samples without nan",
            )
        if found.inside and any(found.counted):
            raise UnsupportedError(
                "the model computes its loss itself, and divides it by what it counts",
                where=where,
                hint="compute the loss in loss_fn, from outputs and targets",
            )
        if found.unlike:
            raise UnsupportedError(
                "a buffer of the model becomes another one for a part of a batch",
                where=where,
                by=found.unlike[0].removeprefix("model."),
                hint="compute it in the loop, from all samples: nodes see their own part of a step",
            )
        self._demand_added_up(found, where)
        return found

    def _demand_added_up(self, found: LossSplit, where: str) -> None:
        """Refuse counts of labels that are others for samples one by one, such as clamped ones."""
        whole = self._counted_by(found, self.samples, [range(self._example)])
        try:
            alone = [range(k, k + 1) for k in range(self._example if any(found.counted) else 0)]
            added = self._counted_by(found, self.samples, alone)
        except Exception:  # a row alone may be no batch
            return
        for one, other in zip(added, whole, strict=True):
            if not math.isclose(one, other, rel_tol=1e-6):
                raise UnsupportedError(
                    "the loss is divided by a number that does not add up over samples",
                    where=where,
                    by=f"{float(other):.6g} of a batch, {float(one):.6g} of its samples one by one",
                    hint="divide by the plain count, without a least value (clamp) or a root",
                )

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
        with in_mode(self.model, self.loss_fn, training=False), torch.no_grad():
            whole = self._counted_by(self.split, samples, _tested(len(samples)))
            loss = correct = 0.0
            for rows in _tested(len(samples)):
                inputs, targets = samples.rows(rows)
                outputs = self._called(inputs)
                share = len(rows) / len(samples) if self.split.reduction == "mean" else 1.0
                with CountedMeans(self.split.divisors(whole, share)):
                    loss += share * float(self.loss_fn(outputs, targets))
                scores = outputs if isinstance(outputs, Tensor) else None
                labels = targets if isinstance(targets, Tensor) else None
                correct += math.nan if labels is None else correct_of(scores, labels)
        loss /= 1 if self.split.reduction == "mean" else len(samples)
        return Evaluation(loss, correct / len(samples), len(samples))

    def _counted_by(
        self, split: LossSplit, samples: SampleSet, parts: Sequence[range]
    ) -> list[Tensor]:
        """What the counted means of the loss are divided by, added up over parts of the samples."""
        total = torch.zeros(sum(split.counted), dtype=torch.float64)
        with in_mode(self.model, self.loss_fn, training=False), torch.no_grad():
            for rows in parts if len(total) else ():
                inputs, targets = samples.rows(rows)
                with CountedMeans() as means:
                    self.loss_fn(self._called(inputs), targets)
                pairs = zip(means.counts, split.counted, strict=True)
                total += torch.stack([count.double() for count, counted in pairs if counted])
        return [*total]

    def programs(self, sizes: Sequence[int]) -> tuple[BatchProgram, ...]:
        """Loss and gradients for batches of these sizes."""
        return tuple(self._gradients.of(size) for size in sorted(set(sizes)))

    def counts(self, sizes: Sequence[int]) -> tuple[BatchProgram, ...]:
        """What the loss is divided by, for batches of these sizes; none for a plain mean."""
        return tuple(self._counts.of(n) for n in sorted(set(sizes))) if self.counts_labels else ()

    def tests(self) -> tuple[BatchProgram, ...]:
        """Loss and outputs for the test samples, at most `TESTED` at once; none without them."""
        if self.test is None:
            return ()
        sizes = {min(TESTED, len(self.test)), len(self.test) % TESTED} - {0}
        return tuple(self._tests.of(size) for size in sorted(sizes))

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names in `state` of the buffers that are means over samples."""
        norms = {
            id(value)
            for module in self.model.modules()
            if isinstance(module, _BatchNorm)
            for value in module.buffers()
            if value.is_floating_point()
        }
        buffers = self._source(1).members()[1]
        return tuple(input_name("buffer", m.key) for m in buffers if id(m.value) in norms)

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


def _tested(count: int) -> list[range]:
    """Numbers of samples that are looked at at once."""
    return [range(first, min(first + TESTED, count)) for first in range(0, count, TESTED)]


def write_batch(samples: SampleSet, count: int, path: Path) -> str:
    """The first `count` samples as a file of tensors ``0``, ``1``, ...; its path."""
    inputs, targets = samples.batch(count)
    leaves = enumerate(tensors(inputs, targets))
    write_tensors(path, {str(k): leaf for k, leaf in leaves})
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
