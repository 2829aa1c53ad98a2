"""The verbs that every wing has, with the options that the wing declares.

``plan``, ``compare``, ``simulate`` and ``explain`` are written once. A wing's command line adds the
parameters of its `load` function to each of them, and to verbs in its ``source_verbs`` if it has
that; other verbs of its own declare all their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options
from placewright.cli.console import Console, console_command, source_command
from placewright.errors import InputError

if TYPE_CHECKING:
    from placewright.planning.wing import CommandLine, Loaded, Wing

PartName = Annotated[
    str,
    typer.Argument(metavar="NAME", show_default=False, help="A part of the plan, by its name."),
]

Load = Callable[[], "Loaded"]


def plan(
    console: Console,
    load: Load,
    *,
    planner: options.PlannerOption = "auto",
    time_limit: options.TimeLimitOption = 60.0,
    seed: options.SeedOption = 0,
    bounds: options.BoundsOption = True,
    report: options.ReportOption = None,
    trace: options.TraceOption = None,
) -> None:
    """Find the best plan in the time given, and a bound on what could be better.

    Ctrl-C stops the search and gives the best plan so far.
    """
    from placewright.planning.solving import solve
    from placewright.planning.wings import unit_of

    loaded = load()
    title, unit = f"planning {loaded.problem.name}", unit_of(loaded.problem)
    with console.meter(title, unit=unit) as meter, measuring(loaded) as measure:
        result = solve(
            loaded.problem,
            planner,
            time_limit_s=time_limit,
            seed=seed,
            progress=meter,
            measure=measure,
            bounds=bounds,
        )
    console.print_result(result, report=report, trace=trace, graph=loaded.graph)


def measuring(loaded: Any) -> AbstractContextManager[Any]:
    """What executes plans while planners learn; ``None`` where nothing can be executed."""
    opened = getattr(loaded, "measuring", nullcontext)
    found: AbstractContextManager[Any] = opened()
    return found


def compare(
    console: Console,
    load: Load,
    *,
    planner: options.PlannersOption = None,
    time_limit: options.TimeLimitOption = 60.0,
    seed: options.SeedOption = 0,
    bounds: options.BoundsOption = True,
    report: options.ReportOption = None,
    trace: options.TraceOption = None,
) -> None:
    """Run every planner, value their plans by one judge, and print one table."""
    from placewright.planning.solving import compare as run_all
    from placewright.planning.views import compare_table
    from placewright.planning.wings import unit_of

    loaded = load()
    title, unit = f"comparing planners on {loaded.problem.name}", unit_of(loaded.problem)
    with console.meter(title, unit=unit) as meter, measuring(loaded) as measure:
        result = run_all(
            loaded.problem,
            planner or (),
            time_limit_s=time_limit,
            seed=seed,
            progress=meter,
            measure=measure,
            bounds=bounds,
        )
    table = partial(compare_table, result)
    console.print_result(result, report=report, trace=trace, graph=loaded.graph, table=table)


def simulate(
    console: Console,
    load: Load,
    plan: options.PlanFile,
    *,
    report: options.ReportOption = None,
    trace: options.TraceOption = None,
) -> None:
    """Simulate a saved plan by the judge: value, timeline, limits. Exit 3 if it does not fit."""
    from placewright.planning.solving import judged_plan

    loaded = load()
    result = judged_plan(loaded.problem, plan)
    console.print_result(result, report=report, trace=trace, graph=loaded.graph)


def explain(console: Console, load: Load, plan: options.PlanFile, name: PartName) -> None:
    """Print why a part of a saved plan is where it is, and what moving it would change."""
    from placewright.planning.solving import judged_plan

    explanation = judged_plan(load().problem, plan).explain(name)
    console.answer(explanation.as_json, lambda: str(explanation))


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


def wing_app(wing: Wing, line: CommandLine) -> typer.Typer:
    """The command group of a wing; `line`: its own options and verbs."""
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
        app.command(name)(_naming_other_kinds(wing.name, source_command(verb, line.load, text)))
    for name, verb in line.verbs.items():
        examples = line.examples.get(name, ())
        made = console_command(verb, _help(verb, wing.name, name, examples))
        app.command(name)(_naming_other_kinds(wing.name, made))
    return app


def _naming_other_kinds(wing: str, command: Callable[..., None]) -> Callable[..., None]:
    """`command`, whose errors say of a file of another kind what it is and which verb reads it."""

    @wraps(command)
    def run(**given: Any) -> None:
        try:
            command(**given)
        except InputError as error:
            for name, value in given.items():
                if isinstance(value, str | Path) and error.where.startswith(str(value) or "-"):
                    _refuse_other_kind(wing, name, Path(value))
            raise

    return run


def _refuse_other_kind(wing: str, parameter: str, path: Path) -> None:
    """Raise if a file is none that this wing reads for a parameter; it was refused already."""
    from placewright.files import document_kind
    from placewright.planning.wings import families

    try:
        kind = document_kind(path)
    except InputError:
        return
    known = {
        "cluster": ("a cluster", f"give it as --on {path}"),
        "graph": ("a graph", f"placewright operators plan {path} --on CLUSTER"),
    }
    for name, each in families():
        files, verb = each.files(), f"placewright {name}"
        known[files.problem_document.kind] = f"a problem of {name}", f"{verb} plan {path}"
        hint = f"{verb} simulate PROBLEM {path}"
        known[files.plan_document.kind] = f"a plan of {name}", hint
    expected = {"plan": f"a plan of {wing}", "on": "a cluster"}
    wanted = expected.get(parameter, f"a problem of {wing}")
    what, hint = known[kind]
    makes_problem = kind == "graph" and wing == "operators" and parameter not in expected
    if what != wanted and not makes_problem:
        raise InputError(f"is {what}, not {wanted}", where=str(path), hint=hint) from None


def of_files(wing: Wing) -> CommandLine:
    """The command line of a wing that has none: a problem file is the only source."""
    from placewright.planning.wing import FileCommandLine, Loaded

    def load(console: Console, file: ProblemFile) -> Loaded:
        return Loaded(wing.files().read_problem(file))

    return FileCommandLine(load)


def _help(verb: Callable[..., None], wing: str, name: str, examples: Sequence[str]) -> str:
    """The verb's docstring and its examples."""
    lines = [f"[cyan]placewright {wing} {name} {example}[/cyan]" for example in examples]
    title = "Example" if len(lines) == 1 else "Examples"
    paragraphs = [" ".join(p.split()) for p in (verb.__doc__ or "").split("\n\n")]
    return "\n\n".join([*paragraphs, f"[bold]{title}[/bold]", *lines])
