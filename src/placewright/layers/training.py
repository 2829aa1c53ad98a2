"""LayerTraining: steps of a layer plan on workers that share every batch, and many of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import Any

import torch

from placewright.adapt.timeline import Timeline, event_lines
from placewright.adapt.training_loop import TrainingLoop, TrainingProgram
from placewright.capturing.guards import Guards
from placewright.capturing.program_calls import random_state, set_random_state
from placewright.capturing.source import ModelSource, copied, step_scaler
from placewright.capturing.updates import (
    ACCUMULATED,
    OPTIMIZER,
    SCALE,
    SETTINGS,
    current_settings,
    write_states,
)
from placewright.errors import CheckError
from placewright.layers.adaptive import AdaptiveLayerRun, shares
from placewright.layers.plan import LayerPlan
from placewright.layers.run import TINY, trained_alone

MODEL = "model."

MOST_ERROR = 1e-3
"""Largest difference of a loss from one process, as a part of it: rounding grows with steps."""


class LayerTraining(TrainingProgram[AdaptiveLayerRun]):
    """A layer plan, batch after batch; shares of the batch follow the speeds of the workers."""

    def __init__(self, model: torch.nn.Module, run: AdaptiveLayerRun, guards: Guards) -> None:
        self.model, self.run, self.guards = model, run, guards
        self.optimizer, self.scaler = run.job.given, run.job.scaler
        self.accumulate = run.job.update.accumulate
        run.begin = run.job.states_of_given() or None
        self._restore(run.log.restored)
        run.log.notes = self._notes

    def _restore(self, notes: Mapping[str, Any]) -> None:
        """Go on from the numbers of the optimizer and the scaler in the last snapshot."""
        kept, rule = notes.get(SETTINGS, ()), self.run.job.update.rule
        for k, group in enumerate(self.optimizer.param_groups if self.optimizer and kept else ()):
            group.update(rule.group(kept[k if len(kept) > 1 else 0]))
        if self.scaler is not None and SCALE in notes:
            self.scaler.load_state_dict(dict(notes[SCALE]))

    def _notes(self) -> dict[str, Any]:
        """What snapshots keep of them."""
        found: dict[str, Any] = {}
        if self.optimizer is not None:
            found[SETTINGS] = current_settings(self.optimizer, self.run.job.update).tolist()
        if self.scaler is not None:
            found[SCALE] = self.scaler.state_dict()
        return found

    @property
    def plan(self) -> LayerPlan:
        """In force now."""
        return self.run.plan

    @property
    def metrics(self) -> dict[str, float]:
        """The loss, and ``grad_norm`` before gradients were clipped where they are."""
        norm = self.run.grad_norm
        return {"loss": self.run.loss} | ({} if math.isnan(norm) else {"grad_norm": norm})

    def step(self, inputs: Any, targets: Any) -> float:
        """One step on a batch as large as the one that was planned with, or smaller; its loss."""
        step, update = self.run.done + 1, self.run.job.update
        batch = self.run.job.batch(inputs, targets, step)
        try:
            with self.drawing(batch, draws=self.run.job.model.draws) as drawn:
                self.run.step(drawn)
        finally:
            counted = self.run.done == step  # a Ctrl-C takes effect behind the step
            if counted and self.scaler is not None and step % update.accumulate == 0:
                step_scaler(self.scaler, float(self.run.overflow))
        return self.run.loss

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers as they are now, by their names in the model."""
        return self.learned(self.run.state())

    def learned(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Parameters and buffers of a training state."""
        return {n.removeprefix(MODEL): v for n, v in state.items() if n.startswith(MODEL)}

    def write_optimizer(self, state: Mapping[str, torch.Tensor]) -> None:
        """States of the optimizer in a training state."""
        if self.optimizer is not None:
            write_states(self.optimizer, self.model, state)

    def fetch(self) -> None:
        """Write what was learned into the model, and keep what training began with."""
        if self.run.done:
            self.run.keep_begin()
        super().fetch()

    def put(self) -> None:
        """Give workers the model's weights and the optimizer's state."""
        state = self.run.state()
        if self.optimizer is not None:
            added = f"{OPTIMIZER}{ACCUMULATED}:"
            kept = {
                n: v for n, v in state.items() if not n.startswith(OPTIMIZER) or n.startswith(added)
            }
            state = kept | self.run.job.states_of_given()
        self.run.put_state(state | self.run.job.model.state())

    def recapture(self) -> None:
        """Trace the layers of the model as it is now."""
        self.run.recapture()


@dataclass(frozen=True, slots=True)
class Trained:
    """Steps that a trainer has done.

    Attributes
    ----------
    losses
        Of every step.
    shares
        Samples by worker in the plan that is in force in the end.
    max_rel_error
        Largest difference of a loss from one process over the same batches, as a part of it;
        ``None`` without a check.
    """

    losses: tuple[float, ...]
    timeline: Timeline
    shares: str
    max_rel_error: float | None = None

    def as_json(self) -> dict[str, Any]:
        """What the command line prints."""
        return {
            "losses": list(self.losses),
            "shares": self.shares,
            "max_rel_error": self.max_rel_error,
            **self.timeline.as_json(),
        }

    def demand(self) -> None:
        """Raise where the losses are not those of one process.

        Raises `CheckError`: by how much.
        """
        if self.max_rel_error is not None and not self.max_rel_error <= MOST_ERROR:
            raise CheckError(
                "training does not do what one process does",
                where="losses",
                by=f"{self.max_rel_error:.2e} of their size, at most {MOST_ERROR:.0e}",
                hint="dropout, and what exact=False (--approximate) accepts, make other losses; "
                "train with exact=True, or report this model",
            )

    def __repr__(self) -> str:
        first, last = self.losses[0], self.losses[-1]
        lines = [f"trained {len(self.losses)} steps: loss {first:.4g}, then {last:.4g}"]
        lines += event_lines(self.timeline.events)
        lines.append(f"samples of a step: {self.shares}")
        if self.max_rel_error is not None:
            lines.append(f"largest difference of a loss from one process: {self.max_rel_error:.1e}")
        return "\n".join(lines)


def train_steps(
    trainer: TrainingLoop[AdaptiveLayerRun],
    steps: int,
    *,
    check: bool = False,
    batches: Callable[[], Iterable[tuple[Any, Any]]] | None = None,
) -> Trained:
    """Train so many steps, on the batch that was planned with or on others.

    A Ctrl-C ends them after the one it comes in: those that are done are returned, without the
    check.

    `check`: compare the losses with one process. `batches`: gives the same batches at each call;
    a run that goes on from a snapshot begins behind those that it has seen.
    """
    run = trainer.run
    source = run.job.model.source
    data = batches or (lambda: repeat((source.inputs, source.targets)))
    begun, done = run.done, list[float]()
    random, start = random_state(), _start(trainer) if check else source
    try:
        for inputs, targets in islice(data(), begun, begun + steps):
            done.append(trainer.step(inputs, targets))
    except KeyboardInterrupt:
        if run.session is None or run.done == begun:
            raise
        if len(done) < run.done - begun:
            done.append(run.loss)
        check = False  # it takes as long as the steps, and torchrun kills after 30 s
    losses = tuple(done)
    error = None
    if check:
        scaler = torch.amp.GradScaler("cpu", enabled=bool(run.job.scaler_begin))
        scaler.load_state_dict(dict(run.job.scaler_begin))
        with torch.random.fork_rng(devices=[]):
            set_random_state(random)
            given = [*islice(data(), run.done)]
            alone, _ = trained_alone(start, given, run.job.update, scaler=scaler)
        pairs = zip(losses, alone[-len(losses) :], strict=True)
        error = max(abs(a - b) / max(abs(b), TINY) for a, b in pairs)
        error = error if all(map(math.isfinite, losses)) else math.inf
    return Trained(losses, run.timeline, shares(run.problem, run.plan), error)


def _start(trainer: TrainingLoop[AdaptiveLayerRun]) -> ModelSource:
    """The model as training began with it: reading it later fetches what was learned."""
    source, begin = trainer.run.job.model.source, trainer.run.begin or {}
    with trainer.unread():
        model = copied(source.model, None)[0]
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if MODEL + name in begin:
                tensor.copy_(begin[MODEL + name])
    return replace(source, model=model)
