"""The testbed that a word on the command line means, and how it is shown."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli.console import Console

if TYPE_CHECKING:
    from placewright.testbed.testbed import Testbed

ClusterArgument = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER", show_default=False, help="A cluster file, a preset, or what is up."
    ),
]
MaybeCluster = Annotated[
    str | None,
    typer.Argument(metavar="CLUSTER", show_default=False, help="By default, all that are up."),
]


def name_of(spec: str) -> str:
    """The name of the cluster that a file, a preset or a name means."""
    from placewright.cli.sources import find_cluster
    from placewright.testbed.blueprint import id_of
    from placewright.testbed.record import records

    named = any(record.id == id_of(spec) for record in records())
    return spec if named else find_cluster(spec).name


def find(spec: str) -> Testbed:
    """The testbed that is up for it."""
    from placewright.testbed.testbed import Testbed

    return Testbed.find(name_of(spec))


def find_or_make(spec: str) -> Testbed:
    """The testbed that is up for it, for as long as we need it, or a new one."""
    from placewright.cli.sources import find_cluster
    from placewright.testbed.requirements import require
    from placewright.testbed.testbed import Testbed

    require()
    named = [bed.cluster for bed in Testbed.all() if bed.cluster.name == spec]
    return Testbed.up(named[0] if named else find_cluster(spec))


def show(beds: list[Testbed], console: Console) -> None:
    """The status of these testbeds, in the format asked for."""
    from placewright.testbed.status import status
    from placewright.testbed.text import testbed_table

    found = [status(bed) for bed in beds]
    for note in (note for state in found for note in state.notes):
        console.note(f"note: {note}")
    data = {"testbeds": [asdict(state) for state in found]}
    console.show(lambda: data, lambda: "\n\n".join(map(testbed_table, found)) or "nothing is up")
    console.keep(lambda: data)
