"""placewright operators run and export for models that other runtimes execute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli.answer import keep_pictures
from placewright.cli.console import Console
from placewright.cli.options import BatchOption, OnOption, PlanFile, Source, TrainingOption
from placewright.errors import UnsupportedError

if TYPE_CHECKING:
    from placewright.cli.operators.run import RunOptions
    from placewright.cli.sources import Loaded
    from placewright.planning.result import Result

LIMIT_S = 10.0
"""Seconds of planning where none are given."""

FolderOption = Annotated[
    Path,
    typer.Option("--folder", metavar="FOLDER", show_default=False, help="Where it is written."),
]


def run_model_file(console: Console, loaded: Loaded, options: RunOptions) -> None:
    """Run a plan, or one made in `LIMIT_S` where no time is given, beside the best device."""
    from placewright.deployment.tensorflow_models import TensorFlowMeasurement
    from placewright.operators.run import as_json, best_single
    from placewright.operators.views import run_table

    problem, result = loaded.problem, _plan(console, loaded, options)
    with console.meter(f"running {problem.name}") as meter:
        measured = loaded.file_workload().measure(
            result,
            beside=best_single(problem),
            steps=options.steps,
            seed=options.seed,
            check=options.check,
            emulate=options.emulate,
            progress=meter,
        )
    data, lines = as_json(measured, result), [run_table(result, measured)]
    if isinstance(measured, TensorFlowMeasurement):
        data["unplaced"] = measured.unplaced_json()
        lines.append(measured.unplaced_text())
    console.answer(lambda: data, lambda: "\n".join(lines))
    keep_pictures(
        console,
        result,
        report=options.report,
        trace=options.trace,
        graph=loaded.graph,
        measurement=measured,
    )
    if measured.check is not None:
        measured.check.demand()


def _plan(console: Console, loaded: Loaded, options: RunOptions) -> Result:
    from placewright.planning.fixed_plan import judged_plan
    from placewright.planning.solving import solve

    if options.plan is not None:
        return judged_plan(loaded.problem, options.plan)
    with console.meter(f"planning {loaded.problem.name}") as meter, loaded.measuring() as measure:
        return solve(
            loaded.problem,
            options.planner or "auto",
            time_limit_s=LIMIT_S if options.time_limit is None else options.time_limit,
            seed=options.seed,
            progress=meter,
            measure=measure,
        ).demand_finished()


def export(
    console: Console,
    source: Source,
    plan: PlanFile,
    folder: FolderOption,
    on: OnOption = None,
    batch: BatchOption = None,
    training: TrainingOption = False,
) -> None:
    """Write a plan in the model's own format, load what was written, and compare its outputs.

    An ONNX model becomes one sub-model per stretch of operators on a device, and a
    ``manifest.json`` by which plain ONNX Runtime runs them; an OpenVINO model an IR that holds the
    affinity of every operator. A TensorFlow model becomes a SavedModel with a device for every
    node, or a GraphDef if FOLDER ends in .pb.
    """
    from placewright.cli.sources import SourceOptions, load
    from placewright.deployment.model_files import is_model_file
    from placewright.planning.fixed_plan import judged_plan

    if not is_model_file(source):
        raise UnsupportedError(
            "only models of other runtimes are written back",
            where=source,
            hint="give a FILE.onnx, FILE.xml or GRAPH.pb; `operators plan -o` saves any plan",
        )
    loaded = load(SourceOptions(source, on, training, batch, method="analytic"), console)
    workload, result = loaded.file_workload(), judged_plan(loaded.problem, plan)
    files, check = workload.export(result, folder)
    data = {"files": [str(path) for path in files], "check": check.as_json()}
    lines = [f"wrote {files[0]} and {len(files) - 1} files beside it", str(check)]
    console.answer(lambda: data, lambda: "\n".join(lines))
    check.demand()
