"""train_samples(model, dataset, nodes) -> PlacedSamples: plan, move samples and train."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from placewright.errors import InputError, check_known
from placewright.io.arguments import Positive, Unlimited, checked
from placewright.planning.contract import LOG, Planner, Progress, silent
from placewright.samples.problem import SampleProblem

if TYPE_CHECKING:
    import torch

    from placewright.planning.result import Result
    from placewright.samples.adaptive import AdaptiveEpoch, Disturbance
    from placewright.samples.nodes import Nodes
    from placewright.samples.plan import SamplePlan
    from placewright.samples.run import SampleRun
    from placewright.samples.training.job import Evaluation, SampleJob
    from placewright.samples.training.node_training import Recipe
    from placewright.samples.training.sample_set import SampleSet

AUTO = "auto"
TIME_LIMIT_S = 60.0


@checked
def train_samples(
    model: Any,
    dataset: Any,
    nodes: SampleProblem | str | os.PathLike[str],
    *,
    loss_fn: Callable[[Any, Any], Any],
    optimizer: str | type[Any] | torch.optim.Optimizer = "sgd",
    lr: Positive = 0.1,
    read: Callable[[Path], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    test: Any = None,
    recipe: Recipe | None = None,
    engine: Literal["emulated", "testbed"] = "emulated",
    speed: Positive = 1.0,
) -> PlacedSamples:
    """Start the nodes that hold samples, ready to move samples and to train a model there.

    Every node computes the gradients of its own samples, as many in each step as it has a share of
    all samples; their mean, weighted by these shares, is the gradient of one process on the union.

    Parameters
    ----------
    model
        A ``torch.nn.Module``; `PlacedSamples.train` and `adapt` write what was learned into it.
    dataset
        Samples ``(inputs, target)``: a sequence or map-style data set, or a tuple of two tensors
        whose rows are samples. They are dealt out in order: the first node gets as many as the file
        says that it holds, and so on; where the file has classes, by targets. Or a data set for
        each node, by its name, which replaces the numbers of the file. Or the path of a folder:
        files that `read` makes samples of, in folders named like the nodes or dealt out by path.
    nodes
        Nodes and links, or the path of their file.
    loss_fn
        ``loss_fn(outputs, targets)``: a mean or a sum over the samples of a batch.
    optimizer, lr
        As of `placewright.train`.
    read
        ``read(path)``: the sample ``(inputs, target)`` of a file.
    collate
        Makes a batch ``(inputs, targets)`` of a list of samples, as of a ``DataLoader``. Where it
        pads, samples are padded to the largest one of all on every node.
    test
        More samples, or a folder of them: loss and accuracy after every epoch are of these.
    recipe
        How to train; its epochs are those of the nodes file where none is given.
    engine
        ``emulated``: speeds of nodes and links are emulated by waiting. ``testbed`` (root): CPU
        quotas and shaped links; speeds are measured there and replace those of the file.
    speed
        How many times faster than in the file nodes and links are emulated.

    Raises
    ------
    InputError
        A testbed cannot run faster than real time; the file lacks what it needs; or samples are
        no pairs, do not make a batch or cannot be read, with the name of the first one.
    UnsupportedError
        No testbed can be made here; or the model cannot be captured, or mixes samples.

    Examples
    --------
    >>> loss_fn = torch.nn.CrossEntropyLoss()
    >>> with placewright.train_samples(model, dataset, "nodes.yaml", loss_fn=loss_fn) as placed:
    ...     print(placed.plan())
    ...     placed.train()
    """
    problem, job = job_of(
        model,
        dataset,
        _problem(nodes),
        loss_fn=loss_fn,
        optimizer=optimizer,
        lr=lr,
        read=read,
        collate=collate,
        test=test,
    )
    return placed_job(job, problem, recipe=recipe, engine=engine, speed=speed)


def job_of(
    model: Any,
    dataset: Any,
    problem: SampleProblem,
    *,
    loss_fn: Callable[[Any, Any], Any],
    optimizer: str | type[Any] | torch.optim.Optimizer = "sgd",
    lr: float = 0.1,
    read: Callable[[Path], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    test: Any = None,
) -> tuple[SampleProblem, SampleJob]:
    """The problem with the samples that nodes have of their own, and what they train.

    See `train_samples`.
    """
    from placewright.samples.training.job import SampleJob
    from placewright.samples.training.sample_set import SampleSet, files_in

    if isinstance(dataset, str | os.PathLike):
        dataset = files_in(Path(dataset), read, problem.node_names)
    if isinstance(test, str | os.PathLike):
        test = files_in(Path(test), read)
    if isinstance(dataset, Mapping):
        problem, samples = _joined(problem, dataset, collate)
    else:
        samples = SampleSet(dataset, "dataset", collate)
    tested = None if test is None else SampleSet(test, "test", collate)
    return problem, SampleJob(model, loss_fn, samples, optimizer, lr, tested)


def placed_job(
    job: SampleJob,
    problem: SampleProblem,
    *,
    recipe: Recipe | None = None,
    engine: str = "emulated",
    speed: float = 1.0,
) -> PlacedSamples:
    """Start the nodes for a model with its samples; see `train_samples`."""
    from placewright.adapt.run import measured_despite_losses
    from placewright.samples.nodes import nodes_up
    from placewright.samples.run import executed, measure
    from placewright.samples.training.node_training import Recipe

    if engine == "testbed" and speed != 1.0:
        raise InputError("a testbed runs in real time", where="speed", by=f"{speed:g}")
    unused = len(job.samples) - int(problem.samples.sum())
    if unused > 0:
        held = "%d of the %d samples of %s are not trained on: the nodes hold %d in all"
        LOG.warning(held, unused, len(job.samples), job.samples.where, problem.samples.sum())
    recipe = recipe or Recipe(epochs=problem.epochs)
    problem = executed(problem).replace(epochs=recipe.epochs)
    with ExitStack() as stack:
        up = None
        if engine == "testbed":
            up = stack.enter_context(nodes_up(problem))
            work = partial(measure, problem, recipe, job, up.workers)
            problem = measured_despite_losses(work, LOG.info).of(problem, recipe.batch)
        return PlacedSamples(problem, recipe, job, speed, up, stack.pop_all())


def _problem(nodes: SampleProblem | str | os.PathLike[str]) -> SampleProblem:
    from placewright.samples.files import read_problem

    return nodes if isinstance(nodes, SampleProblem) else read_problem(Path(nodes))


def _joined(
    problem: SampleProblem,
    datasets: Mapping[str, Any],
    collate: Callable[[list[Any]], Any] | None,
) -> tuple[SampleProblem, SampleSet]:
    """The problem with the samples of each node's own set, and all samples in its order."""
    from placewright.samples.training.sample_set import SampleSet

    if not datasets:
        raise InputError(
            "no node has a data set",
            where="dataset",
            by="got an empty mapping",
            hint="give a data set, or one for each node by its name",
        )
    for name in datasets:
        check_known("node", name, problem.node_names, where="dataset")
    sets = {name: SampleSet(own, f"dataset of node {name}") for name, own in datasets.items()}
    found: list[tuple[SampleSet, int]] = []
    counts = np.zeros_like(problem.samples)
    for i, name in enumerate(problem.node_names):
        if (own := sets.get(name)) is None:
            continue
        labels = [own.label(k) if problem.k > 1 else 0 for k in range(len(own))]
        if labels and not 0 <= min(labels) <= max(labels) < problem.k:
            odd = min(labels) if min(labels) < 0 else max(labels)
            raise InputError(
                "a sample has a class that the nodes file has not",
                where=f"node {name}, {own.name(labels.index(odd))}",
                by=f"{odd}, the file has {problem.k} classes",
                hint="name all classes in the file, in the order of the targets",
            )
        counts[i] = np.bincount(np.array(labels, dtype=np.int64), minlength=problem.k)
        found += [(own, k) for k in np.argsort(labels, kind="stable").tolist()]
    return problem.replace(samples=counts), SampleSet(_Picked(found), "dataset", collate)


