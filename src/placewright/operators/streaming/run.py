"""Execute a plan for a stream of samples, measure it, and compare it with eager PyTorch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import UnsupportedError
from placewright.graph.graph import Graph, Program
from placewright.measurement import Baseline, Check, Measurement, load_warnings, speed_up_text
from placewright.numerics.arrays import FloatArray
from placewright.operators import run as steps_run
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.operators.problem import Communication, OperatorProblem, Overlap
from placewright.operators.run import FEW_ROUNDS
from placewright.operators.streaming.prediction import (
    StreamPrediction,
    copied_devices,
    devices_of,
    leaders,
    predicted,
    stages_of,
)
from placewright.planning.contract import Progress, silent
from placewright.planning.result import Result
from placewright.report.text import plain_table, seconds
from placewright.report.trace import Trace

if TYPE_CHECKING:
    from placewright.capturing.source import ModelSource
    from placewright.cluster.cluster import Device
    from placewright.runtime.session import Session
    from placewright.runtime.stream import Delivered, SampleStream, StreamCut, Tensors


SHOWN_SAMPLES = 8
"""In the measured trace."""

COPIES_APART = 2
"""Windows between samples, by which the rates of copies are measured: each does several in them."""

CHECKED_BEYOND = 3
"""Samples that are compared with eager PyTorch, beyond those that are in flight at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamMeasurement:
    """Prediction and measurement of a stream.

    Attributes
    ----------
    measurement
        Its ``step_s`` are seconds per sample, each a mean over as many samples as are in flight;
        its ``predicted_s`` is the period of `prediction`, its ``baseline`` the stream of the best
        single device.
    latency_s
        Median from when a sample is given to the workers until it is done.
    limit
        No plan is faster than the best single device by more: the sum of the devices' speeds.
    """

    measurement: Measurement
    prediction: StreamPrediction
    latency_s: float
    beside: StreamPrediction | None = None
    beside_latency_s: float = math.nan
    limit: float = math.nan

    def as_json(self, result: Result) -> dict[str, Any]:
        """The object that ``operators run --objective throughput -f json`` prints."""
        found = steps_run.as_json(self.measurement, result)
        found |= _rates(self.prediction, self.measurement.measured_s, self.latency_s)
        found |= {"load_s": result.value, "samples": found.pop("steps")}
        found["sample_s"] = found.pop("step_s")
        single, baseline = found["baseline"], self.measurement.baseline
        if single is not None and baseline is not None:
            single["sample_s"] = single.pop("step_s")
            alone = self.beside or self.prediction
            latency_s = self.beside_latency_s if self.beside else self.latency_s
            single |= _rates(alone, single["measured_s"], latency_s)
        return found | {"speed_up_limit": self.limit if math.isfinite(self.limit) else None}

    def __repr__(self) -> str:
        return stream_table(self)


def _rates(predicted: StreamPrediction, measured_s: float, latency_s: float) -> dict[str, Any]:
    return {
        "throughput_per_s": 1.0 / measured_s,
        "predicted_throughput_per_s": 1.0 / predicted.period_s if predicted.period_s else None,
        "latency_s": latency_s,
        "predicted_latency_s": predicted.latency_s,
        "in_flight": predicted.window,
        "in_flight_limited_by_memory": predicted.limited_by_memory,
        "segments": len(predicted.segments.device),
    }


def stream_table(found: StreamMeasurement) -> str:
    """Predicted and measured throughput and latency, of the plan and of the best single device."""
    m = found.measurement
    rows = [_row("plan", found.prediction, m, found.latency_s)]
    if m.baseline is not None and m.baseline.measurement is not None and found.beside is not None:
        name = f"{m.baseline.name} alone"
        rows.append(_row(name, found.beside, m.baseline.measurement, found.beside_latency_s))
    header = ("", "predicted", "measured", "error", "latency", "measured", "in flight")
    lines = [
        f"{m.engine}; emulated: {m.emulated or 'nothing'}",
        plain_table(header, rows, " rrrrrr"),
        "" if m.baseline is None else speed_up_text(m),
        f"no plan is more than {found.limit:.2f} times as fast as the best single device: "
        "the sum of the devices' speeds"
        if math.isfinite(found.limit)
        else "",
        "fewer samples are in flight than would be fastest: no more fit in the memory"
        if found.prediction.limited_by_memory
        else "",
        *load_warnings(m),
        "" if m.check is None else str(m.check),
    ]
    return "\n".join(line for line in lines if line)


