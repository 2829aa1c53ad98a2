"""``placewright quickstart``: the main jobs on this machine, start to finish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli.console import Console
from placewright.cli.options import BatchOption, QuietOption

OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Reports and traces.")]
OnOption = Annotated[str, typer.Option("--on", metavar="CLUSTER", help="A preset or a file.")]
StepsOption = Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Measured steps.")]


def quickstart(
    on: OnOption = "edge-duo",
    out: OutOption = Path("quickstart"),
    steps: StepsOption = 10,
    batch: BatchOption = None,
    quiet: QuietOption = False,
) -> None:
    """Place, run, compare and report real models on this machine.

    A stream of samples through Inception-v3 beside the fastest board, AlexNet's training step,
    which fits on neither of the two boards alone, a small language model that both boards train
    together, each with its share of the batch, and a model of your own in five lines. Worker
    processes of this machine stand in for the boards. Ends with a table of what was measured.

    [bold]Example:[/bold]  placewright quickstart --on edge-duo --out demo
    """
    from placewright.cluster.files import load_cluster
    from placewright.deployment import demonstration
    from placewright.profiling.profile_warnings import ProfileWarning

    console = Console(quiet=quiet)
    cluster = load_cluster(on)
    print(cluster)
    outcomes = []
    with console.noted(ProfileWarning):
        for outcome in demonstration.demonstrate(
            cluster, out, jobs=demonstration.JOBS, steps=steps, batch=batch, monitor=console
        ):
            print(f"\n{outcome.title}\n{outcome.text}")
            for path in outcome.files:
                console.kept(path)
            outcomes.append(outcome)
    print(f"\n{demonstration.outcome_table(outcomes)}")
    for outcome in outcomes:
        if outcome.check is not None:
            outcome.check.demand()