class _Picked:
    """Samples of several sets, in an order of its own."""

    def __init__(self, found: Sequence[tuple[SampleSet, int]]) -> None:
        self._found = found

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, k: int) -> tuple[Any, Any]:
        samples, at = self._found[k]
        return samples[at]

    def sample_name(self, k: int) -> str:
        """That of its own set."""
        samples, at = self._found[k]
        return samples.name(at)


class PlacedSamples:
    """The nodes of a problem, to plan for, to move samples between and to train on.

    Made by `train_samples`. A context manager that ends the nodes.

    Attributes
    ----------
    problem
        As nodes execute it: with overlap A, proportional batches, full duplex and the recipe's
        epochs, and with the measured speeds on a testbed.
    real
        Whether the nodes are those of a testbed.
    """

    def __init__(
        self,
        problem: SampleProblem,
        recipe: Recipe,
        job: SampleJob,
        speed: float,
        up: Nodes | None,
        stack: ExitStack,
    ) -> None:
        self.problem, self.recipe, self.job, self.speed = problem, recipe, job, speed
        self._up, self._stack = up, stack

    def __enter__(self) -> PlacedSamples:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the nodes."""
        self._stack.close()

    @property
    def real(self) -> bool:
        """See above."""
        return self._up is not None

    @checked
    def plan(
        self,
        planner: str | Planner = AUTO,
        *,
        plan: SamplePlan | str | Path | None = None,
        time_limit_s: Unlimited = TIME_LIMIT_S,
        seed: int = 0,
        progress: Progress = silent,
    ) -> Result:
        """Decide which samples move, or judge the `plan` that is given, or that is in a file.

        Raises
        ------
        InfeasibleError
            No plan fits, or the given one does not.
        """
        from placewright.planning.solving import judged_plan, solve

        if plan is not None:
            return judged_plan(self.problem, plan)
        return solve(self.problem, planner, time_limit_s=time_limit_s, seed=seed, progress=progress)

    @checked
    def run(
        self,
        plan: SamplePlan | None,
        *,
        baselines: Sequence[str] | None = None,
        progress: Progress = silent,
        ended: Callable[[SampleRun], None] = lambda run: None,
    ) -> list[SampleRun]:
        """Move, train and measure: the plan first, then baselines, each on files of its own.

        Parameters
        ----------
        baselines
            All of `placewright.samples.run.BASELINES` where ``None``.
        ended
            Called with each run as it ends, for callers that may be interrupted.

        Raises
        ------
        RunError
            A sample was lost, or a process died.
        """
        from placewright.samples.run import BASELINES, run

        return run(
            self.problem,
            plan,
            self.job,
            recipe=self.recipe,
            baselines=BASELINES if baselines is None else baselines,
            speed=self.speed,
            workers=None if self._up is None else self._up.workers,
            progress=progress,
            ended=ended,
        )

    @checked
    def train(
        self,
        plan: SamplePlan | str | Path | None = None,
        *,
        shares: Literal["data", "speed", "weighted"] | None = None,
        progress: Progress = silent,
    ) -> SampleRun:
        """Move samples by a plan, train on all nodes, and write what was learned into the model.

        Parameters
        ----------
        plan
            Made by `plan` where none is given.
        shares
            How nodes share each step, in place of what the recipe says: ``data``, as they hold
            samples; ``speed``, as their speeds allow, whatever they hold (LB-BSP); ``weighted``, so
            too, and samples that are visited less often than they should be count for more.

        Raises
        ------
        InfeasibleError
            No plan fits.
        RunError
            A sample was lost, or a process died; the model is as it was.
        """
        found = self.plan(plan=plan) if plan is not None else self.plan(progress=progress)
        recipe = self.recipe if shares is None else replace(self.recipe, shares=shares)
        own = PlacedSamples(self.problem, recipe, self.job, self.speed, self._up, ExitStack())
        (run,) = own.run(found.demand_finished().plan, baselines=(), progress=progress)
        self.job.write_back(run.trained.state)
        return run

    @checked
    def evaluate(self, data: Any = None) -> Evaluation:
        """Loss and accuracy of the model as it is now, in this process.

        Parameters
        ----------
        data
            A data set or a tuple of two tensors, as for training; the test samples without it.

        Raises
        ------
        InputError
            There are no samples, or they do not make a batch.
        """
        from placewright.samples.training.sample_set import SampleSet

        if data is None and self.job.test is None:
            raise InputError(
                "there is nothing to evaluate on",
                where="evaluate",
                hint="give samples here, or train_samples(..., test=...)",
            )
        collate = self.job.samples.collate
        samples = self.job.test if data is None else SampleSet(data, "data", collate)
        assert samples is not None
        return self.job.evaluate(samples)

    @checked
    def adapt(
        self,
        planner: str = AUTO,
        *,
        planning_s: float | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
        disturbances: Sequence[Disturbance] = (),
    ) -> Generator[AdaptiveEpoch, None, None]:
        """Train epoch after epoch, planned again when nodes change speed or leave.

        When it ends, the model has what was learned until then.

        Parameters
        ----------
        planning_s
            Time limit of each plan, while all nodes wait; ten seconds by default.
        checkpoint
            File that is written after every epoch: the training state, and how many have ended.
        resume
            Go on from the checkpoint. Samples are dealt out again, and move again where it pays.
        disturbances
            Disturbances, for tests and measurements.

        Raises
        ------
        InfeasibleError, InputError
            There is no first plan.
        RunError
            No node is left, or a sample was lost in a move.
        """
        from placewright.io.scratch import Scratch
        from placewright.samples.adaptive import PLANNING_S, Adaptive
        from placewright.samples.data import deal
        from placewright.samples.training.train import read_since

        problem, up = self.problem, self._up
        if resume and checkpoint is None:
            raise InputError("there is no checkpoint to go on from", where="resume")
        file = None if checkpoint is None else Path(checkpoint)
        since = read_since(file, self.job, self.recipe.epochs) if resume and file else None
        size = 0.0 if up is None else problem.sample_bytes
        with Scratch() as folder:
            shards, digests = deal(problem, self.job.samples, Path(folder), file_bytes=size)
            training = Adaptive(
                problem,
                shards,
                digests,
                self.recipe,
                self.job,
                speed=self.speed,
                planner=planner,
                planning_s=PLANNING_S if planning_s is None else planning_s,
                disturbances=disturbances,
                since=since,
                checkpoint=file,
                workers=None if up is None else up.workers,
                slow_down=None if up is None else self._slow_down,
            )
            try:
                yield from training.steps()
            finally:
                if training.state is not None:
                    self.job.write_back(training.state)

    def _slow_down(self, node: int, times: float) -> None:
        assert self._up is not None
        bed, name = self._up.bed, self.problem.node_names[node]
        bed.set_device(name, speed=bed.cpu_share(name) / times)
