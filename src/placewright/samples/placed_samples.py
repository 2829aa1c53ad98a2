"""place_samples(problem) -> PlacedSamples: start nodes, measure, plan, move samples and train."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from placewright.errors import InputError
from placewright.io.arguments import Positive, Unlimited, checked
from placewright.planning.contract import Planner, Progress, silent
from placewright.planning.monitor import LOG
from placewright.samples.problem import Overlap, SampleProblem

if TYPE_CHECKING:
    from placewright.planning.result import Result
    from placewright.samples.adaptive.replanning import Disturbance, Step
    from placewright.samples.nodes import Nodes
    from placewright.samples.plan import SamplePlan
    from placewright.samples.run import SampleRun
    from placewright.samples.training.recipe import Recipe

AUTO = "auto"
TIME_LIMIT_S = 60.0


@checked
def place_samples(
    problem: SampleProblem | str | os.PathLike[str],
    *,
    engine: Literal["emulated", "testbed"] = "emulated",
    recipe: Recipe | None = None,
    images: Literal["auto", "digits", "synthetic"] = "auto",
    speed: Positive = 1.0,
) -> PlacedSamples:
    """Start the nodes of a problem, ready to move samples between them and to train there.

    Parameters
    ----------
    problem
        Or the path of its file.
    engine
        ``emulated``: speeds of nodes and links are emulated by waiting. ``testbed`` (root): CPU
        quotas and shaped links; speeds are measured there and replace those of the problem.
    recipe
        How to train; its epochs are those of the problem where none is given.
    images
        To train on: see `placewright.samples.data.images`.
    speed
        How many times faster than in the problem nodes and links are emulated.

    Raises
    ------
    InputError
        A testbed cannot run faster than real time, or the problem lacks what it needs.
    UnsupportedError
        No testbed can be made here.

    Examples
    --------
    >>> with placewright.place_samples("nodes.yaml", speed=5) as placed:
    ...     result = placed.plan()
    ...     runs = placed.run(result.plan)
    """
    from placewright.adapt.run import measured_despite_losses
    from placewright.samples.files import read_problem
    from placewright.samples.measuring import measure
    from placewright.samples.nodes import nodes_up
    from placewright.samples.training.recipe import Recipe

    if engine == "testbed" and speed != 1.0:
        raise InputError("a testbed runs in real time", where="speed", by=f"{speed:g}")
    if not isinstance(problem, SampleProblem):
        problem = read_problem(Path(problem))
    problem = problem.replace(overlap=Overlap.BARRIER)
    recipe = recipe or Recipe(epochs=problem.epochs)
    with ExitStack() as stack:
        up = None
        if engine == "testbed":
            up = stack.enter_context(nodes_up(problem))
            work = partial(measure, problem, recipe, up.workers)
            problem = measured_despite_losses(work, LOG.info).of(problem, recipe.batch)
        return PlacedSamples(problem, recipe, images, speed, up, stack.pop_all())


class PlacedSamples:
    """The nodes of a problem, to plan for, to move samples between and to train on.

    Made by `place_samples`. A context manager that ends the nodes.

    Attributes
    ----------
    problem
        With the measured speeds, on a testbed.
    real
        Whether the nodes are those of a testbed.
    """

    def __init__(
        self,
        problem: SampleProblem,
        recipe: Recipe,
        images: str,
        speed: float,
        up: Nodes | None,
        stack: ExitStack,
    ) -> None:
        self.problem, self.recipe, self.images, self.speed = problem, recipe, images, speed
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
        from placewright.planning.fixed_plan import judged_plan
        from placewright.planning.solving import solve

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
            recipe=self.recipe,
            baselines=BASELINES if baselines is None else baselines,
            speed=self.speed,
            workers=None if self._up is None else self._up.workers,
            kind=self.images,
            progress=progress,
            ended=ended,
        )

    @checked
    def adapt(
        self,
        planner: str = AUTO,
        *,
        planning_s: float | None = None,
        disturbances: Sequence[Disturbance] = (),
    ) -> Generator[Step, None, None]:
        """Train epoch after epoch, planned again when nodes change speed or leave.

        Parameters
        ----------
        planning_s
            Time limit of each plan, while all nodes wait; ten seconds by default.
        disturbances
            Disturbances, for tests and measurements.

        Raises
        ------
        InfeasibleError, InputError
            There is no first plan.
        RunError
            No node is left, or a sample was lost in a move.
        """
        from placewright.runtime.scratch import Scratch
        from placewright.samples.adaptive.replanning import PLANNING_S, Adaptive
        from placewright.samples.data.dealing import deal
        from placewright.samples.data.images import pictures

        problem, up = self.problem, self._up
        data, test = pictures(problem, self.images, self.recipe.seed)
        size = 0.0 if up is None else problem.sample_bytes
        with Scratch() as folder:
            shards, digests = deal(problem, data, Path(folder), file_bytes=size)
            yield from Adaptive(
                problem,
                shards,
                digests,
                self.recipe,
                test,
                speed=self.speed,
                planner=planner,
                planning_s=PLANNING_S if planning_s is None else planning_s,
                disturbances=disturbances,
                workers=None if up is None else up.workers,
                slow_down=None if up is None else self._slow_down,
            ).steps()

    def _slow_down(self, node: int, times: float) -> None:
        assert self._up is not None
        bed, name = self._up.bed, self.problem.node_names[node]
        bed.set_device(name, speed=bed.cpu_share(name) / times)
