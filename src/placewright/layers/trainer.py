"""LayerTrainer: an ordinary training loop over workers that share every batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from placewright.adapt.batch_trainer import BatchTrainer
from placewright.adapt.model_changes import ModelChanges
from placewright.adapt.timeline import Timeline
from placewright.capturing.guards import Guards
from placewright.capturing.updates import (
    OPTIMIZER,
    SETTINGS,
    current_settings,
    write_states,
)
from placewright.errors import CheckError
from placewright.io.stored import write_file
from placewright.layers.adaptive import AdaptiveLayerRun, shares
from placewright.layers.execution.reference import trained_alone
from placewright.layers.plan import LayerPlan
from placewright.layers.run import TINY
from placewright.report.history import event_lines

MODEL = "model."

MOST_ERROR = 1e-3
"""Largest difference of a loss from one process, as a part of it: rounding grows with steps."""


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


class LayerTrainer(BatchTrainer[AdaptiveLayerRun]):
    """Trains batch after batch, in the user's own loop. Made by `PlacedTraining.trainer`.

    Shares of the batch follow the speeds of the workers, and training goes on from the last
    snapshot where one is lost::

        with placed.trainer("folder") as trainer:
            for x, y in trainer.remaining(loader):
                loss = trainer.step(x, y)
            trainer.finish()                 # the model holds what was learned
    """

    def __init__(self, model: torch.nn.Module, run: AdaptiveLayerRun, guards: Guards) -> None:
        super().__init__(model, run)
        self._given = run.job.given
        run.begin = run.job.states_of_given() or None
        if self._given is not None:
            self._keep_settings(self._given)
        self.changes = ModelChanges(
            guards,
            self._given,
            fetch=self._fetch,
            put=self._put,
            recapture=run.recapture,
            done=lambda: run.done,
        )

    def _keep_settings(self, optimizer: torch.optim.Optimizer) -> None:
        """Write the optimizer's numbers into snapshots; go on from those of the last one."""
        update, log = self.run.job.update, self.run.log
        if kept := log.restored.get(SETTINGS):
            for group in optimizer.param_groups:
                group.update(update.rule.group(kept))
        log.notes = lambda: {SETTINGS: current_settings(optimizer, update).tolist()}

    @property
    def plan(self) -> LayerPlan:
        """In force now."""
        return self.run.plan

    def step(self, inputs: Any, targets: Any = None) -> float:
        """One training step on a batch as large as the one that was planned with; its loss.

        A Ctrl-C takes effect when the step is done, a second one at once.

        Raises `InputError`: the batch has another size or other tensors; or the loop has changed
        the model or the optimizer in a way that cannot be taken over.
        Raises `InfeasibleError`: the model does not fit on the workers that are left.
        """
        self.changes.follow()
        self.run.step(self.run.job.batch(inputs, targets))
        return self.run.loss

    def repeat(self, steps: int, *, check: bool = False) -> Trained:
        """Train so many steps on the batch that was planned with.

        A Ctrl-C ends them after the one it comes in: those that are done are returned, without the
        check.

        `check`: compare the losses with one process.
        """
        job = self.run.job
        source = job.model.source
        begun, done = self.steps_done, list[float]()
        try:
            for _ in range(steps):
                done.append(self.step(source.inputs, source.targets))
        except KeyboardInterrupt:
            if self.run.session is None or self.steps_done == begun:
                raise
            if len(done) < self.steps_done - begun:
                done.append(self.run.loss)
            check = False  # it takes as long as the steps, and torchrun kills after 30 s
        losses = tuple(done)
        error = None
        if check:
            batches = [(source.inputs, source.targets)] * self.steps_done
            alone, _ = trained_alone(source, batches, job.update)
            pairs = zip(losses, alone[-len(losses) :], strict=True)
            error = max(abs(a - b) / max(abs(b), TINY) for a, b in pairs)
            error = error if all(map(math.isfinite, losses)) else math.inf
        return Trained(losses, self.timeline, shares(self.run.problem, self.plan), error)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers as they are now, by their names in the model."""
        state = self.run.state()
        return {n.removeprefix(MODEL): v for n, v in state.items() if n.startswith(MODEL)}

    def save(self, path: str | Path) -> Path:
        """Write `state_dict` as a safetensors file."""
        from safetensors.torch import save

        return write_file(Path(path), save(self.state_dict()))

    def close(self) -> None:
        """End the run and its workers; snapshots stay."""
        self.changes.close()
        super().close()

    def _write_back(self) -> None:
        self.changes.written(self._fetch)

    def _fetch(self) -> None:
        """Write the workers' weights and optimizer state into the model and the optimizer."""
        if not self.run.done:
            return
        state = self.run.state()
        self.run.keep_begin()
        with torch.no_grad():
            for name, member in _members(self.model):
                if name in state:
                    member.copy_(state[name])
        if self._given is not None:
            write_states(self._given, self.model, state)

    def _put(self) -> None:
        """Let workers go on from the model's weights and the optimizer's state."""
        state = self.run.state()
        if self._given is not None:
            state = {n: v for n, v in state.items() if not n.startswith(OPTIMIZER)}
            state |= self.run.job.states_of_given()
        self.run.put_state(state | self.run.job.model.state())


def _members(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by their names in a training state."""
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        yield f"{MODEL}{name}", value
