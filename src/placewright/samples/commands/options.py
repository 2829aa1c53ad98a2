"""The source of wing 3's verbs: a file of nodes, and options that change it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from placewright.samples.problem import SampleProblem

NodesFile = Annotated[
    Path, typer.Argument(metavar="FILE", show_default=False, help="Nodes and links, YAML or JSON.")
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


def read_changed(file: Path, **options: Any) -> SampleProblem:
    """The problem of a file, with the options that are not ``None`` in place of the file's."""
    from placewright.samples.files import read_problem

    changes = {key: value for key, value in options.items() if value is not None}
    problem = read_problem(file)
    return problem.replace(**changes) if changes else problem
