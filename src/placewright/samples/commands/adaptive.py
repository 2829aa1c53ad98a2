"""placewright samples run --adapt: epoch after epoch, planned again when nodes change or leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.errors import InputError, UnknownNameError
from placewright.samples.commands.run import PartialRun

if TYPE_CHECKING:
    from placewright.cli.console import Console
    from placewright.samples.adaptive.replanning import Step, Trouble
    from placewright.samples.nodes import Nodes
    from placewright.samples.problem import SampleProblem
    from placewright.samples.training.recipe import Recipe


def run_adaptively(
    console: Console,
    problem: SampleProblem,
    recipe: Recipe,
    *,
    planner: str,
    planning_s: float | None,
    images: str,
    speed: float,
    up: Nodes | None,
    trouble: Sequence[Trouble],
) -> tuple[list[Step], PartialRun]:
    """Run all epochs, noting each as it ends; and what ended the run early, if anything did."""
    from placewright.runtime.scratch import Scratch
    from placewright.samples.adaptive.replanning import PLANNING_S, Adaptive
    from placewright.samples.data.dealing import deal
    from placewright.samples.data.images import pictures

    data, test = pictures(problem, images, recipe.seed)
    size = problem.sample_bytes if up is not None else 0.0
    steps: list[Step] = []
    partial = PartialRun(console, steps, lambda: f"epoch {len(steps)}")
    with Scratch() as folder:
        shards, digests = deal(problem, data, Path(folder), file_bytes=size)
        job = Adaptive(
            problem,
            shards,
            digests,
            recipe,
            test,
            speed=speed,
            planner=planner,
            planning_s=PLANNING_S if planning_s is None else planning_s,
            trouble=trouble,
            workers=up.workers if up is not None else None,
            slow_down=None if up is None else _quotas(up, problem.node_names),
        )
        with console.meter(f"running {problem.name}") as meter, partial:
            for step in job.steps():
                steps.append(step)
                if step.unplanned:
                    console.note(f"epoch {len(steps)}: not planned again: {step.unplanned}")
                meter(
                    what=f"epoch {len(steps)} of {recipe.epochs}",
                    value=step.epoch.seconds,
                    bound=0.0,
                    elapsed_s=sum(s.epoch.seconds + s.move_s for s in steps),
                )
    return steps, partial


def _quotas(up: Nodes, names: Sequence[str]) -> Callable[[int, float], None]:
    def slow_down(node: int, times: float) -> None:
        up.bed.set_device(names[node], speed=up.bed.cpu_share(names[node]) / times)

    return slow_down


def troubles(
    problem: SampleProblem, slow: Sequence[str], kill: Sequence[str]
) -> tuple[Trouble, ...]:
    """``NODE:EPOCH:TIMES`` and ``NODE:EPOCH``, epochs counted from 1.

    Raises
    ------
    InputError
        Something else, or an epoch that the run does not have.
    UnknownNameError
        No node of this name.
    """
    return (
        *(_trouble(problem, written, "--slow", ("EPOCH", "TIMES")) for written in slow),
        *(_trouble(problem, written, "--kill", ("EPOCH",)) for written in kill),
    )


def _trouble(problem: SampleProblem, written: str, option: str, parts: tuple[str, ...]) -> Trouble:
    from placewright.samples.adaptive.replanning import Trouble

    name, *given = written.rsplit(":", len(parts))
    numbers = [_number(part) for part in given]
    if len(numbers) < len(parts) or not all(x > 0 for x in numbers) or numbers[0] % 1:
        form = ":".join(("NODE", *parts))
        hint = "epochs count from 1; TIMES is a number above 0"
        raise InputError(f"{written!r} is not {form}", where=option, hint=hint)
    if name not in problem.node_names:
        raise UnknownNameError("node", name, problem.node_names, where=option)
    epoch, times = (*numbers, math.inf)[:2]
    if epoch > problem.epochs:
        raise InputError(
            f"{written!r} is after the last epoch",
            where=option,
            by=f"the run has {problem.epochs}",
            hint="name an earlier epoch, or raise --epochs",
        )
    return Trouble(int(epoch) - 1, problem.node_names.index(name), times)


def _number(written: str) -> float:
    """A number that has an end, ``nan`` for everything else."""
    try:
        number = float(written)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
