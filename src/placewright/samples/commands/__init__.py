"""The command line of wing 3: what a problem is loaded from, and the verbs generate and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.planning.wing import Loaded
from placewright.samples.commands.options import (
    EpochsOption,
    NodesFile,
    OverlapOption,
    PortsOption,
    RelayOption,
    read_changed,
)
from placewright.samples.commands.run import run

if TYPE_CHECKING:
    from placewright.cli.console import Console

RegimeName = Annotated[
    str,
    typer.Argument(
        metavar="REGIME", show_default=False, help="mild, moderate, heavy or network-bound."
    ),
]
NodesOption = Annotated[int, typer.Option("--nodes", min=1, metavar="N", help="How many.")]


def load(
    console: Console,
    file: NodesFile,
    overlap: OverlapOption = None,
    relay: RelayOption = None,
    epochs: EpochsOption = None,
    ports: PortsOption = None,
) -> Loaded:
    """The problem of the file, with the options that were given in place of the file's."""
    return Loaded(read_changed(file, overlap=overlap, relay=relay, epochs=epochs, ports=ports))


def generate(
    console: Console,
    regime: RegimeName,
    nodes: NodesOption = 10,
    seed: int = 0,
    format: str = "yaml",
) -> None:
    """Make a file of nodes and links; the same seed gives the same file."""
    from placewright.samples.files import write_problem
    from placewright.samples.formats.writing import problem_json
    from placewright.samples.generate import generate as make

    problem = make(regime, nodes, seed)
    if console.output is None or console.format != "yaml":
        console.show(lambda: problem_json(problem), lambda: repr(problem))
    if console.output is not None:
        console.kept(write_problem(problem, console.output))


verbs: dict[str, Callable[..., None]] = {"run": run, "generate": generate}
examples = {
    "plan": ["nodes.yaml --report plan.html", "nodes.yaml --planner greedy -f json"],
    "compare": ["nodes.yaml --planner none --planner greedy"],
    "simulate": ["nodes.yaml plan.json --ports queued"],
    "explain": ["nodes.yaml plan.json n3"],
    "run": [
        "nodes.yaml --epochs 3 --speed 5 --baseline none",
        "nodes.yaml --engine testbed --channels 16 --depth 2 --enlarged 2",
        "nodes.yaml --adapt --slow n0:3:4 --kill n1:5",
    ],
    "generate": ["heavy --nodes 20 --seed 1 -o nodes.yaml -q"],
}
