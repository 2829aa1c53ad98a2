"""placewright samples run: files move, nodes train, peers beside; measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from placewright.cli.face import Face
from placewright.cli.given import judged_plan
from placewright.cli.options import (
    FormatOption,
    OutputOption,
    QuietOption,
    SeedOption,
    TimeLimitOption,
    VerboseOption,
)
from placewright.cli.samples.asked import EpochsOption, NodesFile, PlannerOption, RelayOption, load

OptionalPlan = Annotated[
    Path | None, typer.Argument(metavar="[PLAN]", help="A plan.json; planned first without one.")
]
PeersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="NAME",
        help="none, lb-bsp, proportional, fedavg; may be given several times; all without.",
    ),
]


def run(
    file: NodesFile,
    plan: OptionalPlan = None,
    planner: PlannerOption = "auto",
    peer: PeersOption = None,
    epochs: EpochsOption = None,
    relay: RelayOption = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Samples of a step.")] = 64,
    local_steps: Annotated[
        int, typer.Option("--local-steps", min=1, help="Steps between two exchanges.")
    ] = 1,
    compression: Annotated[
        Literal["none", "fp16", "top10"], typer.Option("--compression", help="Of gradients.")
    ] = "none",
    speed: Annotated[
        float, typer.Option("--speed", min=1e-3, help="How many times faster than the file says.")
    ] = 1.0,
    time_limit: TimeLimitOption = 60.0,
    seed: SeedOption = 0,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Carry a plan out on one process per node, with emulated speeds, beside its peers.

    [bold]Example[/bold]

    [cyan]placewright samples run nodes.yaml --epochs 3 --speed 5 --peer none[/cyan]
    """
    from placewright.report.samples_runs import runs_json, runs_table
    from placewright.samples._trainer import Recipe
    from placewright.samples.run import PEERS, known_peers
    from placewright.samples.run import run as carry_out
    from placewright.solve import solve

    face = Face(format, output, quiet, verbose)
    problem = load(file, "A", relay, epochs)
    peers = known_peers(peer or PEERS)
    if plan is not None:
        result = judged_plan(problem, plan)
    else:
        with face.meter(f"planning {problem.name}") as meter:
            result = solve(problem, planner, time_limit_s=time_limit, seed=seed, progress=meter)
    recipe = Recipe(
        epochs=problem.epochs,
        batch=batch,
        seed=seed,
        local_steps=local_steps,
        compression=compression,
    )
    with face.meter(f"running {problem.name}") as meter:
        runs = carry_out(
            problem, result.plan, recipe=recipe, peers=peers, speed=speed, progress=meter
        )
    face.show(lambda: runs_json(runs), lambda: runs_table(runs))
    face.keep(lambda: runs_json(runs))
