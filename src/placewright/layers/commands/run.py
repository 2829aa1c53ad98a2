"""placewright layers run: train a model by a plan on real workers, and measure it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from placewright.cli.console import Console

ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", show_default=False, help="zoo:NAME or package.module:factory."),
]


def run(
    console: Console,
    model: ModelName,
    on: Annotated[
        str | None, typer.Option("--on", metavar="CLUSTER", help="A file or a preset.")
    ] = None,
    engine: Annotated[
        Literal["local", "testbed", "torchrun", "ray"],
        typer.Option("--engine", help="Who starts the workers."),
    ] = "local",
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, metavar="N", help="Samples of a step.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Measured.")] = 10,
    check: Annotated[
        bool, typer.Option("--check", help="Compare loss and gradients with one process.")
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact/--approximate",
            help="Refuse dropout and batch norm on parts of the batch, or accept them.",
        ),
    ] = True,
    planner: Annotated[str, typer.Option("--planner", metavar="NAME")] = "auto",
    time_limit: Annotated[float, typer.Option("--time-limit", min=0.0)] = 20.0,
    seed: int = 0,
) -> None:
    """Measure the layers on the workers, plan, train; beside the fastest worker alone.

    Prints predicted and measured step times, the speed-up over the fastest worker and over data
    parallelism with equal batches, and the sum of speeds that no plan can exceed.
    """
    from placewright.capturing.source import load_model
    from placewright.cluster.cluster import Cluster
    from placewright.cluster.files import load_cluster
    from placewright.layers.files import plan_json
    from placewright.layers.placed_training import place_training
    from placewright.runtime.engines.torchrun_agent import served_torchrun

    if served_torchrun(engine):
        return
    source = load_model(model, batch, training=True, seed=seed)
    cluster = Cluster.detect() if on is None else load_cluster(on)
    with place_training(
        source,
        cluster=cluster,
        engine=engine,
        planner=planner,
        time_limit_s=time_limit,
        exact=exact,
        seed=seed,
    ) as placed:
        for note in placed.notes:
            console.note(note)
        measured = placed.run(steps, check=check)
        result = placed.result
    data = measured.as_json() | {
        "planner": result.planner,
        "plan": plan_json(result.judgement),
        "notes": list(placed.notes),
    }
    console.show(lambda: data, lambda: f"{result!r}\n{measured!r}")
    console.keep(lambda: data)
    measured.demand()
