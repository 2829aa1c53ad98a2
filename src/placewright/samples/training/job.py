"""What the nodes train: a model, its loss and optimizer, and the samples of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from placewright.capturing.containers import leaves_of
from placewright.capturing.gradients import BatchProgram, BatchPrograms, counting, evaluated
from placewright.capturing.guards import Guards
from placewright.capturing.lowered import input_name
from placewright.capturing.source import ModelSource
from placewright.capturing.split_loss import split_loss
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
from placewright.capturing.zoo.digits import classifier, pictures
from placewright.errors import InputError, UnsupportedError, described
from placewright.io.stored import write_file
from placewright.samples.problem import SampleProblem

TESTED = 256
"""Samples of the test set that are looked at at once."""

EXAMPLE = 32
"""Samples on which the loss is tried."""


class SampleSet:
    """The samples of a data set: a pair of inputs and target each.

    Parameters
    ----------
    data
        A sequence or map-style data set of pairs ``(inputs, target)``, or one pair of tensors whose
        rows are the samples. Inputs may be nested, as ``torch.utils.data.default_collate`` takes
        them.
    """

    def __init__(self, data: Any, where: str) -> None:
        rows = isinstance(data, tuple) and len(data) == 2 and all(map(_is_batch, data))
        if rows:
            sizes = {len(leaf) for leaf in tree_leaves(data)}
            if len(sizes) > 1:
                raise InputError(
                    "inputs and targets differ in their number of rows",
                    where=where,
                    by=", ".join(map(str, sorted(sizes))),
                )
        elif isinstance(data, str | bytes) or not _is_numbered(data):
            raise InputError(
                "samples have no length, or cannot be taken by number",
                where=where,
                by=f"got {type(data).__name__}",
                hint="give a map-style data set of pairs (inputs, target), or two tensors",
            )
        self._data, self._rows, self.where = data, rows, where

    def __len__(self) -> int:
        return len(tree_leaves(self._data)[0]) if self._rows else len(self._data)

    def __getitem__(self, k: int) -> tuple[Any, Any]:
        if self._rows:
            inputs, target = _row(self._data, k)
            return inputs, target
        try:
            found = self._data[k]
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(
                f"a sample cannot be taken: {described(error)}"[:300],
                where=f"{self.where}, sample {k}",
                hint="samples are numbered from 0",
            ) from error
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(
                "a sample is no pair of inputs and target",
                where=f"{self.where}, sample {k}",
                by=f"got {type(found).__name__}",
                hint="let the data set return (inputs, target)",
            )
        return found[0], found[1]

    def batch(self, count: int) -> tuple[Any, Any]:
        """The first samples as one batch, from the beginning again where there are fewer."""
        try:
            inputs, targets = default_collate([self[k % len(self)] for k in range(count)])
        except (TypeError, RuntimeError, KeyError, ValueError) as error:
            raise InputError(
                f"samples do not make a batch: {error}"[:300],
                where=self.where,
                hint="samples have tensors, arrays or numbers of equal shapes",
            ) from error
        return inputs, targets

    def arrays(self, k: int) -> tuple[np.ndarray[Any, Any], ...]:
        """Tensors of sample `k`, inputs first, as a batch holds them."""
        inputs, targets = default_collate([self[k % len(self)]])
        return tuple(leaf[0].numpy() for leaf in _tensors(inputs, targets))

    def label(self, k: int) -> int:
        """The class of sample `k`: its target, a whole number.

        Raises `InputError`: the target is something else.
        """
        target = self[k % len(self)][1]
        number = np.asarray(target)
        if number.ndim or number.dtype.kind not in "iu":
            raise InputError(
                "the target of a sample is no class",
                where=f"{self.where}, sample {k}",
                by=f"got {type(target).__name__} of shape {number.shape}",
                hint="classes of a nodes file are whole targets, counted from 0",
            )
        return int(number)


def _is_numbered(data: Any) -> bool:
    """Whether it has a length and parts by number."""
    try:
        return len(data) >= 0 and hasattr(data, "__getitem__")
    except TypeError:
        return False


def _is_batch(data: Any) -> bool:
    """Whether these are tensors (nested, perhaps) whose rows are samples."""
    leaves = tree_leaves(data)
    return bool(leaves) and all(isinstance(x, Tensor) and x.dim() > 0 for x in leaves)


def _row(data: Any, k: int) -> Any:
    return torch.utils._pytree.tree_map(lambda x: x[k], data)


def _tensors(inputs: Any, targets: Any) -> list[Tensor]:
    return [leaf for _, leaf in (*leaves_of(inputs), *leaves_of(targets))]


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
    """

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    samples: SampleSet
    optimizer: GivenOptimizer = "sgd"
    lr: float = 0.1
    test: SampleSet | None = None
    reduction: str = field(init=False)
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
        refuse_options(self.optimizer, "accumulate", "autocast", "scaler")
        _ = self._source(1), self.update  # refuse what is no model, and other optimizers
        refuse_trained_loss(self.model, self.loss_fn)
        if isinstance(self.optimizer, Optimizer):
            check_parameters(self.optimizer, self.model, type(self.model).__name__)
        self._capture()

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
            lambda n: counting(self._source(n), self._mean), training=False
        )

    def _source(self, count: int) -> ModelSource:
        inputs, targets = self.samples.batch(count)
        name = type(self.model).__name__
        return ModelSource(self.model, inputs, self.loss_fn, targets, name)

    def _demand_samples_apart(self) -> str:
        """How the loss of a batch is made of those of its samples: ``mean`` or ``sum``."""
        found = split_loss(self._source(min(len(self.samples), EXAMPLE)))
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
        self._mean = found.counted.index(True) if any(found.counted) else -1
        return found.reduction

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
                if name in state and isinstance(held, Tensor):
                    held.copy_(state[name])
        if isinstance(self.optimizer, Optimizer):
            write_states(self.optimizer, self.model, state)


def write_batch(samples: SampleSet, count: int, path: Path) -> str:
    """The first `count` samples as a file of tensors ``0``, ``1``, ...; its path."""
    inputs, targets = samples.batch(count)
    tensors = enumerate(_tensors(inputs, targets))
    save_file({str(k): leaf.contiguous() for k, leaf in tensors}, path)
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
