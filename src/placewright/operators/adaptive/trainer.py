"""Trainer: an ordinary PyTorch training loop over heterogeneous devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from placewright.adapt.timeline import Timeline
from placewright.capturing.containers import leaves_of
from placewright.capturing.named_state import parameters_of
from placewright.capturing.source import ModelSource
from placewright.capturing.user_optimizer import current_settings, write_optimizer_state
from placewright.errors import InputError
from placewright.graph.program import Program
from placewright.operators.adaptive.run import AdaptiveRun


class Trainer:
    """Executes a placed training step batch after batch, in the user's own loop.

    Adapts to devices and links that change, and goes on from its last snapshot when a worker is
    lost::

        with place(model, x, cluster, training=True, ...).trainer("folder") as trainer:
            for x, y in trainer.remaining(loader):
                loss = trainer.step(x, y)
            trainer.finish()                 # the model holds what was learned

    Parameters
    ----------
    model
        `finish` writes the trained parameters into it.
    run
        Of the model's captured training step; all batches have the shapes of the one that it was
        captured with. The trainer closes it.
    source
        What was captured, with the recipe of its training step; needed where that has an
        optimizer object.

    Raises
    ------
    InputError
        The run is of a graph that was not captured from PyTorch.
    """

    def __init__(
        self, model: torch.nn.Module, run: AdaptiveRun, source: ModelSource | None = None
    ) -> None:
        program = run.job.graph.program
        if not isinstance(program, Program):
            raise InputError(
                "the graph has no program to execute",
                where=run.job.name,
                hint="capture a PyTorch model with training=True",
            )
        self.model, self.program, self.run = model, program, run
        recipe = None if source is None else source.recipe
        given = None if recipe is None else recipe.optimizer
        self.optimizer = given if isinstance(given, torch.optim.Optimizer) else None
        self._parameters = {} if source is None else parameters_of(source)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.run.close()

    @property
    def timeline(self) -> Timeline:
        """Step times and events so far."""
        return self.run.timeline

    @property
    def steps_done(self) -> int:
        """Steps done, including those before the snapshot that a continued run started from."""
        return self.run.done

    def remaining(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's batches but for those that a continued run has already taken.

        The loader must give the same order every time it is iterated.
        """
        done = self.run.done
        for position, batch in enumerate(loader):
            if position >= done:
                yield batch

    def step(self, inputs: Any, targets: Any = None) -> float:
        """One training step; the loss.

        A Ctrl-C takes effect when the step is done, a second one at once. The batch is copied:
        its tensors may be used again for the next one.

        Raises
        ------
        InputError
            A batch of another shape or type than the example.
        """
        self.run.step({**self._batch(inputs, targets), **self._settings()})
        return self.run.scalars["loss"]

    def finish(self) -> torch.nn.Module:
        """Write trained parameters and buffers into the model, and a last snapshot; the model.

        The optimizer object, if one was given, gets its state.

        Raises
        ------
        RunError
            The last snapshot cannot be written, though the model has what was learned; or the
            trainer is closed, and the model is as it was.
        """
        self._write_back(self.run.state())
        self.run.finish()
        return self.model

    def _write_back(self, state: Mapping[str, torch.Tensor]) -> None:
        members = dict((*self.model.named_parameters(), *self.model.named_buffers()))
        with torch.no_grad():
            for item in self.program.inputs:
                if item.name in state and item.key in members:
                    members[item.key].copy_(state[item.name])
        if self.optimizer is not None:
            write_optimizer_state(self.program, self.optimizer, self._parameters, state)

    def _settings(self) -> dict[str, torch.Tensor]:
        """The learning rates and other numbers of the parameter groups, as they are now."""
        if self.optimizer is None:
            return {}
        # Schedulers warn where they step before an optimizer that they have not seen a step of.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        return current_settings(self.program, self.optimizer)

    def _batch(self, inputs: Any, targets: Any) -> dict[str, torch.Tensor]:
        inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        given = {("input", k): v for k, v in leaves_of(inputs)}
        given |= {("target", k): v for k, v in leaves_of(targets)}
        batch = {}
        for item in self.program.inputs:
            if item.role not in ("input", "target"):
                continue
            value = given.get((item.role, item.key))
            if not isinstance(value, torch.Tensor):
                raise InputError(f"the batch has no {item.role} {item.key}", where="Trainer.step")
            if tuple(value.shape) != item.spec.shape or _name(value) != item.spec.dtype:
                raise InputError(
                    f"{item.role} {item.key} differs from the example's",
                    where="Trainer.step",
                    by=f"{tuple(value.shape)} {_name(value)}, "
                    f"the example has {item.spec.shape} {item.spec.dtype}",
                    hint="give the loader drop_last=True, so that all batches are equally large",
                )
            batch[item.name] = value
        return batch


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
