"""What the verbs of wing 3 have in common: a file of nodes and links, and what to change in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from placewright.samples.problem import SampleProblem

NodesFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", show_default=False, help="Nodes and links, YAML or JSON."),
]
OverlapOption = Annotated[
    Literal["A", "B", "C"] | None,
    typer.Option("--overlap", help="A: all wait; B: each node waits; C: move while training."),
]
RelayOption = Annotated[
    bool | None, typer.Option("--relay/--no-relay", help="May samples pass through a third node?")
]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", min=1, metavar="N", help="Visits of every sample.")
]
PortsOption = Annotated[
    Literal["ideal", "queued"] | None,
    typer.Option("--ports", help="Do transfers wait for the port at the other end?"),
]
PlannerOption = Annotated[
    str, typer.Option("--planner", metavar="NAME", help="See `placewright samples compare`.")
]


def load(
    file: Path,
    overlap: str | None = None,
    relay: bool | None = None,
    epochs: int | None = None,
    ports: str | None = None,
) -> SampleProblem:
    """The problem of the file; what the command line says goes before what the file says."""
    from placewright.samples.files import read_problem

    given = {"overlap": overlap, "relay": relay, "epochs": epochs, "ports": ports}
    said = {key: value for key, value in given.items() if value is not None}
    problem = read_problem(file)
    return problem.replace(**said) if said else problem
