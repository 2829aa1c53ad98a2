"""A model's steps on batches of other shapes than the example's, and what is fed with every batch.

`StepForms` has the shapes and the evaluation, `StepSettings` the numbers: learning rates, scales,
accumulation.

`carried_placement` is a placement for another capture of the same model, of another batch size.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor

from placewright.adapt.snapshot import RANDOM
from placewright.capturing.containers import (
    constants_of,
    demand_constants,
    in_order_of,
    layouts_of,
)
from placewright.capturing.model import BATCH, Captured, batch_tensors, capture_call
from placewright.capturing.real_calls import called
from placewright.capturing.source import TrainingRecipe, as_arguments, step_scaler
from placewright.capturing.update_rule import numbered
from placewright.capturing.user_optimizer import (
    FIRST,
    HOLD,
    INVERSE,
    SCALE,
    check_settings,
    current_settings,
)
from placewright.errors import InputError
from placewright.graph.files import program_json
from placewright.graph.graph import Graph, Program
from placewright.runtime.step.partition import CallProgram

RESIDENT = ("parameter", "buffer", "state")


def carried_placement(graph: Graph, placement: Sequence[int], other: Graph) -> list[int]:
    """Device of every operator of `other`, so that no parameter changes its device.

    A colocation group goes where its parameters and buffers are in `graph`; else where the
    operator of the same name and kind is; else to the device that most of what it reads comes
    from; else where most of its module is.

    Raises `InputError`: a colocation group of `other` holds parameters from two devices.

    Parameters
    ----------
    graph, placement
        What is placed already, and the device of each of its operators.
    other
        Another capture of the same model: other shapes, or the forward pass of a training step.
    """
    homes = _homes(graph, placement)
    pairs = zip(graph.operators, placement, strict=True)
    named = {(op.name, op.kind): device for op, device in pairs}
    modules = _module_devices(graph, placement)
    most = Counter(placement).most_common(1)[0][0]
    groups = _group_homes(other, homes)
    device_of: dict[str, int] = {}
    reads = _inputs_of(other)
    found: list[int] = []
    for op in other.operators:
        group = op.colocation or f"own {op.name}"
        if group not in groups:
            near = Counter(device_of[name] for name in reads[op.name])
            fallback = near.most_common(1)[0][0] if near else modules.get(op.module, most)
            groups[group] = named.get((op.name, op.kind), fallback)
        device_of[op.name] = groups[group]
        found.append(groups[group])
    return found


def demand_members(loaded: Graph, form: Graph, where: str, hint: str) -> None:
    """Raise `InputError` where a form reads parameters, buffers or state that workers do not hold.

    `loaded`: the graph that they have the values of; unused parameters are none of them.
    """
    held = {item.name: item.spec for item in _program(loaded).inputs if item.role in RESIDENT}
    for item in _program(form).inputs:
        if item.role in RESIDENT and held.get(item.name) != item.spec:
            raise InputError(
                f"the model reads another {item.role} {item.key!r} than when it was placed",
                where=where,
                by=f"{item.spec.shape} {item.spec.dtype}",
                hint=hint,
            )


def same_program(one: Graph, other: Graph) -> bool:
    """Whether two captures compute the same, layouts and constants included."""
    return program_json(_program(one)) == program_json(_program(other))


def _program(graph: Graph) -> Program:
    if not isinstance(graph.program, Program):
        raise InputError("the graph has no program", where=graph.name, hint="capture a model")
    return graph.program


def _homes(graph: Graph, placement: Sequence[int]) -> dict[str, int]:
    """Device of every parameter, buffer and optimizer state that an operator reads."""
    program = _program(graph)
    resident = {item.name for item in program.inputs if item.role in RESIDENT}
    found: dict[str, int] = {}
    for call, device in zip(program.instructions, placement, strict=True):
        for name in call.reads():
            if name in resident:
                found.setdefault(name, device)
    return found


def _group_homes(graph: Graph, homes: dict[str, int]) -> dict[str, int]:
    """Device of every colocation group that reads something resident."""
    found: dict[str, int] = {}
    for op, call in zip(graph.operators, _program(graph).instructions, strict=True):
        for name in call.reads():
            if name in homes:
                group = op.colocation or f"own {op.name}"
                if found.setdefault(group, homes[name]) != homes[name]:
                    raise InputError(
                        "a group of operators that share a device reads parameters of two devices",
                        where=f"{graph.name}: operator {op.name!r}",
                        by=f"devices {found[group]} and {homes[name]}",
                        hint="place the model with an example of this shape",
                    )
    return found


def _module_devices(graph: Graph, placement: Sequence[int]) -> dict[str, int]:
    counts: dict[str, Counter[int]] = {}
    for op, device in zip(graph.operators, placement, strict=True):
        counts.setdefault(op.module, Counter())[device] += 1
    return {module: count.most_common(1)[0][0] for module, count in counts.items()}


def _inputs_of(graph: Graph) -> dict[str, list[str]]:
    """Producers of what every operator reads."""
    found: dict[str, list[str]] = {op.name: [] for op in graph.operators}
    for tensor in graph.tensors:
        for consumer in tensor.consumers:
            found[consumer].append(tensor.producer)
    return found


FORM = "form"
"""With a batch, the number of its form where that is not the example's."""

