"""placewright pbqp solve: the PBQP engine by itself, on the contest's files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli.answer import note_compiling
from placewright.cli.command import console_command
from placewright.cli.console import Console
from placewright.cli.options import (
    SeedOption,
    TimeLimitOption,
)

if TYPE_CHECKING:
    from placewright.solvers.memory_pbqp import MemoryPbqp
    from placewright.solvers.memory_search import MemoryPbqpSolution

PREFIX = "iopddl:"

SOLVING = 0.98
"""Share of the time limit for solving, from the beginning on; the rest is for the answer."""

app = typer.Typer(
    help="The PBQP engine: one option per node, costs of nodes and edges, memory over time.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Instance = Annotated[
    str,
    typer.Argument(metavar="SOURCE", show_default=False, help="iopddl:FILE.json or .json.gz."),
]


@app.callback()
def _verbs() -> None:
    """Keep `solve` a verb of its own, although it is the only one."""


def solve(
    console: Console,
    source: Instance,
    time_limit: TimeLimitOption = 60.0,
    seed: SeedOption = 0,
) -> None:
    """The cheapest choice that fits in memory at every moment, with a lower bound.

    The time limit includes reading and the answer. Ctrl-C gives the best choice so far.

    [bold]Example[/bold]

    [cyan]placewright pbqp solve iopddl:problem.json.gz --time-limit 60 -f json[/cyan]
    """
    began_s = time.perf_counter()
    from placewright.solvers.iopddl import read_iopddl
    from placewright.solvers.memory_search import solve_pbqp_memory

    problem = read_iopddl(_path(source))
    with console.meter(f"solving {problem.name}") as meter:
        found = solve_pbqp_memory(
            problem, deadline_s=began_s + SOLVING * time_limit, seed=seed, progress=meter
        )
    _must_fit(problem, found)
    if found.interrupted:
        console.note("interrupted: this is the best choice so far")
    if found.note:
        console.note(f"note: {found.note}")
    note_compiling(console, found.compile_s)
    console.detail(f"{found.core} of {problem.n} nodes were left after reductions")
    data = _document(problem, found, seed, time.perf_counter() - began_s)
    console.answer(lambda: data, lambda: _table(data))


def _path(source: str) -> str:
    from placewright.errors import UnsupportedError

    if not source.startswith(PREFIX):
        raise UnsupportedError(
            "a PBQP is given with its format named", where=source, hint=f"try {PREFIX}{source}"
        )
    return source.removeprefix(PREFIX)


def _must_fit(problem: MemoryPbqp, found: MemoryPbqpSolution) -> None:
    from placewright.errors import InfeasibleError

    if found.value == float("inf"):
        over = found.peak - problem.limit
        miss = f"the nearest miss uses {found.peak} at moment {found.moment}, {over} above"
        forbidden = "the nearest miss has forbidden entries"
        raise InfeasibleError(
            "no choice that fits was found",
            where=problem.name,
            by=f"{miss} the limit {problem.limit}" if over > 0 else forbidden,
            hint="raise usage_limit or --time-limit",
        )


def _document(
    problem: MemoryPbqp, found: MemoryPbqpSolution, seed: int, runtime_s: float
) -> dict[str, Any]:
    from placewright.planning.result import relative_gap

    status = "OPTIMAL" if found.proved else "INTERRUPTED" if found.interrupted else "FEASIBLE"
    return {
        "problem": problem.name,
        "problem_hash": problem.hash(),
        "value": _whole(found.value),
        "lower_bound": _whole(found.lower_bound),
        "gap": relative_gap(found.value, found.lower_bound),
        "status": status,
        "runtime_s": runtime_s,
        "compile_s": found.compile_s,
        "seed": seed,
        "peak_usage": found.peak,
        "peak_moment": found.moment,
        "usage_limit": problem.limit,
        "nodes": problem.n,
        "nodes_after_reduction": found.core,
        "note": found.note,
        "choices": found.choice.tolist(),
    }


def _whole(value: float) -> float | int:
    """Whole numbers without a point: costs are counted, not measured."""
    return int(value) if value.is_integer() else value


def _table(data: dict[str, Any]) -> str:
    from placewright.report.text import percent, plain_table

    cells = {key: str(value) for key, value in data.items() if key != "choices"}
    cells["gap"] = percent(data["gap"])
    cells["runtime_s"] = f"{data['runtime_s']:.2f}"
    return str(plain_table(("", ""), list(cells.items()), "  "))


app.command("solve")(console_command(solve))
