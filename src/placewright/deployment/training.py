"""Steps of a placed model that go on while devices change and workers die, and its training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from placewright.adapt.membership import reachable_on
from placewright.adapt.snapshot import RANDOM
from placewright.adapt.training_loop import TrainingProgram, note_events, note_start
from placewright.capturing.guards import Guards
from placewright.capturing.model import BATCH, Captured, batch_tensors
from placewright.capturing.optimizer import accumulated_gradients
from placewright.capturing.state import initial_state
from placewright.capturing.user_optimizer import write_optimizer_state
from placewright.deployment.export import current_weights, own_tensor
from placewright.errors import InputError, RunError, UnsupportedError
from placewright.graph.graph import Program
from placewright.io.scratch import Scratch
from placewright.operators.adaptive.run import AdaptiveJob, AdaptiveRun, challengers, check_run
from placewright.operators.adaptive.step_forms import StepForms, StepSettings
from placewright.operators.check import Comparison
from placewright.planning.contract import STEPS, Meter, Monitor
from placewright.report.text import seconds

if TYPE_CHECKING:
    from placewright.adapt.timeline import Timeline
    from placewright.deployment.placed_model import PlacedModel
    from placewright.deployment.workers import ModelWorkers
    from placewright.deployment.workload import Workload
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
    passing
        The folder of snapshots that nobody has named: it ends with the run.

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
        passing: Scratch | None = None,
    ) -> None:
        self.captured, self.run, self.guards = captured, run, guards
        self._passing = passing
        self.model = captured.source.model
        self._weights, self._keep = weights or {}, keep
        self.settings = StepSettings(captured.program, captured.source.recipe, schedulers)
        self.optimizer = self.settings.optimizer
        self.accumulate = self.settings.recipe.accumulate
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
        try:
            with self.drawing(batch, draws=self._draws(program)) as drawn:
                if comparison is not None and RANDOM in drawn:
                    comparison.eager.draw_from(drawn[RANDOM])
                run.step(drawn)
        finally:
            if run.done == step:  # a Ctrl-C takes effect behind the step
                self._stepped(step)
        return run.scalars["loss"]

    def _stepped(self, step: int) -> None:
        """What the process of the loop does after a step that counts."""
        self.settings.after(step, self.run.scalars)
        if self.comparison is not None:
            self.comparison.step({"loss": self.run.scalars["loss"]}, None)

    def evaluate(self, inputs: Any) -> Any:
        """A forward pass in evaluation mode, captured when its shape first comes."""
        form = self.forms.evaluation(inputs)
        if written := [item.key for item in form.program.inputs if item.mutated]:
            raise UnsupportedError(
                "the model writes into buffers when it is evaluated, and steps that are repeated "
                "after a fault would begin without that",
                where=f"trainer.evaluate(...): {', '.join(written)}",
                by=f"after step {self.run.done}",
                hint="call the model itself, model.eval()(x): the next step takes over what it "
                "has written; or let it write in training mode only",
            )
        given, draws = form.batch(inputs), self._draws(form.program)
        with self.drawing(given, draws=draws) as batch:
            return form.returned(self.run.evaluate(form, batch))

    def _draws(self, program: Program) -> bool:
        """Whether it draws from the generator of this process."""
        return self.run.seed is None and program.draws

    def outputs(self) -> Any:
        """Of the last step.

        Raises `InputError`: the recipe keeps none.
        Raises `RunError`: they are lost with their workers.
        """
        if not self.settings.recipe.outputs:
            raise InputError(
                "the training step keeps no outputs",
                where=self.run.job.name,
                hint="place the model with TrainingRecipe(..., outputs=True)",
            )
        if not (made := self.run.outputs()):
            raise RunError(
                "the workers have no outputs of the last step: they were started after it",
                where=self.run.job.name,
                by=f"after step {self.run.done}",
                hint="the next step has its own; a worker that is lost takes them along",
            )
        return self.captured.returned(made)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The workers' weights, and the model's own where steps do not change them."""
        state = self.run.state() if self.run.done else {}
        found = current_weights(self.captured, self.run.job.state, self._weights, state)
        return {name: own_tensor(weight) for name, weight in found.items()}

    def learned(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """By the keys of the program's parameters and buffers."""
        kept = [i for i in self.captured.program.inputs if i.role in ("parameter", "buffer")]
        return {item.key: state[item.name] for item in kept if item.name in state}

    def members(self) -> list[tuple[str, torch.Tensor]]:
        """Those of the model and of the loss."""
        parameters, buffers = self.captured.source.members()
        return [(member.key, member.value) for member in (*parameters, *buffers)]

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
        """Give workers the model's weights and the optimizer's state; gradients are theirs."""
        state = initial_state(self.captured.source, self.captured.program)
        if self.accumulate > 1 and self.run.done:
            state |= accumulated_gradients(self.run.state())
        self.run.put_state(state)

    def recapture(self) -> None:
        """Capture anew what is called from now on."""
        if self.run.done:
            self.run.finish()
        self.forms.renew()

    def close(self) -> None:
        """End the run, and remove a folder that nobody has named."""
        super().close()
        if self._passing is not None:
            self._passing.cleanup()

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
        self._check_batch(batch_tensors(inputs, targets))
        forms.check_constants(inputs, targets)
        form = forms.training(inputs, targets)
        return forms.marked(form, form.batch(inputs, targets)), form.program

    def _check_batch(self, given: Mapping[str, torch.Tensor]) -> None:
        """Raise `InputError` where a tensor is missing, or has another dtype than the example's."""
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


def adaptive_run(
    placed: PlacedModel,
    workers: ModelWorkers,
    folder: Path,
    *,
    steps: float,
    try_plans: bool = True,
    **settings: Any,
) -> AdaptiveRun:
    """A run that adapts, ready for its first step; workers that are up are its own from then on.

    Raises `InputError`: the folder holds another model's snapshots, or another run is using it; or
    a number is none that a run can have.

    Parameters
    ----------
    folder
        Of snapshots.
    steps
        How many are planned in all: plans are tried and migrated to where that pays.
    try_plans
        Try others than the plan in force, and those of quick planners, in the first steps.
    settings
        Further ones of `AdaptiveRun`.
    """
    least = {"snapshot_every": 1, "rejoin_every": 1, "patience_s": 0}
    for name, value in {"steps": steps, **settings}.items():
        # Others, policies for one, are no numbers.
        if name == "steps" or name in least:
            _refuse_below(name, value, least.get(name, 1))
    load, known = placed.workload, placed.interference
    job = AdaptiveJob(
        load.graph,
        load.cluster,
        known.alone,
        load.values,
        open=workers.take,
        reachable=reachable_on(workers.engine),
    )
    plan, *at_hand = placed.plans
    others = challengers(known, plan, steps, at_hand=at_hand) if try_plans else ()
    return AdaptiveRun(
        job, folder, plan=plan, challengers=others, interference=known, steps=steps, **settings
    )


def _refuse_below(name: str, value: Any, least: float) -> None:
    """Raise for what is no number, or too small a one."""
    if not isinstance(value, Real) or not float(value) >= least:  # a NaN is not
        raise InputError(
            f"{name} must be a number of at least {least}",
            where=f"trainer({name}=...)",
            by=f"got {value!r}",
            hint=f"leave {name} out for its default",
        )


def run_steps(run: AdaptiveRun, steps: int, monitor: Monitor) -> bool:
    """Do steps until there are `steps` in all; whether no Ctrl-C has ended them before.

    Every event is noted once, and every plan when it comes into force.
    """
    with monitor.meter(f"running {run.job.problem.name}", STEPS) as meter:
        note_start(run, monitor)
        try:
            _steps(run, steps, meter, monitor)
        except KeyboardInterrupt:
            monitor.note(f"interrupted after step {run.done}")
            return False
    return True


def _steps(run: AdaptiveRun, steps: int, meter: Meter, monitor: Monitor) -> None:
    meter.step("starting workers")
    seen = plans = 0
    predicted_s = float("nan")
    while run.done < steps:
        run.step()
        news = note_events(run, seen, monitor)
        seen = len(run.timeline.events)
        if plans != run.timeline.plans or news:
            predicted_s = _predicted_s(run)
        if plans != run.timeline.plans:
            plans = run.timeline.plans
            _note_plan(run, predicted_s, monitor)
        meter(
            what=f"step {run.done} of {steps}, plan {plans}{_phase(run)}",
            value=run.timeline.typical_s(5),
            bound=predicted_s,
            elapsed_s=sum(run.timeline.step_s),
        )


def _predicted_s(run: AdaptiveRun) -> float:
    """Predicted step time of the plan in force, with the costs observed so far."""
    return float("nan") if run.adaptation is None else run.adaptation.predicted_s()


def _note_plan(run: AdaptiveRun, predicted_s: float, monitor: Monitor) -> None:
    """How many operators each device has now."""
    if run.adaptation is None:
        return
    names = run.adaptation.problem.device_names
    counts = [run.adaptation.plan.placement.tolist().count(d) for d in range(len(names))]
    parts = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    monitor.note(
        f"step {run.done}: plan {run.timeline.plans}{_phase(run)}: {seconds(predicted_s)} "
        f"predicted; operators: {parts}"
    )


def _phase(run: AdaptiveRun) -> str:
    """Why the plan is in force, if it is not yet for good."""
    adaptation = run.adaptation
    if adaptation is not None and adaptation.trials is not None:
        return " (plans take turns)"
    if adaptation is not None and adaptation.pending is not None:
        return " (on trial)"
    return " (watched)" if adaptation is not None and adaptation.watches_next else ""


def check_steps(run: AdaptiveRun, workload: Workload, monitor: Monitor) -> None:
    """Compare all steps of a run with eager ones, unless it was broken off in the middle of one.

    The answer is in the run's ``timeline.check``; the run is closed.
    """
    if run.session is None or not run.done:
        all_done = f"all {run.done} steps were done before" if run.done >= run.steps else ""
        monitor.note(f"not compared with eager PyTorch: {all_done or 'the run was broken off'}")
        return
    with monitor.meter(f"repeating {run.done} steps in eager PyTorch"):
        run.timeline.check = check_run(run, workload.source)


def run_adaptively(
    placed: PlacedModel,
    workers: ModelWorkers,
    *,
    steps: int,
    seed: int,
    snapshots: Path | None,
    check: bool,
    monitor: Monitor,
) -> Timeline:
    """Do `steps` steps that adapt, from the first to the last; see `adaptive_run`.

    Ctrl-C ends the run after the step it is in, with a last snapshot where they are kept, and
    without the check; a second one ends it at once, with the snapshots that there are.

    `snapshots`: where they are kept, and continued from; ``None``: in a temporary folder.
    `check`: repeat all steps in eager PyTorch and compare.
    """
    with Scratch() as passing:
        folder = snapshots or Path(passing)
        with adaptive_run(placed, workers, folder, steps=steps, seed=seed) as run:
            uninterrupted = run_steps(run, steps, monitor)
            if snapshots is not None and run.session is not None:
                try:
                    run.finish()
                except RunError as error:  # the disk is full; what was measured is not lost by it
                    warnings.warn(str(error), RuntimeWarning, stacklevel=2)
            if check and uninterrupted:
                check_steps(run, placed.workload, monitor)
            elif check:  # it takes as long as the steps, and torchrun kills after 30 s
                monitor.note("not compared with eager PyTorch: the run was interrupted")
        return run.timeline
