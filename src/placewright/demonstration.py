"""The main jobs on one cluster, start to finish: a stream, a training step, a user's own model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import InfeasibleError
from placewright.placed_model import PlacedModel, place
from placewright.report.text import plain_table, seconds, size

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster
    from placewright.planning.check import Check
    from placewright.planning.monitor import Monitor
    from placewright.planning.result import Measurement


@dataclass(frozen=True, slots=True)
class Job:
    """A model, and whether it is trained; if not, a stream of samples goes through it."""

    model: str
    training: bool = False


JOBS = (Job("zoo:inception_v3"), Job("zoo:alexnet", training=True))
"""AlexNet's training step needs 858 MiB: more than a board of ``edge-duo`` has, less than both."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job came to.

    Attributes
    ----------
    text
        The plan, and what was predicted and measured.
    single, found, gain
        As the cells of `outcome_table`.
    check
        The comparison with eager PyTorch, ``None`` where `differs` says it.
    files
        That were written.
    """

    title: str
    text: str
    single: str
    found: str
    gain: str
    differs: str
    check: Check | None = None
    files: tuple[Path, ...] = ()


def own_model(cluster: Cluster) -> float:
    """A user's own model in five lines; the largest difference from eager PyTorch."""
    import torch

    import placewright

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    x = torch.randn(32, 64)
    with placewright.place(model, x, cluster) as placed:
        outputs = placed(x)
    return float((outputs - model(x)).detach().abs().max())


def five_lines() -> str:
    """The lines of `own_model` between its imports and its answer."""
    lines = inspect.getsource(own_model).splitlines()
    first = next(k for k, line in enumerate(lines) if "import placewright" in line)
    shown = (line.removeprefix("    ") for line in lines[first:-1])
    return "\n".join(line for line in shown if line)


def demonstrate(
    cluster: Cluster,
    out: Path,
    *,
    jobs: Sequence[Job] = JOBS,
    steps: int = 10,
    batch: int | None = None,
    monitor: Monitor,
) -> Generator[Outcome, None, None]:
    """Do each job beside the best single device, then a user's own model; outcomes as they come.

    Parameters
    ----------
    out
        Folder of reports, traces and plans.
    steps
        Measured steps of a training job; a stream has three times as many samples.
    batch
        Samples per step, where the model takes them.

    Raises
    ------
    PlacewrightError
        As of `placewright.place` and of runs.
    """
    from placewright.capturing.source import load_model

    out.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        with monitor.meter(f"building {job.model}"):
            source = load_model(job.model, batch, job.training)
        settings: dict[str, Any] = {"training": True} if job.training else {}
        with place(
            source,
            None,
            cluster,
            objective="latency" if job.training else "throughput",
            progress=monitor,
            **settings,
        ) as placed:
            stem = out / (source.name + ("-training" if job.training else ""))
            do = _training if job.training else _stream
            yield do(placed, source.name, stem, steps)
    with monitor.meter("placing a model in five lines"):
        error = own_model(cluster)
    yield Outcome(
        "your own model, five lines", five_lines(), "", "called on its workers", "", f"{error:g}"
    )


def _stream(placed: PlacedModel, name: str, stem: Path, steps: int) -> Outcome:
    from placewright.report.perfetto import write_trace

    found = placed.measure_stream(3 * steps, check=True)
    measured, graph = found.measurement, placed.workload.graph
    predicted, trace = found.prediction.trace, Path(f"{stem}-trace.json.gz")
    files = (
        placed.result.report(f"{stem}.html", measured, graph),
        write_trace(trace, predicted=predicted, measured=measured.trace),
        placed.save(f"{stem}-plan.json"),
    )
    return _outcome(placed, f"{name}, stream", found, measured, _per_second, files)


def _training(placed: PlacedModel, name: str, stem: Path, steps: int) -> Outcome:
    measured = placed.run(steps, check=True)
    files = (
        placed.report(f"{stem}.html"),
        placed.trace(f"{stem}-trace.json.gz"),
        placed.save(f"{stem}-plan.json"),
    )
    return _outcome(placed, f"{name}, training step", measured, measured, seconds, files)


def _outcome(
    placed: PlacedModel,
    title: str,
    shown: Any,
    measured: Measurement,
    cell: Callable[[float], str],
    files: tuple[Path, ...],
) -> Outcome:
    baseline, speed = measured.baseline, measured.speed_up
    if baseline is None:
        single, gain = _nearest_miss(placed), "runs"
    else:
        single = f"{cell((baseline.measurement or measured).measured_s)} ({baseline.name})"
        gain = "" if speed is None else f"{speed.ratio:.2f}x ({speed.low:.2f} to {speed.high:.2f})"
    check = measured.check
    return Outcome(
        title,
        f"{placed.result}\n{shown}",
        single,
        cell(measured.measured_s),
        gain,
        "" if check is None else f"{check.max_abs_error:g}",
        check,
        files,
    )


def _per_second(period_s: float) -> str:
    return f"{1.0 / period_s:.3g}/s"


def _nearest_miss(placed: PlacedModel) -> str:
    """That the model fits on no single device, and what the largest one lacks."""
    from placewright.operators.judge import judge
    from placewright.operators.planners.trivial import Single
    from placewright.planning.contract import Context

    problem, lacks = placed.interference.alone, {}
    for name in problem.device_names:
        try:
            judgement = judge(problem, Single(name)(problem, Context()))
            lacks[name] = int(judgement.violation_bytes)
        except InfeasibleError:
            continue
    if not lacks:
        return "runs on none"
    name = min(lacks, key=lambda device: lacks[device])
    return f"fits on none ({name} lacks {size(lacks[name])})"


def outcome_table(outcomes: Sequence[Outcome]) -> str:
    """The fastest single device beside the plan, for every job."""
    header = ("", "fastest board", "all boards", "gain", "differs from eager")
    rows = [(o.title, o.single, o.found, o.gain, o.differs) for o in outcomes]
    return plain_table(header, rows, " rrrr")
