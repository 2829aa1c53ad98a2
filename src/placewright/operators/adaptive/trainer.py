"""TrainingLoop: an ordinary PyTorch training loop over heterogeneous devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from placewright.adapt.batch_trainer import BatchTrainer
from placewright.adapt.model_changes import ModelChanges
from placewright.capturing.guards import Guards
from placewright.capturing.model import BATCH, Captured, batch_tensors
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.capturing.user_optimizer import write_optimizer_state
from placewright.errors import InputError
from placewright.graph.program import Program
from placewright.operators.adaptive.run import AdaptiveRun
from placewright.operators.adaptive.step_forms import StepForms, StepSettings


class TrainingLoop(BatchTrainer[AdaptiveRun]):
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
    schedulers
        Learning-rate schedulers of that object, which the trainer steps after every update and
        keeps in its snapshots. Others may be stepped by the loop.
    structure
        What the model returns, where the recipe keeps outputs.
    guards
        What the captured step assumes of the model; without them changes of it are not seen.

    Attributes
    ----------
    keep
        Takes what was learned, where `model` has no memory for it: it is on the meta device.

    Raises
    ------
    InputError
        The run is of a graph that was not captured from PyTorch.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        run: AdaptiveRun,
        source: ModelSource | None = None,
        *,
        schedulers: tuple[Any, ...] = (),
        structure: Any = None,
        guards: Guards | None = None,
    ) -> None:
        program = run.job.graph.program
        if not isinstance(program, Program):
            raise InputError(
                "the graph has no program to execute",
                where=run.job.name,
                hint="capture a PyTorch model with training=True",
            )
        super().__init__(model, run)
        self.program = program
        self.settings = StepSettings(program, None if source is None else source.recipe, schedulers)
        self._parameters = {} if source is None else source.parameters()
        self._structure, self.source = structure, source
        if source is not None:
            run.forms = StepForms(source, run.job.graph)
        self.settings.load_state_dict(run.log.restored, run.done)
        run.log.notes = lambda: self.settings.state_dict(run.scalars)
        self.keep: Callable[[AdaptiveRun], None] | None = None
        self.changes: ModelChanges | None = None
        if guards is not None and run.forms is not None:
            self.changes = ModelChanges(
                guards,
                self.settings.optimizer,
                fetch=self._fetch,
                put=self._put,
                recapture=self._recapture,
                done=lambda: run.done,
            )

    def step(self, inputs: Any, targets: Any = None) -> float:
        """One training step; the loss.

        A batch of another shape than the example (the last one of an epoch) is captured when its
        shape first comes, and runs on the same devices.

        A Ctrl-C takes effect when the step is done, a second one at once. The batch is copied:
        its tensors may be used again for the next one.

        Raises
        ------
        InputError
            A batch of another type than the example, or of a shape that the model does not take;
            or the loop has changed the model in a way that cannot be taken over.
        """
        self._follow()
        step = self.run.done + 1
        batch, program = self._batch(inputs, targets)
        self.run.step({**batch, **self.settings.before(step, program)})
        self.settings.after(step, self.run.scalars)
        return self.run.scalars["loss"]

    def evaluate(self, inputs: Any) -> Any:
        """Outputs of the model for `inputs` in evaluation mode, with its weights as they are now.

        On the workers, between two steps; a shape is captured when it first comes.

        Raises
        ------
        InputError
            The model does not take them, or the trainer does not know what was captured.
        """
        if self.run.forms is None:
            raise InputError(
                "the trainer does not know the source of its step",
                where=self.run.job.name,
                hint="make it by placed.trainer()",
            )
        self._follow()
        form = self.run.forms.evaluation(inputs)
        return form.returned(self.run.evaluate(form, form.batch(inputs)))

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers of the last step: ``loss``, and ``grad_norm`` before gradients were clipped."""
        return dict(self.run.scalars)

    def outputs(self) -> Any:
        """Outputs of the model in the last step.

        Raises
        ------
        InputError
            The recipe keeps no outputs.
        """
        recipe = self.settings.recipe
        if not recipe.outputs:
            raise InputError(
                "the training step keeps no outputs",
                where=self.run.job.name,
                hint="place the model with TrainingRecipe(..., outputs=True)",
            )
        assert self.source is not None
        captured = Captured(self.source, self.run.job.graph, self._structure)
        return captured.returned(self.run.outputs())

    def _follow(self) -> bool:
        """Take over what the loop has changed in the model; whether it has changed anything."""
        return self.changes is not None and self.changes.follow()

    def close(self) -> None:
        """End the run and its workers; snapshots stay.

        Warns (`UnfinishedWarning`) where steps were done after the last `finish`.
        """
        if self.changes is not None:
            self.changes.close()
        super().close()

    def _write_back(self) -> None:
        if self.keep is not None:
            self.keep(self.run)
        elif self.changes is not None:
            self.changes.written(self._fetch)
        else:
            self._fetch()

    def _put(self) -> None:
        """Let workers go on from the model's weights and the optimizer's state."""
        assert self.source is not None
        self.run.put_state(initial_state(self.source, self.program))

    def _recapture(self) -> None:
        """Capture the step again before the next one; steps before it are not repeated by it."""
        assert self.run.forms is not None
        if self.run.done:
            self.run.finish()
        self.run.forms.renew()

    def _fetch(self) -> None:
        """Write the workers' weights and optimizer state into the model and the optimizer."""
        state = self.run.state() if self.run.done else {}
        members = dict((*self.model.named_parameters(), *self.model.named_buffers()))
        with torch.no_grad():
            for item in self.program.inputs:
                if item.name in state and item.key in members:
                    members[item.key].copy_(state[item.name])
        optimizer = self.settings.optimizer
        if optimizer is not None:
            write_optimizer_state(self.program, optimizer, self._parameters, state)

    def _batch(self, inputs: Any, targets: Any) -> tuple[dict[str, torch.Tensor], Program]:
        """The tensors of a batch, and the program that takes batches of its shape."""
        if self.run.forms is not None:
            inputs, targets = self.run.forms.in_order(inputs, targets)
        given, batch = batch_tensors(inputs, targets), {}
        other = False
        for item in self.program.inputs:
            if item.role not in BATCH:
                continue
            value = given.get(item.name)
            if not isinstance(value, torch.Tensor):
                raise InputError(
                    f"the batch has no {item.role} {item.key}",
                    where="Trainer.step",
                    by=f"it has {', '.join(n.replace(':', ' ') for n in given) or 'no tensor'}",
                    hint="give step(inputs, targets) the same kinds of inputs and targets as in "
                    "the example that the model was placed with",
                )
            shape = tuple(value.shape) != item.spec.shape
            if _name(value) != item.spec.dtype or (shape and self.run.forms is None):
                raise InputError(
                    f"{item.role} {item.key} differs from the example's",
                    where="Trainer.step",
                    by=f"{tuple(value.shape)} {_name(value)}, "
                    f"the example has {item.spec.shape} {item.spec.dtype}",
                    hint="give the loader drop_last=True, so that all batches are equally large"
                    if shape
                    else f"convert it with .to(torch.{item.spec.dtype})",
                )
            other = other or shape
            batch[item.name] = value
        if self.run.forms is not None:
            self.run.forms.check_constants(inputs, targets)
        if self.run.forms is None or not (other or self.run.forms.epoch):
            return batch, self.program
        form = self.run.forms.training(inputs, targets)
        return self.run.forms.marked(form.batch(inputs, targets)), form.program


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
