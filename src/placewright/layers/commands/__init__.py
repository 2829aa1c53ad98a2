"""The command line of wing 2: sources, and verbs on plans that a source brings along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.layers.commands.run import run
from placewright.layers.commands.source import Source, find_source
from placewright.planning.wing import Loaded

if TYPE_CHECKING:
    from placewright.cli.console import Console
    from placewright.layers.plan import LayerPlan

SourceName = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="A model (zoo:NAME, package.module:factory or FILE.py:factory, with --on), a problem "
        "file, strategy:FILE or piper:FILE[?devices=K&memory=16GiB].",
    ),
]
PlanArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[PLAN]", show_default=False, help="A plan file; strategy: has its own."
    ),
]
MOST_SAMPLES = 100_000

BatchOption = Annotated[
    int | None,
    typer.Option("--batch", min=1, max=MOST_SAMPLES, metavar="N", help="Samples of a step."),
]

OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="CLUSTER", help="Workers of a model: a file or a preset."),
]
ExactOption = Annotated[
    bool,
    typer.Option(
        "--exact/--approximate",
        help="Of a model: refuse dropout and batch norm on parts of the batch, or accept them.",
    ),
]


def load(
    console: Console,
    source: SourceName,
    on: OnOption = None,
    batch: BatchOption = None,
    exact: ExactOption = True,
) -> Loaded:
    """The problem of a source."""
    return Loaded(find_source(source, console, on, batch, exact=exact).problem)


def simulate(
    console: Console,
    source: SourceName,
    plan: PlanArgument = None,
    on: OnOption = None,
    batch: BatchOption = None,
    exact: ExactOption = True,
    report: Path | None = None,
    trace: Path | None = None,
) -> None:
    """Simulate a step under a plan: time, memory of every worker, timeline.

    Exit 3 if the plan of a file does not fit.
    """
    from placewright.planning.fixed_plan import judged_plan

    found = find_source(source, console, on, batch, exact=exact)
    chosen = _chosen_plan(found, plan, source, batch)
    if plan is None:
        _show_simulated(console, found)
        if report is None and trace is None:
            return
    result = judged_plan(found.problem, chosen)
    if plan is not None:
        console.show(result.as_json, lambda: repr(result))
        if console.output is not None:
            console.kept(result.save(console.output))
    if report is not None:
        console.kept(result.report(report))
    if trace is not None:
        console.kept(result.trace(trace))


def explain(
    console: Console,
    source: SourceName,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[PLAN] NAME",
            show_default=False,
            help="A plan file (strategy: has its own plan), and a layer or a worker.",
        ),
    ],
    on: OnOption = None,
    batch: BatchOption = None,
    exact: ExactOption = True,
) -> None:
    """Print why a layer or a worker is where it is, and what moving it would change."""
    from placewright.planning.fixed_plan import judged_plan

    *plans, name = names
    if len(plans) > 1:
        raise typer.BadParameter(f"one NAME at a time (got {len(plans)})")
    found = find_source(source, console, on, batch, exact=exact)
    chosen = _chosen_plan(found, Path(plans[0]) if plans else None, source, batch)
    explanation = judged_plan(found.problem, chosen).explain(name)
    console.answer(explanation.as_json, lambda: str(explanation))


def _chosen_plan(
    found: Source, plan: Path | None, source: str, batch: int | None
) -> LayerPlan | Path:
    """The plan file, or the plan that came with the problem."""
    from placewright.errors import InputError

    if plan is not None:
        return plan
    if found.plan is None:
        raise InputError("needs a plan", where=source, hint="name a plan file after the source")
    if batch is not None:
        hint = "a measured plan has its own batch; leave --batch out or name a plan file"
        raise InputError("--batch needs a plan file", where=source, hint=hint)
    return found.plan


def _show_simulated(console: Console, found: Source) -> None:
    """A plan that came with its problem: what is predicted, whether it fits or not."""
    from placewright.layers.files import plan_json
    from placewright.layers.judge import judge
    from placewright.report.text import seconds, size

    assert found.plan is not None
    judged = judge(found.problem, found.plan)
    peak = judged.peak_memory_bytes

    def data() -> dict[str, object]:
        head = {"problem": found.problem.name, "step_s": judged.value, "peak_memory_bytes": peak}
        return head | {"fits": judged.feasible, "plan": plan_json(judged)}

    def text() -> str:
        memory = "unknown" if peak is None else size(peak)
        return f"{found.problem.name}: step {seconds(judged.value)}, peak memory {memory}"

    console.show(data, text)
    console.keep(data)


verbs: dict[str, Callable[..., None]] = {"simulate": simulate, "explain": explain, "run": run}
examples = {
    "plan": [
        "zoo:bert --on server-4gpu --batch 16 -o plan.json",
        "problem.json --report plan.html",
        "piper:bert.json?devices=512 -f json",
    ],
    "compare": ["problem.json --planner dp --planner pso", "zoo:gpt2 --on edge-duo --approximate"],
    "simulate": ["problem.json plan.json", "strategy:measured.json -f json"],
    "run": ["zoo:gpt2 --on edge-duo --batch 8 --approximate --steps 6"],
    "explain": ["problem.json plan.json block.7", "strategy:measured.json block.7"],
}
