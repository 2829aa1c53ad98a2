"""The verbs of every wing, composed of generic code and of the options that the wing declares.

``plan``, ``compare``, ``simulate`` and ``explain`` are written once, in
`placewright.cli.generic_verbs`. A wing's command line adds the parameters of its `load` function to
each of them, and to verbs in its ``source_verbs`` if it has that; other verbs of its own declare
all their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli.command import console_command, source_command
from placewright.cli.console import Console
from placewright.cli.generic_verbs import compare, explain, plan, simulate

if TYPE_CHECKING:
    from placewright.planning.wing import CommandLine, Loaded, Wing

ProblemFile = Annotated[
    Path, typer.Argument(metavar="FILE", show_default=False, help="A problem file, YAML or JSON.")
]

EXAMPLES: Mapping[str, str] = {
    "plan": "FILE --report plan.html -o plan.json",
    "compare": "FILE --time-limit 10",
    "simulate": "FILE plan.json",
    "explain": "FILE plan.json NAME",
}
"""For wings that have none of their own."""


def wing_app(wing: Wing) -> typer.Typer:
    """The command group of a wing."""
    line = command_line(wing)
    app = typer.Typer(
        help=f"Plan {wing.title}.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    generic: list[Callable[..., None]] = [
        plan,
        compare,
        simulate,
        *([] if wing.explain is None else [explain]),
    ]
    own: Mapping[str, Callable[..., None]] = getattr(line, "source_verbs", {})
    for name, verb in {**{verb.__name__: verb for verb in generic}, **own}.items():
        if name in line.verbs:  # the wing's own takes its place
            continue
        examples = line.examples.get(name) or [EXAMPLES[name]]
        text = _help(verb, wing.name, name, examples)
        app.command(name)(source_command(verb, line.load, text))
    for name, verb in line.verbs.items():
        examples = line.examples.get(name, ())
        app.command(name)(console_command(verb, _help(verb, wing.name, name, examples)))
    return app


def command_line(wing: Wing) -> CommandLine:
    """The wing's own options and verbs, or a problem file as the only source."""
    from placewright.planning.wing import FileCommandLine, Loaded

    if wing.places_models:
        from placewright.cli import operators

        return operators
    if wing.command_line is not None:
        return wing.command_line()

    def load(console: Console, file: ProblemFile) -> Loaded:
        return Loaded(wing.files().read_problem(file))

    return FileCommandLine(load)


def _help(verb: Callable[..., None], wing: str, name: str, examples: Sequence[str]) -> str:
    """The verb's docstring and its examples."""
    lines = [f"[cyan]placewright {wing} {name} {example}[/cyan]" for example in examples]
    title = "Example" if len(lines) == 1 else "Examples"
    paragraphs = [" ".join(p.split()) for p in (verb.__doc__ or "").split("\n\n")]
    return "\n\n".join([*paragraphs, f"[bold]{title}[/bold]", *lines])
