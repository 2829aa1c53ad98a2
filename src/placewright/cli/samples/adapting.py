"""placewright samples run --adapt: epoch after epoch, planned again when nodes change or leave."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.cli.face import Face
from placewright.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from placewright.samples.nodes.on_testbed import Nodes
    from placewright.samples.problem import SampleProblem
    from placewright.samples.replanning import Step, Trouble
    from placewright.samples.training.recipe import Recipe


def run_adaptively(
    face: Face,
    problem: SampleProblem,
    recipe: Recipe,
    *,
    planner: str,
    images: str,
    speed: float,
    up: Nodes | None,
    trouble: Sequence[Trouble],
) -> list[Step]:
    """All epochs, each told as it ends; Ctrl-C ends the run with those that have ended."""
    from placewright.samples.data.dealing import deal
    from placewright.samples.data.pictures import pictures
    from placewright.samples.replanning import Adaptive

    data, test = pictures(problem, images, recipe.seed)
    size = problem.sample_bytes if up is not None else 0.0
    steps: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        shards, digests = deal(problem, data, Path(folder), file_bytes=size)
        job = Adaptive(
            problem,
            shards,
            digests,
            recipe,
            test,
            speed=speed,
            planner=planner,
            trouble=trouble,
            seats=up.seats if up is not None else (),
            slow_down=None if up is None else _quotas(up, problem.node_names),
        )
        with face.meter(f"running {problem.name}") as meter:
            try:
                for step in job.steps():
                    steps.append(step)
                    meter(
                        what=f"epoch {len(steps)} of {recipe.epochs}",
                        value=step.epoch.seconds,
                        lower_bound=0.0,
                        elapsed_s=sum(s.epoch.seconds + s.move_s for s in steps),
                    )
            except KeyboardInterrupt:
                if not steps:
                    raise
                face.note(f"interrupted after epoch {len(steps)}")
    return steps


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
        Something else.
    UnknownNameError
        No node of this name.
    """
    return (
        *(_trouble(problem, said, "--slow", ("EPOCH", "TIMES")) for said in slow),
        *(_trouble(problem, said, "--kill", ("EPOCH",)) for said in kill),
    )


def _trouble(problem: SampleProblem, said: str, option: str, parts: tuple[str, ...]) -> Trouble:
    from placewright.samples.replanning import Trouble

    name, *given = said.rsplit(":", len(parts))
    try:
        numbers = [float(part) for part in given]
        epoch, times = numbers if len(parts) == 2 else (*numbers, float("inf"))
        known = epoch >= 1 and epoch == int(epoch) and times > 0
    except ValueError:
        known = False
    if not known:
        form = ":".join(("NODE", *parts))
        raise InputError(f"{said!r} is not {form}", where=option, hint="epochs count from 1")
    if name not in problem.node_names:
        raise UnknownNameError("node", name, problem.node_names, where=option)
    return Trouble(int(epoch) - 1, problem.node_names.index(name), times)