BESIDE = (FORM, RANDOM)
"""What goes with a batch and is no program input."""


@dataclass(slots=True, eq=False)
class StepForms:
    """Captures steps for batches of other layouts when they first come, and keeps them.

    `captured`: the training step that is placed, for batches like the example.
    `epoch`: how often the model has become another one since; each has captures of its own.
    """

    captured: Captured
    epoch: int = 0
    _example: tuple[Any, ...] = field(init=False)
    _training: dict[tuple[Any, ...], Captured] = field(default_factory=dict)
    _evaluation: dict[tuple[Any, ...], Captured] = field(default_factory=dict)
    _placed: dict[tuple[int, tuple[int, ...]], CallProgram] = field(default_factory=dict)

    def __post_init__(self) -> None:
        source = self.captured.source
        self._example = layouts_of((source.arguments, source.targets))

    def in_order(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """A batch for training in the containers of the example."""
        arguments = self.captured.source.arguments
        given = in_order_of(arguments, as_arguments(inputs, "batch"))
        return given, in_order_of(self.captured.source.targets, targets)

    def check_constants(self, inputs: Any, targets: Any) -> None:
        """Raise `InputError` where such a batch has other values than the example beside tensors.

        A captured step has them built in.
        """
        example = (self.captured.source.arguments, self.captured.source.targets)
        for role, one, other in zip(BATCH, example, (inputs, targets), strict=True):
            demand_constants(one, other, role)

    def training(self, inputs: Any, targets: Any) -> Captured:
        """The form of a training step on such a batch."""
        layouts = layouts_of((as_arguments(inputs, "batch"), targets))
        key = self.epoch, layouts
        if not self.epoch and layouts == self._example:
            return self.captured
        if key not in self._training:
            source = replace(self.captured.source, inputs=inputs, targets=targets)
            made = capture_call(source, training=True, real=called(source, training=True))
            demand_members(
                self.captured.graph,
                made.graph,
                "Trainer.step",
                "finish this trainer and place the model as it is now, or with an example and "
                "settings that use all of it",
            )
            same = not self.epoch and same_program(made.graph, self.captured.graph)
            self._training[key] = self.captured if same else made
        return self._training[key]

    def evaluation(self, inputs: Any) -> Captured:
        """The form of a forward pass in evaluation mode."""
        self._check_dtypes(batch_tensors(inputs))
        given = as_arguments(inputs, "batch")
        key = (self.epoch, layouts_of(given), repr(constants_of(given)))
        if key not in self._evaluation:
            source = replace(self.captured.source, inputs=inputs, loss_fn=None, targets=None)
            made = capture_call(source, training=False, real=called(source, training=False))
            demand_members(
                self.captured.graph,
                made.graph,
                "Trainer.evaluate",
                "no training step reads it, so workers do not have it: call the model itself, "
                "which has the newest weights between two steps",
            )
            self._evaluation[key] = made
        return self._evaluation[key]

    def _check_dtypes(self, given: Mapping[str, Tensor]) -> None:
        """Raise `InputError` where an input has another dtype than the example's.

        Tracing on fake tensors does not find all of them, and a worker that raises names no input.
        """
        example = batch_tensors(self.captured.source.inputs)
        for name, tensor in given.items():
            if name in example and tensor.dtype != example[name].dtype:
                raise InputError(
                    f"{name.replace(':', ' ')} has another dtype than the example's",
                    where="Trainer.evaluate",
                    by=f"{tensor.dtype}, the example has {example[name].dtype}",
                    hint=f"convert it with .to({example[name].dtype})",
                )

    def of_batch(self, batch: Mapping[str, Tensor]) -> Captured | None:
        """The form that a batch is marked with; ``None`` for one like the example."""
        return [*self._training.values()][int(batch[FORM].item())] if FORM in batch else None

    def marked(self, form: Captured, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """A batch with the number of its form, so that a repeated step is as it was."""
        if form is self.captured:
            return batch
        number = next(k for k, each in enumerate(self._training.values()) if each is form)
        return {**batch, FORM: torch.tensor(number)}

    def renew(self) -> None:
        """Capture what is called from now on anew: the model has become another one."""
        self.epoch += 1

    def placed(self, form: Captured, placement: Sequence[int]) -> CallProgram:
        """The form on the devices that have the parameters; `placement`: of the training step."""
        key = (id(form), tuple(placement))
        if key not in self._placed:
            graph = self.captured.graph
            carried = carried_placement(graph, placement, form.graph)
            _draw_where(graph, placement, form.graph, carried)
            # In the order of the capture, which is that of eager mode.
            order = range(len(form.graph.operators))
            self._placed[key] = CallProgram(form.graph, carried, order, form.constants())
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


_PLAIN = (bool, str, type(None))
"""Settings of a group that are no numbers."""


class StepSettings:
    """Knows the optimizer, the scaler and the schedulers of a training loop.

    They are the user's own objects, in the process of the loop: workers get numbers.

    `schedulers`: stepped after every update, and kept in snapshots.
    """

    def __init__(
        self,
        program: Program,
        recipe: TrainingRecipe | None = None,
        schedulers: tuple[Any, ...] = (),
    ) -> None:
        self.program, self.recipe = program, recipe or TrainingRecipe()
        given = self.recipe.optimizer
        self.optimizer = given if isinstance(given, torch.optim.Optimizer) else None
        self.schedulers, self.done = schedulers, 0
        self._checked: tuple[list[Any], dict[str, Any]] = ([], {})
        self._groups = 0 if self.optimizer is None else len(self.optimizer.param_groups)
        for scheduler in schedulers:
            _check_stepped(scheduler, self.optimizer)
            _check_kept(scheduler)

    def before(self, step: int, program: Program | None = None) -> dict[str, torch.Tensor]:
        """Settings that a step is fed with beside its batch, by program input.

        `step`: its number, from 1.
        `program`: for a batch of another shape, the one that was captured for it.
        """
        if self.optimizer is None:
            return {}
        if len(self.optimizer.param_groups) != self._groups:
            raise InputError(
                "the optimizer has other parameter groups than when the model was placed",
                where=f"optimizer {type(self.optimizer).__name__}",
                by=f"{len(self.optimizer.param_groups)} groups, {self._groups} then",
                hint="finish this trainer and make another one with the new groups",
            )
        # Schedulers warn where they step before an optimizer that they have not seen a step of.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        for k, group in enumerate(self.optimizer.param_groups):
            if any(isinstance(value, Tensor) for value in group.values()):
                numbered(group, f"optimizer {type(self.optimizer).__name__}: group {k}")
        found = current_settings(program or self.program, self.optimizer)
        self._check(found)
        if self.recipe.accumulate > 1:
            found[FIRST] = torch.tensor([float((step - 1) % self.recipe.accumulate == 0)]).double()
            found[HOLD] = torch.tensor([float(not self._updates(step))]).double()
        if self.recipe.scales:
            assert self.recipe.scaler is not None
            scale = torch.tensor(self.recipe.scaler.get_scale(), dtype=torch.float32)
            # In float64, as GradScaler does.
            found |= {SCALE: scale, INVERSE: scale.double().reciprocal().float()}
        return found

    def _check(self, settings: Mapping[str, torch.Tensor]) -> None:
        """Look at what else has changed where a number has become 0, or is no longer 0.

        Schedules change learning rates in every step, and a full look takes milliseconds.
        """
        assert self.optimizer is not None
        plain = [
            tuple((k, v) for k, v in group.items() if isinstance(v, _PLAIN))
            for group in self.optimizer.param_groups
        ]
        zeros = {name: (values == 0).tolist() for name, values in settings.items()}
        if (plain, zeros) != self._checked:
            if self._checked != ([], {}):
                check_settings(self.program, self.optimizer)
            self._checked = plain, zeros

    def after(self, step: int, scalars: Mapping[str, float]) -> None:
        """Take in that a step has been done: the scaler's and the schedulers' own steps."""
        self.done = step
        if not self._updates(step):
            return
        if self.recipe.scales:
            assert self.recipe.scaler is not None
            step_scaler(self.recipe.scaler, scalars["found_inf"])
        for scheduler in self.schedulers:
            try:
                scheduler.step()
            except ValueError as error:  # OneCycleLR after its last step
                raise InputError(
                    "a scheduler cannot be stepped any more",
                    where=f"{_scheduler_name(scheduler)}, step {step}",
                    by=" ".join(str(error).split()),
                    hint="make it for as many updates as the loop does; this step is done and kept",
                ) from error

    def _updates(self, step: int) -> bool:
        return step % self.recipe.accumulate == 0

    def state_dict(self, scalars: Mapping[str, float]) -> dict[str, Any]:
        """Groups' numbers, scaler and schedulers, as plain data.

        `scalars`: of the last step, which `after` may not have taken in yet.
        """
        if self.optimizer is None:
            return {}
        scaler = self.recipe.scaler.state_dict() if self.recipe.scaler is not None else {}
        return {
            "groups": [
                {k: v for k, v in group.items() if k not in ("params", "param_names")}
                for group in self.optimizer.param_groups
            ],
            "done": self.done,
            "scalars": dict(scalars),
            "scaler": scaler,
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Go on from what `state_dict` gave when `step` steps had been done."""
        if self.optimizer is None or not state:
            return
        for what, here, there in (
            ("parameter groups", self._groups, len(state["groups"])),
            ("schedulers", len(self.schedulers), len(state["schedulers"])),
            ("scalers", int(self.recipe.scales), int(bool(state["scaler"]))),
        ):
            if here != there:
                raise InputError(
                    f"the snapshot was written with other {what}",
                    where=f"the snapshot of step {step}",
                    by=f"{there} there, {here} here",
                    hint="make the optimizer, its scaler and its schedulers as in the run that is "
                    "continued, or name another folder",
                )
        for group, kept in zip(self.optimizer.param_groups, state["groups"], strict=True):
            group |= {k: tuple(v) if isinstance(v, list) else v for k, v in kept.items()}
        if self.recipe.scaler is not None and state["scaler"]:
            self.recipe.scaler.load_state_dict(state["scaler"])
        for scheduler, kept in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(kept)
        # The snapshot was written between the step and `after`: the schedulers' own step is made up
        # for.
        if state["done"] < step:
            self.after(step, state["scalars"])
        self.done = step


def _scheduler_name(scheduler: Any) -> str:
    return f"scheduler {type(scheduler).__name__}"


def _check_stepped(scheduler: Any, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise for what would have no effect, or cannot be stepped after every update."""
    what = by = hint = ""
    step = getattr(scheduler, "step", None)
    if not callable(step) or not hasattr(scheduler, "state_dict"):
        what, by = "this is no learning-rate scheduler", f"got {scheduler!r:.60}"
        hint = "give objects of torch.optim.lr_scheduler"
    elif optimizer is None:
        what, by = "a scheduler needs an optimizer object", "the optimizer was given by name"
        hint = "give optimizer=torch.optim.Adam(model.parameters(), ...), and make it from that"
    elif getattr(scheduler, "optimizer", optimizer) is not optimizer:
        what, by = "the scheduler is of another optimizer", "it would change nothing here"
        hint = "make it from the optimizer object that the model is placed with"
    elif any(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in _arguments(step)):
        what, by = "the scheduler is stepped with a metric", "step() has arguments without defaults"
        hint = "leave it out of schedulers and call its step(metric) in the loop: what it sets "
        hint += "takes effect in the next step"
    if what:
        raise InputError(what, where=_scheduler_name(scheduler), by=by, hint=hint)


def _arguments(function: Any) -> list[Parameter]:
    return list(signature(function).parameters.values())


def _check_kept(scheduler: Any) -> None:
    try:
        json.dumps(scheduler.state_dict())
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(
            "the state of a scheduler cannot be kept in snapshots",
            where=_scheduler_name(scheduler),
            by=str(error),
            hint="its state_dict() must hold numbers, strings, lists and dicts; or step it in the "
            "loop instead of giving it to the trainer",
        ) from error
