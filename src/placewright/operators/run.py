"""Execute a plan on worker processes, measure it, and compare it with eager PyTorch.

Plans are measured in turns on the same workers: what the machine does meanwhile hits all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError, PlacewrightError
from placewright.graph.graph import Graph
from placewright.io.arguments import Count, checked
from placewright.measurement import Baseline, Check, MachineLoad, Measurement
from placewright.operators.judge import OperatorJudgement, judge
from placewright.operators.placement_summary import placement_summary
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.operators.problem import OperatorProblem, Overlap
from placewright.planning.contract import Progress, silent
from placewright.planning.result import Result
from placewright.report.trace import Trace

if TYPE_CHECKING:
    from placewright.capturing.source import ModelSource
    from placewright.io.tensor_files import AnyTensor
    from placewright.runtime.engines.engine import Engine
    from placewright.runtime.session import Session
    from placewright.runtime.step_record import StepRecord


CHECKED_STEPS = 3


@checked
def run(
    result: Result,
    graph: Graph,
    cluster: Cluster,
    state: Mapping[str, AnyTensor],
    *,
    beside: Result | None = None,
    steps: Count = 10,
    warmup: int = 2,
    seed: int = 0,
    check: ModelSource | None = None,
    progress: Progress = silent,
    engine: Engine | None = None,
) -> Measurement:
    """Execute a placed step `steps` times.

    Parameters
    ----------
    state
        A real tensor for every program input (`placewright.capturing.state.initial_state`).
    beside
        Another plan, measured in turns on the same workers, so that a machine which changes
        changes both: `best_single(result.problem)` for `Measurement.speed_up`.
    warmup
        Steps that do not count before the first block of each plan; one before later ones.
    check
        The model to compare with: three steps from the same state and seed, outputs and
        (for training) every parameter and buffer, after every step. The answer is in
        `Measurement.check`, whose `demand` raises where it failed.
    progress
        Gets the median step so far as `value` and the prediction as `bound`.
    engine
        Who starts the workers; children of this process by default.

    Raises
    ------
    WorkerError
        A worker died or raised. No process is left behind, whatever happens.
    """
    with running(graph, cluster, state, engine) as runner:
        return runner.measure(
            result,
            beside=beside,
            steps=steps,
            warmup=warmup,
            seed=seed,
            check=check,
            progress=progress,
        )


@checked
@contextmanager
def running(
    graph: Graph,
    cluster: Cluster,
    state: Mapping[str, AnyTensor],
    engine: Engine | None = None,
) -> Iterator[Runner]:
    """Workers that stay up, so that several plans are measured side by side.

    Parameters
    ----------
    engine
        Who starts the workers; children of this process by default.
    """
    from placewright.runtime.session import Session

    with Session(graph, cluster, state, engine) as session:
        yield Runner(session)


@checked
@dataclass(frozen=True, slots=True, eq=False)
class Runner:
    """A session that measures plans."""

    session: Session

    @checked
    def load(self, problem: OperatorProblem, plan: OperatorPlan, seed: int = 0) -> None:
        """Put a plan on the workers, from the initial state; ``session.run`` executes steps."""
        _same_graph(problem, self.session.graph)
        load_plan(self.session, problem, plan, judge(problem, plan), seed)

    @checked
    def measure(
        self,
        result: Result,
        *,
        beside: Result | None = None,
        steps: Count = 10,
        warmup: int = 2,
        seed: int = 0,
        check: ModelSource | None = None,
        progress: Progress = silent,
    ) -> Measurement:
        """Execute a plan, and another one `beside` it in turns; see `run`."""
        _same_graph(result.problem, self.session.graph)
        other = None if beside is None or _alike(result, beside) else beside
        turns = MeasuringRounds(self.session, [result, other] if other else [result], seed)
        checked = None
        if check is not None:
            turns.load(0)
            checked = self.check(check, seed, _used(self.session, result))
        load = turns.measure(steps, warmup, progress)
        baseline = None
        if beside is not None:
            name = beside.planner.removeprefix(SINGLE)
            baseline = Baseline(name, turns.measurement(1) if other else None)
        return replace(
            turns.measurement(0),
            trace=turns.watched(0),
            check=checked,
            baseline=baseline,
            machine=load,
        )

    @checked
    def check(
        self,
        source: ModelSource,
        seed: int,
        devices: Sequence[Device] | None = None,
        steps: Count = CHECKED_STEPS,
    ) -> Check:
        """Steps of what was loaded, beside eager steps from the same state and seed.

        `devices`: that the placement uses; all by default.
        """
        from placewright.operators.check import check_session

        used = self.session.cluster.devices if devices is None else devices
        return check_session(self.session, source, seed=seed, steps=steps, devices=used)


def _alike(result: Result, other: Result) -> bool:
    """Whether two plans put every operator on the same device."""
    same: bool = (result.plan.placement == other.plan.placement).all()
    return same


def _used(session: Session, result: Result) -> list[Device]:
    """Devices that a plan puts operators on."""
    devices = session.cluster.devices
    return [devices[k] for k in sorted(set(result.plan.placement.tolist()))]


@checked
def best_single(problem: OperatorProblem) -> Result | None:
    """The best single device that fits, by the judge; ``None`` if the model fits on none."""
    from placewright.planning.solving import compare

    singles = [f"{SINGLE}{name}" for name in problem.device_names]
    try:
        return compare(problem, singles)
    except PlacewrightError:
        return None


def _same_graph(problem: OperatorProblem, graph: Graph) -> None:
    if problem.operator_names != graph.operator_names:
        raise InputError(
            "the plan is for another graph",
            where=f"{problem.name} and {graph.name}",
            by=f"{problem.n} and {len(graph.operators)} operators",
            hint="plan again from the model that you run",
        )


def as_json(measurement: Measurement, result: Result | None = None) -> dict[str, Any]:
    """The object that ``operators run -f json`` prints; where the plan of `result` runs, too."""
    baseline, speed, machine = measurement.baseline, measurement.speed_up, measurement.machine
    single = None
    if baseline is not None:
        taken = baseline.measurement or measurement
        single = {
            "name": baseline.name,
            "predicted_s": taken.predicted_s,
            "measured_s": taken.measured_s,
            "step_s": list(taken.step_s),
        }
    return {
        "predicted_s": measurement.predicted_s,
        "measured_s": measurement.measured_s,
        "steps": len(measurement.step_s),
        "micro_batches": 1 if result is None else max(1, int(result.problem.micro_batch.max())),
        "step_s": list(measurement.step_s),
        "baseline": single,
        "speed_up": None if speed is None else speed.as_json(),
        "predicted_speed_up": measurement.predicted_speed_up,
        "machine": None if machine is None else machine.as_json(),
        "where": None
        if result is None
        else placement_summary(result.judgement, result.plan).as_json(),
        "engine": measurement.engine,
        "emulated": measurement.emulated,
        "max_abs_error": measurement.max_abs_error,
        "check": None if measurement.check is None else measurement.check.as_json(),
    }


ROUNDS, FEW_ROUNDS = 5, 3
"""Blocks of steps of each plan; the second where the first round loads for `SLOW_LOAD_S`."""

SLOW_LOAD_S = 5.0

WATCHED_STEPS = 3

SHORT_S = 0.05
"""A step of which some more cost nothing."""


@dataclass(slots=True)
class MeasuringRounds:
    """Plans that are measured in turns.

    Attributes
    ----------
    results
        The plans; the first one is what progress is about.
    step_s
        By plan and round, seconds of every measured step.
    loaded
        Which plan the workers have, -1 for none.
    """

    session: Session
    results: Sequence[Result]
    seed: int = 0
    step_s: list[list[list[float]]] = field(init=False)
    loaded: int = -1

    def __post_init__(self) -> None:
        self.step_s = [[] for _ in self.results]

    def load(self, k: int) -> None:
        """Put a plan on the workers, from the initial state, unless they have it."""
        if k != self.loaded:
            r = self.results[k]
            load_plan(self.session, r.problem, r.plan, r.judgement, self.seed, step_s=r.value)
            self.loaded = k

    def measure(self, steps: int, warmup: int, progress: Progress) -> MachineLoad | None:
        """Measure `steps` steps of every plan in blocks: a b, b a, a b ...

        A block begins with steps that do not count, `warmup` of them in the first round and where
        steps are short (their first ones find no memory and cold caches), one where another plan
        was loaded before.

        Returns
        -------
        MachineLoad | None
            What other processes did meanwhile; ``None`` where the system does not say.
        """
        from placewright.runtime.host import LoadMeter

        meter, began = LoadMeter(self.session), time.perf_counter()
        rounds, done, turn = min(steps, ROUNDS), 0, 0
        forth = range(len(self.results))
        while turn < rounds:
            size, loading_s = (steps - done) // (rounds - turn), 0.0
            with meter.round():
                for k in forth if turn % 2 == 0 else reversed(forth):
                    loading_s += self._block(k, size, self._cold_steps(k, warmup))
            done, turn = done + size, turn + 1
            if turn == 1 and loading_s > SLOW_LOAD_S:
                rounds = min(rounds, FEW_ROUNDS)
            progress(
                what=f"round {turn} of {rounds}: {done} of {steps} steps",
                value=float(np.median([s for times in self.step_s[0] for s in times])),
                bound=self.results[0].value,
                elapsed_s=time.perf_counter() - began,
            )
        return meter.load()

    def _cold_steps(self, k: int, warmup: int) -> int:
        """Number of warm-up steps of a block."""
        seen = [seconds for times in self.step_s[k] for seconds in times]
        return warmup if not seen or np.median(seen) < SHORT_S else min(1, warmup)

    def _block(self, k: int, steps: int, warmup: int) -> float:
        """One plan's turn; seconds until it was loaded."""
        start, known = time.perf_counter(), k == self.loaded and bool(self.step_s[k])
        self.load(k)
        loading_s = time.perf_counter() - start
        self.session.run(0 if known else warmup)
        times = [record.duration_s for _ in range(steps) for record in self.session.run(1)]
        self.step_s[k].append(times)
        return loading_s

    def watched(self, k: int) -> Trace:
        """One typical step of a plan, operator by operator."""
        self.load(k)
        self.session.run(1)
        records = self.session.run(WATCHED_STEPS, watched=True)
        typical = sorted(records, key=lambda r: r.duration_s)[len(records) // 2]
        return measured_trace(self.results[k].problem, typical)

    def measurement(self, k: int) -> Measurement:
        """Measurement of a plan over all rounds."""
        engine = f"{self.session.engine.name}: torch.distributed/{self.session.layout}"
        value, emulated = self.results[k].value, self.session.emulated
        return Measurement.of_rounds(self.step_s[k], value, engine, emulated)


def load_plan(
    session: Session,
    problem: OperatorProblem,
    plan: OperatorPlan,
    judgement: OperatorJudgement,
    seed: int = 0,
    *,
    step_s: float = math.nan,
) -> None:
    """Put a judged plan on the workers, from the initial state.

    `step_s`: expected seconds of a step, ``nan`` if unknown: workers that take many times as long
    are given up.
    """
    session.load(
        plan.placement.tolist(),
        execution_order(problem, judgement),
        seed,
        step_s=step_s,
        serial=problem.overlap is Overlap.SERIAL,
        peak_bytes=judgement.peak_bytes.tolist(),
    )


def execution_order(problem: OperatorProblem, judgement: OperatorJudgement) -> list[int]:
    """Operators by predicted start, ties in topological order: what each worker follows."""
    order: list[int] = np.lexsort((problem.topology.position, judgement.op_start_s)).tolist()
    return order


def measured_trace(problem: OperatorProblem, record: StepRecord) -> Trace:
    """A step that really happened, in the judge's format."""
    tracks: list[int] = []
    labels: list[int] = []
    spans: list[tuple[float, float]] = []
    for device, log in enumerate(record.logs):
        times = np.asarray(log.spans_s).reshape(-1, 2) - record.origin_s
        tracks += [device] * len(times)
        labels += log.operators
        spans += [(float(a), float(b)) for a, b in times]
        for tag, target, start, end in log.transfers:
            tracks.append(problem.m + int(problem.channel[device, target]))
            labels.append(problem.n + tag)
            spans.append((start - record.origin_s, end - record.origin_s))
    array = np.array(spans, dtype=np.float64).reshape(-1, 2)
    return Trace(
        tracks=(*problem.device_names, *problem.channel_names),
        devices=problem.m,
        labels=(*problem.operator_names, *problem.tensor_names),
        track=np.array(tracks, dtype=np.int64),
        label=np.array(labels, dtype=np.int64),
        start_s=array[:, 0].copy(),
        end_s=array[:, 1].copy(),
        title=f"{problem.name}, measured",
    )
