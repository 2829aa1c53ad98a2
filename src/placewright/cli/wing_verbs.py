"""The verbs of every wing, composed of generic code and of the options that the wing declares.

``plan``, ``compare``, ``simulate`` and ``explain`` are written once. A wing's command line adds the
parameters of its `load` function to each of them, and to verbs in its ``source_verbs`` if it has
that; other verbs of its own declare all their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli.answer import print_result
from placewright.cli.command import console_command, source_command
from placewright.cli.console import Console
from placewright.cli.options import (
    PlanFile,
    PlannerOption,
    PlannersOption,
    ReportOption,
    SeedOption,
    TimeLimitOption,
    TraceOption,
)

if TYPE_CHECKING:
    from placewright.planning.wing import CommandLine, Loaded, Wing

PartName = Annotated[
    str,
    typer.Argument(metavar="NAME", show_default=False, help="A part of the plan, by its name."),
]
ProblemFile = Annotated[
    Path, typer.Argument(metavar="FILE", show_default=False, help="A problem file, YAML or JSON.")
]

Load = Callable[[], "Loaded"]


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
    from placewright.planning.wings import wing_of

    loaded = load()
    title, unit = f"planning {loaded.problem.name}", wing_of(loaded.problem).unit
    with console.meter(title, unit=unit) as meter, measuring(loaded) as measure:
        result = solve(
            loaded.problem,
            planner,
            time_limit_s=time_limit,
            seed=seed,
            progress=meter,
            measure=measure,
        )
    print_result(console, result, report=report, trace=trace, graph=loaded.graph)


def measuring(loaded: Any) -> AbstractContextManager[Any]:
    """What executes plans while planners learn; ``None`` where nothing can be executed."""
    opened = getattr(loaded, "measuring", nullcontext)
    found: AbstractContextManager[Any] = opened()
    return found


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
    from placewright.planning.wings import wing_of

    loaded = load()
    title, unit = f"comparing planners on {loaded.problem.name}", wing_of(loaded.problem).unit
    with console.meter(title, unit=unit) as meter, measuring(loaded) as measure:
        result = run_all(
            loaded.problem,
            planner or (),
            time_limit_s=time_limit,
            seed=seed,
            progress=meter,
            measure=measure,
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
