"""The command line of wing 4: what a problem is loaded from, and the verbs that only it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.io.output import output_file
from placewright.planning.wing import Loaded
from placewright.requests.serving.commands import evaluate, profile, refuse, run, serve

if TYPE_CHECKING:
    from placewright.cli.console import Console
    from placewright.requests.problem import RequestProblem
    from placewright.requests.service import Service

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="A file of servers and requests, YAML or JSON; or serving:FILE with --scenario.",
    ),
]
ScenarioOption = Annotated[
    str | None,
    typer.Option("--scenario", metavar="NAME", help="A scenario of serving:FILE."),
]
ArrivalSeedOption = Annotated[
    int | None,
    typer.Option(
        "--arrival-seed", min=0, metavar="N", help="Of arrivals and noise; else the file's, or 0."
    ),
]
RateOption = Annotated[
    float | None,
    typer.Option("--load", min=0.01, max=100.0, metavar="X", help="Speed up the arrivals."),
]
BoundOption = Annotated[
    bool,
    typer.Option(
        "--bound/--no-bound",
        help="Tighten the bound by prices, for minutes; Ctrl-C keeps the last.",
    ),
]
TargetOption = Annotated[
    float | None,
    typer.Option(
        "--target-success",
        min=0.0,
        max=1.0,
        metavar="SHARE",
        help="Find the load that these servers carry at this success rate, and what to add.",
    ),
]

RequestsOption = Annotated[
    Path | None,
    typer.Option(
        "--log",
        metavar="FILE",
        callback=output_file,
        help="Write every request, in place of what FILE holds: one JSON object a line.",
    ),
]

PREFIX = "serving:"
TIME_LIMIT_S = 60.0


def read(source: str, scenario: str | None, seed: int | None) -> RequestProblem:
    """The problem of a file or of a published scenario.

    Raises
    ------
    InputError
        The source is wrong, or lacks its scenario.
    """
    from placewright.errors import InputError
    from placewright.requests.files import read_problem
    from placewright.requests.readers import read_serving, serving_problem

    if source.startswith(PREFIX):
        path = source.removeprefix(PREFIX)
        if scenario is None:
            known = ", ".join(read_serving(path).scenarios)
            raise InputError("needs --scenario NAME", where=source, hint=f"one of: {known}")
        return serving_problem(path, scenario, seed or 0)
    if scenario is not None:
        hint = f"write {PREFIX}{source}"
        raise InputError("--scenario belongs to serving:FILE", where=source, hint=hint)
    return read_problem(source, seed)


def catalogue(source: str, scenario: str | None) -> Service | None:
    """What could be added to the problem of a source, by name; None where nothing is listed."""
    from placewright.requests.files import read_catalogue
    from placewright.requests.readers import serving_catalogue

    if scenario is not None:
        return serving_catalogue(source.removeprefix(PREFIX), scenario)
    return read_catalogue(source)


def load(
    console: Console,
    source: Source,
    scenario: ScenarioOption = None,
    arrival_seed: ArrivalSeedOption = None,
    load: RateOption = None,
) -> Loaded:
    """The problem of a source, its arrivals sped up where that was asked for."""
    return Loaded(_problem(source, scenario, arrival_seed, load))


def _problem(
    source: str, scenario: str | None, seed: int | None, load: float | None
) -> RequestProblem:
    from placewright.requests.capacity import at_load

    problem = read(source, scenario, seed)
    return problem if load is None else at_load(problem, load)


def simulate(
    console: Console,
    source: Source,
    plan: Path | None = None,
    scenario: ScenarioOption = None,
    arrival_seed: ArrivalSeedOption = None,
    planner: str | None = None,
    seed: int = 0,
    load: RateOption = None,
    log: RequestsOption = None,
    bound: BoundOption = False,
    report: Path | None = None,
    trace: Path | None = None,
) -> None:
    """Simulate a stream of requests under a policy: success, accuracy and latency.

    The seed is the policy's, and without --arrival-seed a published scenario's arrivals' too.
    """
    from placewright.planning.solving import judged_plan, refuse_beside_plan
    from placewright.requests.capacity import played

    refuse_beside_plan(plan, planner, None)
    if arrival_seed is None and source.startswith(PREFIX):
        arrival_seed = seed
    elif plan is not None:
        refuse({"--seed": seed}, "a plan that is given has its own seed", "give --arrival-seed")
    problem = _problem(source, scenario, arrival_seed, load)
    if plan is not None:
        result = judged_plan(problem, plan)
    else:
        with console.meter(f"simulating {problem.name}", unit="") as meter:
            result = played(problem, planner or "auto", seed, bound=bound, progress=meter)
    console.print_result(result, report=report, trace=trace)
    if log is not None:
        console.kept(result.judgement.write_log(log))


def plan(
    console: Console,
    source: Source,
    scenario: ScenarioOption = None,
    arrival_seed: ArrivalSeedOption = None,
    load: RateOption = None,
    planner: str = "auto",
    target_success: TargetOption = None,
    time_limit: float = TIME_LIMIT_S,
    seed: int = 0,
    report: Path | None = None,
    trace: Path | None = None,
) -> None:
    """Choose a policy and simulate it, with a bound on what could be better.

    With --target-success: the load that these servers carry, and which server or variant to add.
    """
    from placewright.planning.solving import solve
    from placewright.requests.capacity import capacity

    if target_success is not None:
        other = {"--time-limit": time_limit != TIME_LIMIT_S}
        refuse(other, "is not for --target-success", "leave one of the two out")
        for option, path in (("--report", report), ("--trace", trace)):
            if path is not None:  # the service gives the first one to every verb
                console.note(f"{option} is not for --target-success: {path} is not written")
    problem = _problem(source, scenario, arrival_seed, load)
    if target_success is not None:
        known = catalogue(source, scenario)
        with console.meter(f"finding the capacity of {problem.name}", unit=""):
            found = capacity(problem, target_success, planner, seed=seed, catalogue=known)
        console.show(found.as_json, lambda: str(found))
        console.keep(found.as_json)
        return
    with console.meter(f"planning {problem.name}", unit="") as meter:
        result = solve(problem, planner, time_limit_s=time_limit, seed=seed, progress=meter)
    console.print_result(result, report=report, trace=trace)


verbs: dict[str, Callable[..., None]] = {
    "plan": plan,
    "simulate": simulate,
    "serve": serve,
    "evaluate": evaluate,
    "profile": profile,
    "run": run,
}
examples = {
    "plan": ["requests.yaml --report plan.html", "requests.yaml --target-success 0.99"],
    "compare": ["requests.yaml", "requests.yaml --planner rolling --planner edf-fastest"],
    "simulate": ["serving:FILE --scenario NAME --planner auto --seed 0 --log log.jsonl -f json"],
    "explain": ["requests.yaml plan.json 17", "requests.yaml plan.json policy"],
    "serve": ["--port 8000", "--server big:1 --server small:0.3 --policy edf --log log.jsonl"],
    "evaluate": ["family.yaml rows.npz --update", "family.yaml rows.npz --answer scores --top 5"],
    "profile": ["http://127.0.0.1:8000 -o requests.yaml"],
    "run": ["--load 0.5 --load 1.5 --duration 20", "--arrivals times.csv -f json"],
}
