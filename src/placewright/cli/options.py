"""The options that several verbs share, described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from placewright.io.output import output_file

Format: TypeAlias = Literal["table", "json", "yaml"]

_FORMAT_HELP = "What stdout shows."
_OUTPUT_HELP = "Keep the document in FILE too."
_ON_HELP = "A cluster file or a preset's name; by default this machine."
_SOURCE_HELP = (
    "zoo:NAME, package.module:factory, FILE.py:factory, FILE.onnx, GRAPH.pb, graph.json, "
    "problem.json, or a published instance such as dag:FILE.json."
)

FormatOption = Annotated[Format, typer.Option("--format", "-f", help=_FORMAT_HELP)]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", callback=output_file, help=_OUTPUT_HELP),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, show_default=False, help="More notes; -vv: tracebacks."
    ),
]

Source = Annotated[str, typer.Argument(metavar="SOURCE", show_default=False, help=_SOURCE_HELP)]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="zoo:NAME, package.module:factory, FILE.py:factory, FILE.onnx, FILE.xml, "
        "openvino:MODEL or GRAPH.pb.",
    ),
]
PlanFile = Annotated[
    Path,
    typer.Argument(metavar="PLAN", show_default=False, help="A plan.json, as `plan -o` writes it."),
]
OnOption = Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help=_ON_HELP)]
TrainingOption = Annotated[
    bool, typer.Option("--training", help="The whole step: forward, loss, backward, optimizer.")
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="N", help="Samples per step.")
]
MicroBatchesOption = Annotated[
    int | None,
    typer.Option(
        "--micro-batches",
        min=1,
        metavar="K",
        help="With --training: cut the batch into K parts that overlap on the devices, and update "
        "once.",
    ),
]
PlannerOption = Annotated[
    str, typer.Option("--planner", metavar="NAME", help="`compare` lists them.")
]
PlannersOption = Annotated[
    list[str] | None,
    typer.Option("--planner", metavar="NAME", help="Only these; may be given several times."),
]
ObjectiveOption = Annotated[
    Literal["latency", "throughput", "diffmaxima"] | None,
    typer.Option(
        "--objective",
        help="What is minimised; by default latency. diffmaxima: the largest forward load plus "
        "the largest backward load of a pipeline.",
    ),
]
LinksOption = Annotated[
    Literal["contended", "free"] | None,
    typer.Option("--links", help="Do transfers on one channel wait for each other?"),
]
OverlapOption = Annotated[
    Literal["parallel", "serial"] | None,
    typer.Option("--overlap", help="Do devices and links work at the same time?"),
]
ContiguousOption = Annotated[
    bool, typer.Option("--contiguous", help="Each device holds one contiguous part (throughput).")
]
TimeLimitOption = Annotated[
    float, typer.Option("--time-limit", min=0.0, metavar="SECONDS", help="No search beyond it.")
]
BoundsOption = Annotated[
    bool, typer.Option("--bounds/--no-bounds", help="Say how much better a plan could be at most.")
]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, max=2**31 - 1, metavar="N", help="All randomness.")
]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="FILE", callback=output_file, help="Write a self-contained HTML page."
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        callback=output_file,
        help="Write a Perfetto/Chrome trace (.json.gz).",
    ),
]
OptionalPlannerOption = Annotated[
    str | None,
    typer.Option(
        "--planner", metavar="NAME", help="See `compare`; auto without it. Not with PLAN."
    ),
]
OptionalTimeLimitOption = Annotated[
    float | None,
    typer.Option(
        "--time-limit", min=0.0, metavar="SECONDS", help="No search beyond it. Not with PLAN."
    ),
]