def _row(
    name: str, predicted: StreamPrediction, measured: Measurement, latency_s: float
) -> tuple[str, ...]:
    error = predicted.period_s / measured.measured_s - 1.0
    return (
        name,
        _rate(predicted.period_s),
        _rate(measured.measured_s),
        f"{1.0 / (1.0 + error) - 1.0:+.1%}",
        seconds(predicted.latency_s),
        seconds(latency_s),
        str(predicted.window),
    )


def _rate(period_s: float) -> str:
    return f"{1.0 / period_s:.3g}/s" if period_s else "-"


def cut_of(problem: OperatorProblem, plan: OperatorPlan, prediction: StreamPrediction) -> StreamCut:
    """The segments of a plan as the workers execute them."""
    from placewright.runtime.stream import StreamCut

    lengths = prediction.segments.lengths(problem.m)
    if plan.replica_of is not None:
        lengths = tuple(lengths[leader] for leader in leaders(plan).tolist())
    return StreamCut(
        tuple(plan.placement.tolist()),
        tuple(prediction.segments.order.tolist()),
        lengths,
        prediction.window,
        prediction.peak_bytes,
        stages_of(problem, plan),
    )


def refuse_what_cannot_stream(problem: OperatorProblem) -> None:
    """Raise for problems whose plans say nothing about a stream over links.

    Raises `UnsupportedError`: devices around host memory, one operator at a time, or passes that do
    not mix.
    """
    pipeline = problem.pipeline
    for unfit, what in (
        (problem.communication is Communication.STAR, "devices around host memory"),
        (problem.overlap is Overlap.SERIAL, "one operator or transfer at a time"),
        (pipeline.diffmaxima, "passes that do not mix"),
    ):
        if unfit:
            raise UnsupportedError(
                f"streams are not executed with {what}",
                where=problem.name,
                hint="plan it with `operators plan`; run it with --objective throughput alone",
            )


def refuse_training(graph: Graph) -> None:
    """Raise for training steps, each of which needs what the one before has learned.

    Raises `UnsupportedError`: the program is a training step.
    """
    if isinstance(graph.program, Program) and graph.program.training:
        raise UnsupportedError(
            "one training step cannot begin before the one before has ended",
            where=graph.name,
            hint="stream the model without --training, or run it with --objective latency",
        )


def single_device_limit(problem: OperatorProblem) -> float:
    """The most that any plan can gain over the best single device: the sum of the speeds.

    Work that is split perfectly takes 1 / sum of 1 / T(d), where T(d) is what device d takes for
    all of it; transfers and memory are left out.
    """
    alone_s = problem.compute_s.sum(axis=0)
    best = float(alone_s.min())
    return best * float((1.0 / alone_s).sum()) if 0 < best < math.inf else math.nan


