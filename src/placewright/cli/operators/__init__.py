"""placewright operators: wing 1, operators -> devices."""

from __future__ import annotations

import typer

from placewright.cli.operators.compare import compare
from placewright.cli.operators.explain import explain
from placewright.cli.operators.plan import plan
from placewright.cli.operators.run import run
from placewright.cli.operators.simulate import simulate

app = typer.Typer(
    help="Wing 1: which device runs which operator.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for _verb in (plan, compare, simulate, explain, run):
    app.command(_verb.__name__)(_verb)
