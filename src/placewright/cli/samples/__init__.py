"""placewright samples: wing 3, training samples -> edge nodes."""

from __future__ import annotations

import typer

from placewright.cli.samples.compare import compare
from placewright.cli.samples.generate import generate
from placewright.cli.samples.plan import plan
from placewright.cli.samples.run import run
from placewright.cli.samples.simulate import simulate

app = typer.Typer(
    help="Wing 3: which training samples move to which edge node.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for _verb in (plan, compare, simulate, run, generate):
    app.command(_verb.__name__)(_verb)
