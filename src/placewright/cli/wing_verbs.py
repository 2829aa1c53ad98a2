"""The verbs of every wing, composed of generic code and of the options that the wing declares.

``plan``, ``compare``, ``simulate`` and ``explain`` are written once. A wing's command line adds the
parameters of its `load` function to each of them, and verbs of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli.answer import print_result
from placewright.cli.console import Console
from placewright.cli.options import (
    FormatOption,
    OutputOption,
    PlanFile,
    PlannerOption,
    PlannersOption,
    QuietOption,
    ReportOption,
    SeedOption,
    TimeLimitOption,
    TraceOption,
    VerboseOption,
)

if TYPE_CHECKING:
    from placewright.planning.contract import CommandLine, Loaded, Wing

PartName = Annotated[
    str,
    typer.Argument(metavar="NAME", show_default=False, help="A part of the plan, by its name."),
]
ProblemFile = Annotated[
    Path, typer.Argument(metavar="FILE", show_default=False, help="A problem file, YAML or JSON.")
]

Load = Callable[[], "Loaded"]

SHARED: Mapping[str, Any] = {
    "planner": PlannerOption,
    "time_limit": TimeLimitOption,
    "seed": SeedOption,
    "report": ReportOption,
    "trace": TraceOption,
    "format": FormatOption,
    "output": OutputOption,
    "quiet": QuietOption,
    "verbose": VerboseOption,
}
"""Options that a wing's own verb gets by naming a parameter so."""


def plan(
    console: Console,
    load: Load,
    *,
    planner: PlannerOption = "auto",
    time_limit: TimeLimitOption = 60.0,
    seed: SeedOption = 0,
    report: ReportOption = None,
    trace: TraceOption = None,
) -> None:
    """Find the best plan in the time given, and a bound on what could be better.

    Ctrl-C stops the search and gives the best plan so far.
    """
    from placewright.planning.solving import solve

    loaded = load()
    with console.meter(f"planning {loaded.problem.name}") as meter:
        result = solve(loaded.problem, planner, time_limit_s=time_limit, seed=seed, progress=meter)
    print_result(console, result, report=report, trace=trace, graph=loaded.graph)


def compare(
    console: Console,
    load: Load,
    *,
    planner: PlannersOption = None,
    time_limit: TimeLimitOption = 60.0,
    seed: SeedOption = 0,
    report: ReportOption = None,
    trace: TraceOption = None,
) -> None:
    """Run every planner, value their plans by one judge, and print one table."""
    from placewright.planning.result_text import compare_table
    from placewright.planning.solving import compare as run_all

    loaded = load()
    with console.meter(f"comparing planners on {loaded.problem.name}") as meter:
        result = run_all(
            loaded.problem, planner or (), time_limit_s=time_limit, seed=seed, progress=meter
        )
    table = partial(compare_table, result)
    print_result(console, result, report=report, trace=trace, graph=loaded.graph, table=table)


def simulate(
    console: Console,
    load: Load,
    plan: PlanFile,
    *,
    report: ReportOption = None,
    trace: TraceOption = None,
) -> None:
    """Simulate a saved plan by the judge: value, timeline, limits. Exit 3 if it does not fit."""
    from placewright.planning.fixed_plan import judged_plan

    loaded = load()
    result = judged_plan(loaded.problem, plan)
    print_result(console, result, report=report, trace=trace, graph=loaded.graph)


def explain(console: Console, load: Load, plan: PlanFile, name: PartName) -> None:
    """Print why a part of a saved plan is where it is, and what moving it would change."""
    from placewright.planning.fixed_plan import judged_plan

    explanation = judged_plan(load().problem, plan).explain(name)
    console.show(explanation.as_json, lambda: str(explanation))
    console.keep(explanation.as_json)


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
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    generic: list[Callable[..., None]] = [
        plan,
        compare,
        simulate,
        *([] if wing.explain is None else [explain]),
    ]
    for verb in generic:
        name = verb.__name__
        examples = line.examples.get(name) or [EXAMPLES[name]]
        app.command(name)(_with_source(verb, line.load, _taught(verb, wing.name, name, examples)))
    for name, verb in line.verbs.items():
        examples = line.examples.get(name, ())
        app.command(name)(_with_console(verb, _taught(verb, wing.name, name, examples)))
    return app


def command_line(wing: Wing) -> CommandLine:
    """The wing's own options and verbs, or a problem file as the only source."""
    from placewright.planning.contract import FileCommandLine, Loaded

    if wing.name == "operators":  # captures and deploys models, which is done above the wing
        from placewright.cli import operators

        return operators
    if wing.command_line is not None:
        return wing.command_line()

    def load(console: Console, file: ProblemFile) -> Loaded:
        return Loaded(wing.files().read_problem(file))

    return FileCommandLine(load)


def _with_source(
    verb: Callable[..., None], load: Callable[..., Any], help_text: str
) -> Callable[..., None]:
    """`verb` as a command that also takes the parameters of `load` and the common ones."""
    source = _parameters(load)

    def command(**given: Any) -> None:
        console = _console(given)
        chosen = {p.name: given.pop(p.name) for p in source}
        verb(console, partial(load, console, **chosen), **given)

    return _command(command, [*source, *_parameters(verb, skip=2)], help_text)


def _with_console(verb: Callable[..., None], help_text: str) -> Callable[..., None]:
    """A wing's own verb as a command that also takes the common parameters."""

    def command(**given: Any) -> None:
        verb(_console(given), **given)

    return _command(command, _parameters(verb), help_text)


def _console(given: dict[str, Any]) -> Console:
    return Console(*(given.pop(name) for name in ("format", "output", "quiet", "verbose")))


def _command(
    command: Callable[..., None], parameters: Sequence[Parameter], help_text: str
) -> Callable[..., None]:
    """Give `command` the signature that typer reads: arguments before options."""
    common = {"format": "table", "output": None, "quiet": False, "verbose": 0}
    named = {p.name: p for p in parameters}
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=SHARED[name])
        for name, default in common.items()
    ]
    every = [*named.values(), *(p for p in added if p.name not in named)]
    for_typer = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in every]
    command.__signature__ = Signature(for_typer)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in for_typer}
    command.__doc__ = help_text
    return command


def _parameters(function: Callable[..., Any], skip: int = 1) -> list[Parameter]:
    """Those after the first `skip`, their annotations evaluated; `SHARED` ones by name."""
    found = list(signature(function).parameters.values())[skip:]
    return [p.replace(annotation=_annotation(function, p)) for p in found]


def _annotation(function: Callable[..., Any], parameter: Parameter) -> Any:
    written = parameter.annotation
    if isinstance(written, str):  # as `from __future__ import annotations` leaves it
        written = eval(written, function.__globals__)
    declared = hasattr(written, "__metadata__")
    return written if declared else SHARED.get(parameter.name, written)


def _taught(verb: Callable[..., None], wing: str, name: str, examples: Sequence[str]) -> str:
    """The verb's docstring and its examples."""
    lines = [f"[cyan]placewright {wing} {name} {example}[/cyan]" for example in examples]
    title = "Example" if len(lines) == 1 else "Examples"
    paragraphs = [" ".join(p.split()) for p in (verb.__doc__ or "").split("\n\n")]
    return "\n\n".join([*paragraphs, f"[bold]{title}[/bold]", *lines])
