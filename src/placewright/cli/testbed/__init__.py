"""placewright testbed: a cluster made real on this machine."""

from __future__ import annotations

import typer

from placewright.cli.testbed.change import change
from placewright.cli.testbed.inside import inside
from placewright.cli.testbed.life import down, status, up
from placewright.cli.testbed.selftest import selftest

app = typer.Typer(
    help="A cluster made real on this Linux machine, as root: network namespaces, shaped links, "
    "CPU and memory limits.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("up")(up)
app.command("down")(down)
app.command("status")(status)
app.command("set")(change)
app.command("selftest")(selftest)
app.command("exec", context_settings={"ignore_unknown_options": True})(inside)
