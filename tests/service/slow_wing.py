"""The toy wing, with a planner that searches until it is stopped, and a verb that is not pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli.console import Console
from placewright.cli.wing_verbs import ProblemFile
from placewright.planning.contract import STEPS, Context, Planner, Proposal
from placewright.planning.wing import FileCommandLine, Loaded
from tests.planning import test_toy_wing as toy


@dataclass(frozen=True, slots=True)
class Slow:
    name: str = "slow"

    def unsupported_reason(self, problem: toy.Packing) -> str | None:
        """Always supported."""
        return None

    def __call__(self, problem: toy.Packing, context: Context) -> Proposal[toy.Bins]:
        """Report the first plan again and again."""
        best = toy.pack(problem, range(len(problem.sizes)))
        try:
            for k in range(3000):
                context.progress(what=f"look {k}", value=4.0, bound=3.0, elapsed_s=0.0)
                time.sleep(0.02)
        except KeyboardInterrupt:
            return Proposal(best, interrupted=True)
        return Proposal(best)


class SlowPlanning(toy.PackingPlanning):
    def planners(self, problem: toy.Packing) -> Mapping[str, Planner]:
        """The toy's, and the slow one."""
        return {**super().planners(problem), "slow": Slow()}


def load(console: Console, file: ProblemFile) -> Loaded:
    """A problem file."""
    return Loaded(toy.PackingFiles().read_problem(file))


def run(
    console: Console,
    steps: Annotated[int, typer.Option("--steps")] = 50,
    folder: Annotated[Path | None, typer.Option("--folder", metavar="FOLDER")] = None,
) -> None:
    """Do what nobody may do twice unasked."""
    if folder is not None:
        (folder / "parts").mkdir(parents=True)
        (folder / "parts" / "first.txt").write_text("of two")
    with console.meter("running", STEPS) as meter:
        try:
            for k in range(steps):
                meter.step(f"step {k}")
                time.sleep(0.02)
        except KeyboardInterrupt:
            console.note(f"interrupted after {k} of {steps} steps")
    console.keep(lambda: {"steps": steps})


WING = replace(
    toy.WING,
    planning=SlowPlanning,
    command_line=lambda: FileCommandLine(load, verbs={"run": run}),
)
