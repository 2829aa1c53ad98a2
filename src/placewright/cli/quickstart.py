"""``placewright quickstart``: the main job on this machine, start to finish."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli.answer import note_compiling
from placewright.cli.console import Console
from placewright.cli.options import BatchOption, QuietOption

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster
    from placewright.planning.result import Measurement, Result

OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Reports and traces.")]
OnOption = Annotated[str, typer.Option("--on", metavar="CLUSTER", help="A preset or a file.")]
StepsOption = Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Measured steps.")]

JOBS = (("zoo:inception_v3", False), ("zoo:resnet50", True))
"""What is placed: a model and whether the whole training step is."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One job's answer and what was measured."""

    title: str
    result: Result
    measured: Measurement


def quickstart(
    on: OnOption = "edge-duo",
    out: OutOption = Path("quickstart"),
    steps: StepsOption = 10,
    batch: BatchOption = None,
    quiet: QuietOption = False,
) -> None:
    """Capture, profile, plan, compare, run and report two real models on this machine.

    Places Inception-v3 inference and a ResNet-50 training step on two unlike boards, which
    worker processes of this machine stand in for; then runs the chosen plan and the best
    single device, and prints what was predicted beside what was measured.

    [bold]Example:[/bold]  placewright quickstart --on edge-duo --out demo
    """
    from placewright.cluster.files import load_cluster

    console = Console(quiet=quiet)
    cluster = load_cluster(on)
    out.mkdir(parents=True, exist_ok=True)
    print(cluster)
    outcomes = [
        _job(console, name, training, cluster, out, steps, batch) for name, training in JOBS
    ]
    print()
    for outcome in outcomes:
        print(_verdict(outcome))
    for outcome in outcomes:
        if outcome.measured.check is not None:
            outcome.measured.check.demand()


def _job(
    console: Console,
    name: str,
    training: bool,
    cluster: Cluster,
    out: Path,
    steps: int,
    batch: int | None,
) -> Outcome:
    """One model from its source to its report."""
    from placewright.capturing.model import capture
    from placewright.capturing.source import load_model
    from placewright.capturing.state import initial_state
    from placewright.operators.run import best_single, running
    from placewright.planning.result_text import compare_table
    from placewright.planning.solving import compare
    from placewright.profiling.build import profile
    from placewright.profiling.profile_warnings import ProfileWarning

    title = f"{name} {'training step' if training else 'inference'}"
    with console.noted(ProfileWarning), console.meter(title) as meter:
        meter.step("building the model")
        source = load_model(name, batch=batch, training=training)
        meter.step("capturing")
        graph = capture(
            source.model,
            source.inputs,
            training=training,
            loss_fn=source.loss_fn,
            targets=source.targets,
            name=source.name,
        )
        state = initial_state(source, graph.program)
        meter.step("profiling: executing the step and timing every operator")
        problem = profile(graph, cluster, state=state)
    console.show(dict, lambda: f"\n{title}\n{graph}")
    with console.meter(f"{title}: planning") as meter:
        result = compare(problem, progress=meter)
    note_compiling(console, result)
    console.show(dict, lambda: compare_table(result))
    single = best_single(problem)
    with (
        console.meter(f"{title}: running") as meter,
        running(graph, cluster, state) as runner,
    ):
        measured = runner.measure(result, beside=single, steps=steps, check=source, progress=meter)
    stem = source.name + ("-training" if training else "")
    console.kept(result.report(out / f"{stem}.html", measured, graph))
    console.kept(result.trace(out / f"{stem}-trace.json.gz", measured))
    console.kept(result.save(out / f"{stem}-plan.json"))
    print(f"plan by {result.planner}\n{measured}")
    return Outcome(title, result, measured)


def _verdict(outcome: Outcome) -> str:
    """One honest sentence on the speed-up."""
    from placewright.planning.result_text import speed_up_text
    from placewright.report.text import seconds

    measured = outcome.measured
    placed = len(set(outcome.result.plan.placement.tolist()))
    if measured.baseline is None:
        took = seconds(measured.measured_s)
        return f"{outcome.title}: fits on no single device; on {placed} it takes {took} (measured)."
    found, predicted = measured.speed_up, measured.predicted_speed_up
    why = ""
    if found is not None and predicted is not None and predicted > max(found.ratio, found.high):
        why = f" ({_why(outcome)})"
    return f"{outcome.title}: {speed_up_text(measured)}{why}."


def _why(outcome: Outcome) -> str:
    """What the measured step shows about a promise that did not come true."""
    trace, judged = outcome.measured.trace, outcome.result.judgement
    assert trace is not None
    on_devices = trace.track < trace.devices
    busy_s = float((trace.end_s - trace.start_s)[on_devices].sum())
    longer = busy_s / float(judged.busy_s.sum()) - 1.0
    if longer > 0.03:
        return f"devices were busy {longer:.0%} longer side by side than profiled alone"
    return "operators took what they should, waiting for each other took longer"
