"""--engine: who starts the workers, and what can be said before anything is profiled."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from placewright.runtime.engines.engine import Engine

EngineName = Literal["local", "testbed", "torchrun", "ray"]

EngineOption = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="Who starts the workers: this process; this process, on nodes of a testbed (root; "
        "see `placewright testbed`); torchrun; Ray.",
    ),
]
EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate/--no-emulate",
        help="Wait where devices and links are slower than the machines that are there.",
    ),
]


GpusOption = Annotated[
    Literal["together", "apart"] | None,
    typer.Option(
        "--gpus",
        help="One process for the GPUs of a node, or one each; together where all are on one "
        "node. With --engine local.",
    ),
]


def serves(engine: str) -> bool:
    """Whether this process is one of torchrun's that only serve; if so it did, until the end."""
    if engine != "torchrun":
        return False
    from placewright.runtime.engines.agent import is_lead, serve

    if is_lead():
        return False
    serve()
    return True


def prepared(
    name: str, on: str | None, emulate: bool, gpus: str | None = None
) -> AbstractContextManager[Engine]:
    """The engine, to be entered when there is something to run.

    Raises
    ------
    PlacewrightError
        It cannot be had, which is better said before a model is captured and profiled.
    """
    from placewright.cli.sources import find_cluster
    from placewright.runtime.engines.engine import open_engine

    together = None if gpus is None else gpus == "together"
    return open_engine(name, find_cluster(on), emulate=emulate, together=together)