@dataclass(slots=True)
class StreamRounds:
    """Streams of plans that are measured in turns on the same workers.

    `sample_s`: by plan and round, seconds per sample.
    """

    session: Session
    results: Sequence[Result]
    predictions: Sequence[StreamPrediction]
    seed: int = 0
    sample_s: list[list[list[float]]] = field(init=False)
    latency_s: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.sample_s = [[] for _ in self.results]
        self.latency_s = [[] for _ in self.results]

    def open(self, k: int, *, deliver: bool = False, watched: bool = False) -> SampleStream:
        """A stream of one plan."""
        from placewright.runtime.stream import SampleStream

        result, predicted = self.results[k], self.predictions[k]
        return SampleStream(
            self.session,
            cut_of(result.problem, result.plan, predicted),
            seed=self.seed,
            deliver=deliver,
            watched=watched,
            expected_s=predicted.period_s,
        )

    def measure(self, samples: int, progress: Progress, rounds: int = FEW_ROUNDS) -> Any:
        """Measure `samples` samples of every plan in blocks: a b, b a, a b.

        Returns
        -------
        What other processes did meanwhile.
        """
        from placewright.runtime.host import LoadMeter

        meter, began = LoadMeter(self.session), time.perf_counter()
        rounds = min(rounds, samples)
        forth = range(len(self.results))
        for turn in range(rounds):
            with meter.round():
                for k in forth if turn % 2 == 0 else reversed(forth):
                    self._block(k, -(-samples // rounds))
            progress(
                what=f"round {turn + 1} of {rounds}",
                value=float(np.median(list(chain(*self.sample_s[0])))),
                bound=self.predictions[0].period_s,
                elapsed_s=time.perf_counter() - began,
            )
        return meter.load()

    def _block(self, k: int, samples: int) -> None:
        """One plan's turn: its pipeline is filled first, and still full when the block ends."""
        window, processes = self.predictions[k].window, self.session.layout.processes
        stages = stages_of(self.results[k].problem, self.results[k].plan)
        samples = max(samples, COPIES_APART * window) if stages else samples
        first, last = window + 1, window + 1 + samples
        with self.open(k) as stream:
            delivered = list(stream.run([None] * (last + window)))
        workers = [[processes[copy.device] for copy in stage] for stage in stages]
        self.sample_s[k].append(per_sample_s(delivered[first : last + 1], window, workers))
        self.latency_s[k] += [d.latency_s for d in delivered[first:last]]

    def watched(self, k: int) -> Trace:
        """The measured trace of some samples of a full pipeline."""
        window = self.predictions[k].window
        with self.open(k, watched=True) as stream:
            for _ in stream.run([None] * (2 * window + SHOWN_SAMPLES)):
                pass
        return measured_trace(self.results[k].problem, self.session, stream, window)

    def measurement(self, k: int) -> Measurement:
        """Measurement of a plan over all rounds."""
        return Measurement(
            step_s=tuple(chain(*self.sample_s[k])),
            predicted_s=self.predictions[k].period_s,
            trace=None,
            engine=f"{self.session.engine.name}: torch.distributed/{self.session.layout}",
            emulated=self.session.emulated,
            rounds=tuple(map(len, self.sample_s[k])),
        )


def per_sample_s(
    delivered: Sequence[Delivered], window: int, stages: Sequence[Sequence[int]] = ()
) -> list[float]:
    """Seconds per sample between samples that are `window` apart, or the first and the last.

    Samples come in bursts; a mean over the window does not depend on them. Of several workers the
    one that took longest counts: each has a clock of its own.

    `stages`: where some have copies, their workers. The bursts of copies are no divisor of the
    window: between samples twice as far apart, the rates of a stage's workers add up.
    """
    done_s = np.array([d.done_s for d in delivered])
    apart = min(COPIES_APART * window if stages else window, len(done_s) - 1)
    if stages:
        parts = (done_s[k : k + apart + 1] for k in range(len(done_s) - apart))
        return [
            1.0 / min(sum(_rate_of(part[:, w]) for w in own) for own in stages) for part in parts
        ]
    means = (done_s[apart:] - done_s[:-apart]) / apart
    slowest = int(np.argmax(done_s[-1] - done_s[0]))
    return [float(s) for s in means[:, slowest]]


def _rate_of(done_s: FloatArray) -> float:
    """Samples per second of one worker, from when it was done with those that it had."""
    own = done_s[~np.isnan(done_s)]
    return (len(own) - 1) / float(own[-1] - own[0]) if len(own) > 1 else 0.0


def measured_trace(
    problem: OperatorProblem, session: Session, stream: SampleStream, first: int
) -> Trace:
    """Segments of some samples from `first` on; clocks of other machines start with theirs."""
    rows = []
    origins: dict[str, float] = {}
    for worker, spans in enumerate(stream.spans):
        kept = [s for s in spans if first <= s[2] < first + SHOWN_SAMPLES]
        boot = session.group.hosts[worker].boot
        origin = min((s[3] for s in kept), default=math.inf)
        origins[boot] = min(origins.get(boot, math.inf), origin)
        rows += [(boot, s) for s in kept]
    return Trace(
        tracks=(*problem.device_names, *problem.channel_names),
        devices=problem.m,
        labels=tuple(f"sample {n}" for n in range(SHOWN_SAMPLES)),
        track=np.array([s[0] for _, s in rows], dtype=np.int64),
        label=np.array([s[2] - first for _, s in rows], dtype=np.int64),
        start_s=np.array([s[3] - origins[boot] for boot, s in rows]),
        end_s=np.array([s[4] - origins[boot] for boot, s in rows]),
        title=f"{problem.name}, a stream of samples, measured",
    )


def measure_stream(
    session: Session,
    result: Result,
    *,
    beside: Result | None = None,
    samples: int = 30,
    seed: int = 0,
    check: ModelSource | None = None,
    progress: Progress = silent,
) -> StreamMeasurement:
    """Execute the stream of a plan, and that of another one `beside` it in turns.

    Raises `UnsupportedError`: see `refuse_what_cannot_stream`.
    Raises `WorkerError`: a worker died or raised.

    Parameters
    ----------
    samples
        Measured ones of each plan, after those that fill the pipeline.
    check
        The model to compare with: samples that differ, in flight at a time, against eager
        PyTorch one after the other.
    """
    refuse_what_cannot_stream(result.problem)
    refuse_training(session.graph)
    same = beside is not None and (beside.plan.placement == result.plan.placement).all()
    same = same and not copied_devices(result.plan)
    results = [result] if beside is None or same else [result, beside]
    predictions = [predicted(r.problem, r.plan) for r in results]
    rounds = StreamRounds(session, results, predictions, seed)
    checked = None if check is None else _checked(rounds, check, seed)
    load = rounds.measure(samples, progress)
    found = replace(rounds.measurement(0), trace=rounds.watched(0), check=checked, machine=load)
    if beside is not None:
        name = beside.planner.removeprefix(SINGLE)
        other = rounds.measurement(1) if len(results) > 1 else None
        found = replace(found, baseline=Baseline(name, other))
    two = len(results) > 1
    return StreamMeasurement(
        found,
        predictions[0],
        float(np.median(rounds.latency_s[0])),
        predictions[1] if two else None,
        float(np.median(rounds.latency_s[1])) if two else math.nan,
        single_device_limit(result.problem),
    )


def _checked(rounds: StreamRounds, source: ModelSource, seed: int) -> Check:
    """Samples that differ, streamed and eagerly one after the other."""
    count = rounds.predictions[0].window + CHECKED_BEYOND
    plan = rounds.results[0].plan
    used = [rounds.session.cluster.devices[d] for d in devices_of(plan)]

    def run(feeds: Iterable[Any]) -> list[Delivered]:
        with rounds.open(0, deliver=True) as stream:
            return list(stream.run(feeds))

    return check_stream(rounds.session.graph, source, run, count, seed=seed, devices=used)


def check_stream(
    graph: Graph,
    source: ModelSource,
    run: Callable[[Iterable[Tensors]], Sequence[Delivered]],
    samples: int,
    *,
    seed: int,
    devices: Sequence[Device],
) -> Check:
    """Run samples that differ, several at a time and eagerly one after the other.

    `run`: streams feeds.
    `devices`: that the placement uses.
    """
    from placewright.capturing.state import initial_state
    from placewright.operators.check import Comparison, varied

    program = graph.program
    assert isinstance(program, Program)
    variants = [varied(source.inputs, k) for k in range(samples)]
    names = [item.name for item in program.inputs if item.role == "input"]
    feeds = [initial_state(replace(source, inputs=v), program, names) for v in variants]
    delivered = run(feeds)
    comparison = Comparison.of(graph, source, seed=seed, devices=devices)
    for variant, found in zip(variants, delivered, strict=True):
        comparison.eager.feed(variant)
        comparison.step(found.outputs, None)
    return comparison.check(note=f"{samples} different samples, several in flight")
