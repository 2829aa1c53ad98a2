"""The command line of wing 2: its sources, and `layers run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.layers.commands.run import run
from placewright.layers.commands.source import find_problem
from placewright.planning.wing import Loaded

if TYPE_CHECKING:
    from placewright.cli.console import Console

SourceName = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="A model (zoo:NAME, package.module:factory or FILE.py:factory, with --on), a problem "
        "file, or piper:FILE[?devices=K&memory=16GiB].",
    ),
]
MOST_SAMPLES = 100_000

BatchOption = Annotated[
    int | None,
    typer.Option("--batch", min=1, max=MOST_SAMPLES, metavar="N", help="Samples of a step."),
]

OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="CLUSTER", help="Workers of a model: a file or a preset."),
]
ExactOption = Annotated[
    bool,
    typer.Option(
        "--exact/--approximate",
        help="Of a model: refuse dropout and batch norm on parts of the batch, or accept them.",
    ),
]


def load(
    console: Console,
    source: SourceName,
    on: OnOption = None,
    batch: BatchOption = None,
    exact: ExactOption = True,
) -> Loaded:
    """The problem of a source."""
    return Loaded(find_problem(source, console, on, batch, exact=exact))


verbs: dict[str, Callable[..., None]] = {"run": run}
examples = {
    "plan": [
        "zoo:bert --on server-4gpu --batch 16 -o plan.json",
        "problem.json --report plan.html",
        "piper:bert.json?devices=512 -f json",
    ],
    "compare": ["problem.json --planner dp --planner pso", "zoo:gpt2 --on edge-duo --approximate"],
    "simulate": ["problem.json plan.json"],
    "run": ["zoo:gpt2 --on edge-duo --batch 8 --approximate --steps 6"],
    "explain": ["problem.json plan.json block.7"],
}
