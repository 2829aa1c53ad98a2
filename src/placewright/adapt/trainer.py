"""Trainer: a model trained over unlike devices, from an ordinary PyTorch loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from placewright.adapt.decide import Policy
from placewright.adapt.replan import Replanner
from placewright.adapt.rivals import rivals
from placewright.adapt.run import AdaptiveRun, Job
from placewright.adapt.timeline import Timeline
from placewright.capturing.containers import leaves_of
from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, mean_square
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster
from placewright.errors import InputError
from placewright.graph.program import Program
from placewright.operators.plan import OperatorPlan
from placewright.profiling.build import profile
from placewright.profiling.interference import InterferenceProfile


class Trainer:
    """Places a training step on a cluster and carries it out, batch after batch.

    Adapts to devices and links that change, and goes on from its last snapshot when a worker is
    lost. The loop stays the user's::

        with Trainer(model, (x, y), loss_fn, cluster=cluster, folder="run") as trainer:
            for x, y in trainer.remaining(loader):
                loss = trainer.step(x, y)
            trainer.finish()                 # the model holds what was learned

    Parameters
    ----------
    model
        Its parameters are where training starts; `finish` writes the result back.
    example
        One batch ``(inputs, targets)``; all others have the same shapes.
    loss_fn
        ``loss_fn(outputs, targets) -> scalar``; the mean square of the outputs where none is given.
    cluster
        The devices; this machine by default.
    folder
        Snapshots; a folder that already holds some of this model continues that run.
    optimizer, lr
        ``adam`` or ``sgd``.
    plan
        In force at first; planned by CEFT+PBQP where none is given.
    steps
        How many are planned in all, if that is known: plans that are predicted to be about as
        good are then tried in the first steps, and a migration must pay for itself in the rest.
    patience_s
        No step is given up before it has taken so many seconds.

    Raises
    ------
    InfeasibleError
        The step fits on no devices that are there.
    InputError
        The folder holds another model's snapshots, or another run is using it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        example: tuple[Any, Any],
        loss_fn: Callable[[Any, Any], torch.Tensor] = mean_square,
        *,
        cluster: Cluster | None = None,
        folder: str | Path,
        optimizer: str = "adam",
        lr: float = 1e-3,
        plan: OperatorPlan | None = None,
        adapt: bool = True,
        steps: int | None = None,
        policy: Policy | None = None,
        snapshot_every: int = 50,
        patience_s: float = 10.0,
        seed: int = 0,
    ) -> None:
        inputs, targets = example
        source = ModelSource(model, inputs, loss_fn, targets, type(model).__name__)
        graph = capture_source(source, training=True, optimizer=optimizer, lr=lr)
        state = initial_state(source, graph.program)
        cluster = cluster or Cluster.detect()
        problem = profile(graph, cluster, state=state)
        policy = policy or Policy()
        planned = float("inf") if steps is None else float(steps)
        others: tuple[OperatorPlan, ...] = ()
        if adapt and steps is not None:
            plan = plan or Replanner().whole(problem)
            others = rivals(InterferenceProfile.alike(problem), plan, steps)
        run = AdaptiveRun(
            Job(graph, cluster, problem, state),
            Path(folder),
            plan=plan,
            rivals=others,
            policy=policy,
            steps=planned,
            adapt=adapt,
            snapshot_every=snapshot_every,
            patience_s=patience_s,
            seed=seed,
        )
        self._begin(model, run)

    @classmethod
    def of_run(cls, model: torch.nn.Module, run: AdaptiveRun) -> Trainer:
        """A trainer for a run of the model's training step that has been prepared."""
        trainer = cls.__new__(cls)
        trainer._begin(model, run)
        return trainer

    def _begin(self, model: torch.nn.Module, run: AdaptiveRun) -> None:
        program = run.job.graph.program
        assert isinstance(program, Program)
        self.model, self.program, self.run = model, program, run

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.run.close()

    @property
    def timeline(self) -> Timeline:
        """What happened so far."""
        return self.run.timeline

    @property
    def steps_done(self) -> int:
        """Steps, those before a continued run's last snapshot included."""
        return self.run.done

    def remaining(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's batches without those that a continued run has already taken.

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
        self.run.step(self._batch(inputs, targets))
        return next(iter(self.run.scalars.values()))

    def finish(self) -> torch.nn.Module:
        """The model with the trained parameters and buffers; a last snapshot is kept.

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
