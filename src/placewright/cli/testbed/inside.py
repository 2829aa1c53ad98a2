"""placewright testbed exec: a command as a process of one device."""

from __future__ import annotations

from typing import Annotated

import typer

from placewright.cli.testbed.found import ClusterArgument, find


def inside(
    cluster: ClusterArgument,
    device: Annotated[str, typer.Argument(metavar="DEVICE", show_default=False)],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", show_default=False)],
) -> None:
    """Run a command as a process of one device.

    [bold]Example[/bold]

    [cyan]placewright testbed exec cluster.yaml board-b -- python train.py[/cyan]
    """
    import os

    from placewright.errors import InputError

    find(cluster).enter(device)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise InputError(f"cannot be started: {error.strerror}", where=command[0]) from None
