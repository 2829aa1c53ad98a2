"""OperatorTraining: a training step that is placed operator by operator, batch after batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from placewright.adapt.snapshot import RANDOM
from placewright.adapt.training_loop import TrainingProgram
from placewright.capturing.guards import Guards
from placewright.capturing.model import BATCH, Captured, batch_tensors
from placewright.capturing.state import initial_state
from placewright.capturing.user_optimizer import write_optimizer_state
from placewright.deployment.export import current_weights, own_tensor
from placewright.errors import InputError
from placewright.graph.graph import Program
from placewright.operators.adaptive.run import AdaptiveRun
from placewright.operators.adaptive.step_forms import StepForms, StepSettings
from placewright.operators.check import Comparison

if TYPE_CHECKING:
    from placewright.io.tensor_files import StoredTensor
    from placewright.measurement import Check


class OperatorTraining(TrainingProgram[AdaptiveRun]):
    """A captured training step that is placed operator by operator, batch after batch.

    Parameters
    ----------
    captured
        With the recipe of its training step.
    run
        Of that step.
    schedulers
        Learning-rate schedulers of the recipe's optimizer object, stepped after every update and
        kept in snapshots. Others may be stepped by the loop.
    guards
        What the captured step assumes of the model; without them changes of it are not seen.
    weights, keep
        The model's weights in files, and what takes those that were learned, where the model has
        no memory for them: it is on the meta device.
    check
        Do every step in eager PyTorch too, on a copy of the model in this process, and compare.

    Raises
    ------
    InputError
        With `check`: the run continues another one, or the model has no weights here.
    """

    def __init__(
        self,
        captured: Captured,
        run: AdaptiveRun,
        *,
        schedulers: tuple[Any, ...] = (),
        guards: Guards | None = None,
        weights: Mapping[str, StoredTensor] | None = None,
        keep: Callable[[AdaptiveRun], None] | None = None,
        check: bool = False,
    ) -> None:
        self.captured, self.run, self.guards = captured, run, guards
        self.model = captured.source.model
        self._weights, self._keep = weights or {}, keep
        self.settings = StepSettings(captured.program, captured.source.recipe, schedulers)
        self.optimizer = self.settings.optimizer
        self._parameters = captured.source.parameters()
        self.forms = run.forms = StepForms(captured)
        self.settings.load_state_dict(run.log.restored, run.done)
        run.log.notes = lambda: self.settings.state_dict(run.scalars)
        self.comparison = self._eager() if check else None

    @property
    def plan(self) -> Any:
        """In force now, ``None`` before the first step of a run that plans for itself."""
        return self.run.plan if self.run.adaptation is None else self.run.adaptation.plan

    @property
    def metrics(self) -> dict[str, float]:
        """``loss``, and ``grad_norm`` before gradients were clipped."""
        return dict(self.run.scalars)

    def step(self, inputs: Any, targets: Any) -> float:
        """Do one step, and the same in eager PyTorch where that is asked for; the loss."""
        comparison, run, step = self.comparison, self.run, self.run.done + 1
        if comparison is not None:  # before schedulers change the optimizer
            comparison.eager.feed(inputs, targets)
            if self.optimizer is not None:
                comparison.eager.settings_of(self.optimizer)
        batch, program = self._batch(inputs, targets)
        batch |= self.settings.before(step, program)
        with self.drawing(batch, draws=self._draws(program)) as drawn:
            if comparison is not None and RANDOM in drawn:
                comparison.eager.draw_from(drawn[RANDOM])
            run.step(drawn)
        self.settings.after(step, run.scalars)
        if comparison is not None:
            comparison.step({"loss": run.scalars["loss"]}, None)
        return run.scalars["loss"]

    def evaluate(self, inputs: Any) -> Any:
        """A forward pass in evaluation mode, captured when its shape first comes."""
        form = self.forms.evaluation(inputs)
        given, draws = form.batch(inputs), self._draws(form.program)
        with self.drawing(given, draws=draws) as batch:
            return form.returned(self.run.evaluate(form, batch))

    def _draws(self, program: Program) -> bool:
        """Whether it draws from the generator of this process."""
        return self.run.seed is None and program.draws

    def outputs(self) -> Any:
        """Of the last step; `InputError` where the recipe keeps none."""
        if not self.settings.recipe.outputs:
            raise InputError(
                "the training step keeps no outputs",
                where=self.run.job.name,
                hint="place the model with TrainingRecipe(..., outputs=True)",
            )
        return self.captured.returned(self.run.outputs())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The workers' weights, and the model's own where steps do not change them."""
        state = self.run.state() if self.run.done else {}
        found = current_weights(self.captured, self.run.job.state, self._weights, state)
        return {name: own_tensor(weight) for name, weight in found.items()}

    def learned(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """By the keys of the program's parameters and buffers."""
        kept = [i for i in self.captured.program.inputs if i.role in ("parameter", "buffer")]
        return {item.key: state[item.name] for item in kept if item.name in state}

    def write_optimizer(self, state: Mapping[str, torch.Tensor]) -> None:
        """All that its ``state_dict`` has after as many eager steps."""
        if self.optimizer is not None:
            write_optimizer_state(self.captured.program, self.optimizer, self._parameters, state)

    def fetch(self) -> None:
        """Write what was learned into the model, or into files where it has no memory for it."""
        if self._keep is not None:
            self._keep(self.run)
        else:
            super().fetch()

    def put(self) -> None:
        """Give workers the model's weights and the optimizer's state."""
        self.run.put_state(initial_state(self.captured.source, self.captured.program))

    def recapture(self) -> None:
        """Capture anew what is called from now on."""
        if self.run.done:
            self.run.finish()
        self.forms.renew()

    def changed(self) -> None:
        """The eager copy becomes what the model is now."""
        if self.comparison is not None:
            self.comparison.eager.take_over(self.model)

    def check(self) -> Check | None:
        """The comparison of all steps, and of the state after the last."""
        if self.comparison is None:
            return None
        self.comparison.after_last(self.run.state())
        return self.comparison.check()

    def _eager(self) -> Comparison:
        """Eager steps from the state that the run starts with."""
        run = self.run
        if run.done or self._weights:
            raise InputError(
                "training cannot be compared with eager PyTorch",
                where="Trainer(check=True)",
                by=f"the run goes on after step {run.done}"
                if run.done
                else "the model's weights are in files",
                hint="give an empty folder for snapshots, or leave folder out"
                if run.done
                else "leave check out, or give a model with its weights",
            )
        graph, source = self.captured.graph, self.captured.source
        return Comparison.of(graph, source, seed=run.seed or 0, devices=run.job.cluster.devices)

    def _batch(self, inputs: Any, targets: Any) -> tuple[dict[str, torch.Tensor], Program]:
        """The tensors of a batch, and the program that takes batches of its shape."""
        forms = self.forms
        inputs, targets = forms.in_order(inputs, targets)
        other = self._check_batch(batch_tensors(inputs, targets))
        forms.check_constants(inputs, targets)
        form = forms.training(inputs, targets) if other or forms.epoch else self.captured
        return forms.marked(form.batch(inputs, targets)), form.program

    def _check_batch(self, given: Mapping[str, torch.Tensor]) -> bool:
        """Whether shapes are others than the example's; `InputError` where a tensor is missing."""
        other = False
        for item in self.captured.program.inputs:
            if item.role not in BATCH:
                continue
            value = given.get(item.name)
            if value is None:
                raise InputError(
                    f"the batch has no {item.role} {item.key}",
                    where="Trainer.step",
                    by=f"it has {', '.join(n.replace(':', ' ') for n in given) or 'no tensor'}",
                    hint="give step(inputs, targets) the same kinds of inputs and targets as in "
                    "the example that the model was placed with",
                )
            dtype = str(value.dtype).removeprefix("torch.")
            if dtype != item.spec.dtype:
                raise InputError(
                    f"{item.role} {item.key} differs from the example's",
                    where="Trainer.step",
                    by=f"{tuple(value.shape)} {dtype}, "
                    f"the example has {item.spec.shape} {item.spec.dtype}",
                    hint=f"convert it with .to(torch.{item.spec.dtype})",
                )
            other = other or tuple(value.shape) != item.spec.shape
        return other
