"""The options that several verbs share, those of pipelines among them, described once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from placewright.errors import InputError, UnsupportedError
from placewright.io.output import output_file

if TYPE_CHECKING:
    from placewright.operators.pipeline import Pipeline
    from placewright.operators.problem import OperatorProblem


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

OptionalPlan = Annotated[
    Path | None, typer.Argument(metavar="[PLAN]", help="A plan.json; planned first without one.")
]
EngineOption = Annotated[
    Literal["local", "testbed", "torchrun", "ray"],
    typer.Option(
        "--engine",
        help="Who starts the workers: this process; this process, on nodes of a testbed (root; "
        "see `placewright testbed`); torchrun; Ray.",
    ),
]
CheckOption = Annotated[
    bool,
    typer.Option("--check", help="Compare with plain eager PyTorch; exit code 1 if it differs."),
]
HostOption = Annotated[str, typer.Option("--host", help="Others than loopback need a token.")]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one.")]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="Answer requests for this host too, besides loopback and --host; several times.",
    ),
]


DIFFMAXIMA = "diffmaxima"
_PANEL = "Pipelines (throughput)"

ReplicationOption = Annotated[
    bool,
    typer.Option(
        "--replication",
        help="A stage may be copied to several devices that are alike.",
        rich_help_panel=_PANEL,
    ),
]
BySpeedOption = Annotated[
    bool,
    typer.Option(
        "--by-speed",
        help="With --replication, over links: devices of a stage may differ, and each takes a "
        "share of the samples by its speed. `operators run` executes them.",
        rich_help_panel=_PANEL,
    ),
]
SyncOption = Annotated[
    str | None,
    typer.Option(
        "--sync-bandwidth",
        metavar="RATE",
        help="Copies average what they learn over links this fast, such as 25Gbps; "
        "without it nothing is learned.",
        rich_help_panel=_PANEL,
    ),
]
ClustersOption = Annotated[
    int | None,
    typer.Option(
        "--clusters",
        min=1,
        metavar="N",
        help="Accelerators around host memory are in N clusters, in input order.",
        rich_help_panel=_PANEL,
    ),
]
SPEEDUP = 10.0

SpeedupOption = Annotated[
    float | None,
    typer.Option(
        "--cluster-speedup",
        min=1.0,
        metavar="X",
        help="What stays in a cluster moves X times as fast as through host memory; "
        f"{SPEEDUP:g} by default.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The options; what is not given leaves the problem as it is."""

    replication: bool = False
    sync_bandwidth: str | None = None
    clusters: int | None = None
    speedup: float | None = None
    by_speed: bool = False

    def replace(self, problem: OperatorProblem, objective: str | None) -> OperatorProblem:
        """The problem with these options.

        Raises
        ------
        InputError
            An option without the one that it belongs to, or more clusters than accelerators.
        UnsupportedError
            Clusters around links, or shares by speed around host memory.
        """
        changes: dict[str, object] = {}
        self._refuse_unfit(objective)
        if objective == DIFFMAXIMA:
            changes["diffmaxima"] = True
        if self.replication:
            changes |= {"replication": True, "sync_seconds_per_byte": self._sync_s()}
        if self.by_speed:
            changes |= {"by_speed": _over_links(problem)}
        if self.clusters is not None:
            changes |= _clusters(problem, self.clusters, self.speedup or SPEEDUP)
        if not changes:
            return problem
        pipeline: Pipeline = replace(problem.pipeline, **changes)  # type: ignore[arg-type]
        return problem.replace(objective="throughput", pipeline=pipeline)

    def _refuse_unfit(self, objective: str | None) -> None:
        """Options that would be ignored."""
        if self.sync_bandwidth is not None and not self.replication:
            raise InputError("--sync-bandwidth is for copies", hint="add --replication")
        if self.by_speed and not self.replication:
            raise InputError("--by-speed is for copies", hint="add --replication")
        if self.by_speed and objective == DIFFMAXIMA:
            raise InputError(
                "--by-speed is for the largest load",
                by=f"got --objective {DIFFMAXIMA}",
                hint="give --objective throughput",
            )
        if self.speedup is not None and self.clusters is None:
            raise InputError("--cluster-speedup is for clusters", hint="add --clusters N")
        pipelined = self.replication or self.clusters is not None
        if pipelined and objective == "latency":
            raise InputError(
                "--replication and --clusters are for throughput",
                by="got --objective latency",
                hint="leave --objective out, or give throughput or diffmaxima",
            )

    def _sync_s(self) -> float:
        """Seconds per byte."""
        if self.sync_bandwidth is None:
            return 0.0
        from placewright.io.units import BANDWIDTH, parse

        rate = parse(self.sync_bandwidth, BANDWIDTH, where="--sync-bandwidth")
        if rate == 0:
            raise InputError("a bandwidth must be above zero", where="--sync-bandwidth")
        return 1.0 / rate


def _over_links(problem: OperatorProblem) -> bool:
    from placewright.operators.problem import Communication

    if problem.communication is Communication.STAR:
        raise UnsupportedError(
            "--by-speed is for devices with links between them",
            where=problem.name,
            hint="around host memory, copies are on devices that are alike: leave it out",
        )
    return True


def _clusters(problem: OperatorProblem, count: int, speedup: float) -> dict[str, object]:
    """Accelerators in stretches of equal length; CPUs in none."""
    from placewright.operators.problem import Communication

    if problem.communication is not Communication.STAR:
        raise UnsupportedError(
            "--clusters is for accelerators around host memory",
            where=problem.name,
            hint="over links, the speeds in the cluster file apply",
        )
    rates = problem.host_seconds_per_byte.tolist()
    accelerators = [d for d, rate in enumerate(rates) if rate > 0]
    if count > len(accelerators):
        raise InputError(
            "there are fewer accelerators than clusters",
            where=problem.name,
            by=f"{len(accelerators)} and {count}",
        )
    cluster = [-1] * problem.m
    for at, d in enumerate(accelerators):
        cluster[d] = at * count // len(accelerators)
    return {
        "cluster": tuple(cluster),
        "cluster_seconds_per_byte": tuple(rate / speedup for rate in rates),
    }
