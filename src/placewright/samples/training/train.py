"""Train on all nodes together, one process each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import safe_open
from safetensors.torch import load_file, save

from placewright.capturing.updates import OPTIMIZER
from placewright.errors import InputError, described
from placewright.io.boundary import open_file
from placewright.io.scratch import Scratch, no_room
from placewright.io.stored import write_file
from placewright.io.tensor_files import write_tensors
from placewright.numerics.arrays import FloatArray
from placewright.runtime import limits
from placewright.samples.data import Shard
from placewright.samples.nodes import NodeWorkers, workers_or_own
from placewright.samples.problem import SampleProblem
from placewright.samples.training.job import SampleJob, write_batch
from placewright.samples.training.node_training import (
    Epoch,
    NodeTraining,
    Recipe,
    TrainingOrder,
    node_weights,
    part_sizes,
    steps_of,
)

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_S = 600.0

EPOCHS = "placewright.samples.epochs"
"""Key of a checkpoint's metadata."""


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Epoch by epoch, and the training state at the end.

    Attributes
    ----------
    state
        Parameters, buffers and the optimizer's state: see `SampleJob.write_back`.
    seconds_per_sample
        Shape (n,): as measured, in the run's own time; ``nan`` where a node visited nothing.
    spans_s
        Shape (n, steps, 3): when each step began, had its own gradients, ended; the first at 0.
    """

    epochs: tuple[Epoch, ...]
    state: Mapping[str, Tensor]
    seconds_per_sample: FloatArray
    spans_s: FloatArray = field(default_factory=lambda: np.zeros((0, 0, 3)))

    @property
    def train_s(self) -> float:
        """Seconds of all epochs."""
        return sum(epoch.seconds for epoch in self.epochs)


@dataclass(frozen=True, slots=True, eq=False)
class Since:
    """What has been trained already: epochs, and the training state that they ended with."""

    epochs: int = 0
    state: Mapping[str, Tensor] | None = None

    def save(self, path: str | Path) -> Path:
        """Write both to a checkpoint, atomically, after at least one epoch."""
        assert self.state is not None
        held = {name: value.contiguous() for name, value in self.state.items()}
        return write_file(path, save(held, metadata={EPOCHS: str(self.epochs)}))


def _demand_of_job(
    state: Mapping[str, Tensor], expected: Mapping[str, Tensor], job: SampleJob, where: str
) -> None:
    """Raise `InputError` where a checkpoint is of another model or another optimizer."""
    own = {name for name in expected if not name.startswith(OPTIMIZER)}
    for name in sorted(own | {name for name in state if not name.startswith(OPTIMIZER)}):
        got, wanted = (_kind(held.get(name)) for held in (state, expected))
        if got != wanted:
            raise InputError(
                "the checkpoint is of another model",
                where=where,
                by=f"{name} {got} in it, {wanted} in the model",
                hint="give the model that it was written for",
            )
    kept = {n.removeprefix(OPTIMIZER).partition(":")[0] for n in state if n.startswith(OPTIMIZER)}
    update = job.update
    slots = {*update.moments, *(["step"] if update.counts_steps else [])}
    # Of several groups one may keep less than another.
    fits = kept == slots if len(update.settings) == 1 else kept <= slots
    if not fits:
        raise InputError(
            "the checkpoint is of another optimizer",
            where=where,
            by=f"it keeps {_named(kept)}, {update.rule.kind} as given {_named(slots)}",
            hint="give the optimizer that it was written with, or start without resuming",
        )


def _kind(value: Tensor | None) -> str:
    if value is None:
        return "is not"
    return f"has {list(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def _named(slots: Collection[str]) -> str:
    return ", ".join(sorted(slots)) or "nothing"


def read_since(path: str | Path, job: SampleJob, epochs: int) -> Since:
    """The checkpoint that `Since.save` wrote, of a run of so many epochs.

    Raises `InputError`: there is none, it is damaged, of another model, or of a run that has ended.
    """
    where, expected = str(path), job.state()
    try:
        open_file(path).close()  # a pipe would be waited for
        with safe_open(path, framework="pt") as file:
            done = int((file.metadata() or {})[EPOCHS])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # whatever a damaged file makes of a parser
        raise InputError(
            "is no checkpoint of training on nodes, or a damaged one",
            where=where,
            by=described(error)[:120],
            hint="name the file that an earlier run wrote as its checkpoint",
        ) from None
    _demand_of_job(state, expected, job, where)
    if done >= epochs:
        raise InputError(
            "all epochs are in the checkpoint",
            where=where,
            by=f"{done} of {epochs}",
            hint="ask for more epochs, or start without resuming",
        )
    return Since(done, state)


def train(
    problem: SampleProblem,
    shards: list[Shard],
    recipe: Recipe,
    job: SampleJob,
    speed: float = 1.0,
    *,
    workers: NodeWorkers | None = None,
    since: Since | None = None,
    dying: frozenset[int] = frozenset(),
) -> Trained:
    """Train on what the shards hold; nodes are as slow as in the problem, divided by `speed`.

    `workers`: the nodes' processes; others for the length of this call where none are given.
    `dying`: nodes that are killed on purpose, in the middle of the first epoch.
    Raises `NodeLeft`: which nodes' processes were killed.
    Raises `WorkerError`: a process died, or did not answer for `LONGEST_S`.
    """
    begun, limit_s = since or Since(), limits.patience(LONGEST_S)
    with (
        workers_or_own(workers) as nodes,
        nodes.group(problem.node_names) as group,
        Scratch() as folder,
    ):
        orders = [
            replace(
                order,
                first_epoch=begun.epochs,
                dies=rank in dying,
            )
            for rank, order in enumerate(
                training_orders(problem, shards, recipe, job, Path(folder), speed, begun.state)
            )
        ]
        answers: list[NodeTraining] = group.order(
            "train", [(order,) for order in orders], limit_s=limit_s
        )
        try:
            group.check_written([answer.unsaved for answer in answers])
        except OSError as error:
            raise no_room("the state after training cannot be kept", folder, error) from error
        state = load_file(next(order.saved for order in orders if order.saved))
    each_s = _sample_s(problem, answers, recipe, nodes.real)
    spans_s = np.array([answer.spans_s for answer in answers])
    return Trained(answers[0].epochs, state, each_s, spans_s - spans_s.min())


def _sample_s(
    problem: SampleProblem, answers: list[NodeTraining], recipe: Recipe, real: bool
) -> FloatArray:
    """Seconds per sample; on a testbed, what steps cost whatever they hold is in the time."""
    fixed_s = recipe.epochs * problem.fixed_s * real
    spent_s = np.maximum([a.compute_s for a in answers] - fixed_s, 0.0)
    visited = np.array([a.visited for a in answers], dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        each_s: FloatArray = np.where(visited > 0, spent_s / visited, np.nan)
    return each_s


def training_orders(
    problem: SampleProblem,
    shards: list[Shard],
    recipe: Recipe,
    job: SampleJob,
    folder: Path,
    speed: float = 1.0,
    state: Mapping[str, Tensor] | None = None,
) -> list[TrainingOrder]:
    """Each node's order; they meet in `folder`, once, and it has files for them.

    Raises `UnsupportedError`, `InputError`: the model cannot be captured.
    """
    held = [len(shard.samples()) for shard in shards]
    total, work = sum(held), problem.seconds_per_sample / speed
    steps = steps_of(total, recipe.batch)
    sizes = [part_sizes(held[i], total, work, i, recipe) for i in range(problem.n)]
    weights = np.ones(problem.n)
    if recipe.shares == "weighted":
        weights = node_weights(held, [max(each, default=0) for each in sizes])
    job.renew()
    begun = folder / "state"
    write_tensors(begun, job.state() if state is None else state)
    tests = job.tests()
    tested = {program.samples for program in tests}
    test = "" if job.test is None else write_batch(job.test, len(job.test), folder / "test")
    return [
        TrainingOrder(
            rendezvous=f"file://{folder / 'rendezvous'}",
            folder=str(shards[i].folder),
            recipe=recipe,
            total=total,
            work=work,
            fixed_s=float(problem.fixed_s[i]) / speed,
            # The problem's seconds are of an epoch with an exchange after every step.
            sync_s=problem.sync_s / speed / steps,
            programs=job.programs(sorted(sizes[i] or set.union(*sizes))),
            counts=job.counts(sorted(sizes[i] | tested)),
            reduction=job.split.reduction,
            counted=sum(job.split.counted),
            statistics=job.statistics,
            update=job.update,
            state=str(begun),
            tests=tests,
            test=test,
            # One that has taken steps: without exchanges the others' optimizers have no state.
            saved=str(folder / "saved") if i == held.index(max(held)) else "",
            weight=float(weights[i]),
        )
        for i in range(problem.n)
    ]
