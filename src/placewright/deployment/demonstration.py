"""The main jobs on one cluster, start to finish.

A stream of samples, a training step too large for any device, training that shares its batch among
unequal devices, a language model that fits on none of them, and a user's own model.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from placewright.cluster.cluster import Cluster
from placewright.deployment.placed_model import PlacedModel
from placewright.deployment.placing import place
from placewright.errors import CheckError, InfeasibleError
from placewright.report.text import plain_table, seconds, size

if TYPE_CHECKING:
    from placewright.capturing.source import ModelSource
    from placewright.layers.run import LayerRun
    from placewright.measurement import Check, Measurement
    from placewright.planning.contract import Monitor


@dataclass(frozen=True, slots=True)
class ModelJob:
    """A model, and what is done with it.

    Attributes
    ----------
    training
        It is trained; if not, a stream of samples goes through it.
    batches
        ``batches(samples)`` gives batches without end: every layer gets a parallelisation strategy
        and every device its share of them, and the model is trained on some.
    """

    model: str
    training: bool = False
    batches: Callable[[int], Iterable[tuple[Any, Any]]] | None = None


def _text_batches(samples: int) -> Iterable[tuple[Any, Any]]:
    from placewright.capturing.zoo.language import text_batches

    return text_batches(samples)


SMALL_GPT = "placewright.capturing.zoo.language:small_gpt"

JOBS = (
    ModelJob("zoo:inception_v3"),
    ModelJob("zoo:alexnet", training=True),
    ModelJob(SMALL_GPT, training=True, batches=_text_batches),
)
"""AlexNet's training step needs 858 MiB: more than a board of ``edge-duo`` has, less than both."""

LAYERS_PLANNING_S = 3.0


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a job came to.

    Attributes
    ----------
    text
        The plan, and what was predicted and measured.
    single, found, gain
        As the cells of `outcome_table`.
    check
        The comparison with eager PyTorch, ``None`` where `differs` says it: its `demand` raises
        where the results are not the same.
    files
        That were written.
    """

    title: str
    text: str
    single: str
    found: str
    gain: str
    differs: str
    check: Check | LayerRun | None = None
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
    jobs: Sequence[ModelJob] = JOBS,
    steps: int = 10,
    batch: int | None = None,
    monitor: Monitor,
) -> Generator[JobOutcome, None, None]:
    """Do each job beside the best single device, then generate; outcomes as they come.

    Last comes a user's own model.

    Raises `PlacewrightError` as of `placewright.place` and of runs.

    Parameters
    ----------
    out
        Folder of reports, traces and plans.
    steps
        Measured steps of a training job; a stream has three times as many samples.
    batch
        Samples per step, where the model takes them.
    """
    from placewright.capturing.source import load_model

    out.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        with monitor.meter(f"building {job.model}"):
            source = load_model(job.model, batch, job.training)
        if job.batches is not None:
            yield _shared_batch(source, job.batches, cluster, out / f"{source.name}-layers", steps)
            continue
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
    if len(cluster.devices) > 1:
        with monitor.meter("generating with a language model"):
            generated = _language_model(cluster, out)
        yield generated
    with monitor.meter("placing a model in five lines"):
        error = own_model(cluster)
    yield JobOutcome(
        "your own model, five lines", five_lines(), "", "called on its workers", "", f"{error:g}"
    )


def _stream(placed: PlacedModel, name: str, stem: Path, steps: int) -> JobOutcome:
    from placewright.report.trace import write_trace

    found = placed.measure_stream(3 * steps, check=True)
    measured, graph = found.measurement, placed.workload.graph
    predicted, trace = found.prediction.trace, Path(f"{stem}-trace.json.gz")
    files = (
        placed.result.report(f"{stem}.html", measured, graph),
        write_trace(trace, predicted=predicted, measured=measured.trace),
        placed.save(f"{stem}-plan.json"),
    )
    return _outcome(placed, f"{name}, stream", found, measured, _per_second, files)


def _training(placed: PlacedModel, name: str, stem: Path, steps: int) -> JobOutcome:
    measured = placed.run(steps, check=True)
    files = (
        placed.report(f"{stem}.html"),
        placed.trace(f"{stem}-trace.json.gz"),
        placed.save(f"{stem}-plan.json"),
    )
    return _outcome(placed, f"{name}, training step", measured, measured, seconds, files)


def _shared_batch(
    source: ModelSource,
    batches: Callable[[int], Iterable[tuple[Any, Any]]],
    cluster: Cluster,
    stem: Path,
    steps: int,
) -> JobOutcome:
    """Train on all devices, each with its share of the batch, beside the fastest alone."""
    from placewright.layers.placed_training import train
    from placewright.layers.run import FASTEST, gain_text

    with train(source, cluster=cluster, time_limit_s=LAYERS_PLANNING_S) as placed:
        found = placed.run(steps, check=True)
        files = (placed.report(f"{stem}.html"), placed.save(f"{stem}-plan.json"))
        with placed.trainer(adapt=False) as trainer:
            drawn = islice(batches(placed.problem.global_batch), steps)
            losses = [trainer.step(*batch) for batch in drawn]
    gain, single = found.speed_up(FASTEST), "-"
    if gain is not None:
        single = f"{seconds(found.typical_s(FASTEST))} ({found.baseline_worker})"
    return JobOutcome(
        f"{source.name}, training on shares of the batch",
        f"{placed.result}\n{found}\nloss {losses[0]:.3f}, after {steps} steps {losses[-1]:.3f}",
        single,
        seconds(found.measured_s),
        "" if gain is None else f"{gain_text(gain)}, limit {found.limit:.2f}x",
        f"{found.max_abs_error:.1e}",
        found,
        files,
    )


PROMPT, NEW_TOKENS = "12 7 90", 32

LANGUAGE_MODEL: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "eos_token_id": None,
    "pad_token_id": 0,
}

OF_ONE_DEVICE = 0.7
"""Share of a language model that each device may hold: two are needed."""


def _language_model(cluster: Cluster, out: Path) -> JobOutcome:
    """A language model with random weights, on devices that are limited so that none holds it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    from placewright.layers.devicemap.device_map import device_map
    from placewright.layers.devicemap.text import generate_text

    quiet: Any = logging
    quiet.disable_progress_bar()
    torch.manual_seed(0)
    made, config = LlamaForCausalLM, LlamaConfig(**LANGUAGE_MODEL)
    length = len(PROMPT.split()) + NEW_TOKENS
    with TemporaryDirectory() as name:
        folder = Path(name) / "language-model"
        made(config).save_pretrained(folder)
        whole = device_map(folder, _unlimited(cluster), context=length).problem
        held = whole.need_bytes(0, whole.n)
        room = OF_ONE_DEVICE * held / whole.memory_share
        devices = tuple(replace(each, memory_bytes=room) for each in cluster.devices)
        small = Cluster(devices, cluster.links, cluster.name)
        # Blocks this small take less than the orders for them: no bandwidth tells how long.
        found = generate_text(
            folder, PROMPT, small, new_tokens=NEW_TOKENS, measure=True, check=True
        )
    if not found.equal:
        hint = "report it with what `placewright doctor` prints"
        raise CheckError("tokens differ from those of one process", where=cluster.name, hint=hint)
    return JobOutcome(
        f"a language model of random weights ({size(held)}), its layers on several devices",
        f"{found}",
        f"{size(held * (1 - OF_ONE_DEVICE))} too large",
        f"{1 / found.measured_token_s:.3g} tokens/s",
        "runs",
        "0",
        files=(found.planned.report(out / "language-model.html"),),
    )


def _unlimited(cluster: Cluster) -> Cluster:
    """The cluster with devices that hold anything."""
    devices = (replace(each, memory_bytes=math.inf) for each in cluster.devices)
    return Cluster(tuple(devices), cluster.links, cluster.name)


def _outcome(
    placed: PlacedModel,
    title: str,
    shown: Any,
    measured: Measurement,
    cell: Callable[[float], str],
    files: tuple[Path, ...],
) -> JobOutcome:
    baseline, speed = measured.baseline, measured.speed_up
    if baseline is None:
        single, gain = _nearest_miss(placed), "runs"
    else:
        single = f"{cell((baseline.measurement or measured).measured_s)} ({baseline.name})"
        gain = "" if speed is None else f"{speed.ratio:.2f}x ({speed.low:.2f} to {speed.high:.2f})"
    check = measured.check
    return JobOutcome(
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


def outcome_table(outcomes: Sequence[JobOutcome]) -> str:
    """The fastest single device beside the plan, for every job."""
    header = ("", "fastest board", "all boards", "gain", "differs from eager")
    rows = [(o.title, o.single, o.found, o.gain, o.differs) for o in outcomes]
    return plain_table(header, rows, " rrrr")
