"""Carry a plan out on worker processes, measure it, and hold it against eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.arrays import IntArray
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.graph.graph import Graph
from placewright.operators.judge import OperatorJudgement, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.planning import Progress, silent
from placewright.result import Measurement, Result
from placewright.trace import Trace

if TYPE_CHECKING:
    import torch

    from placewright.capture.source import ModelSource
    from placewright.checking import Check
    from placewright.execute.engines.engine import Engine
    from placewright.execute.session import Session
    from placewright.execute.step_record import StepRecord

CHECKED_STEPS = 3
WATCHED_STEPS = 3


def run(
    result: Result,
    graph: Graph,
    cluster: Cluster,
    state: Mapping[str, torch.Tensor],
    *,
    steps: int = 10,
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
        A real tensor for every program input (`placewright.capture.state.initial_state`).
    check
        The model to compare with: three steps from the same state and seed, outputs and
        (for training) every parameter and buffer, after every step. The answer is in
        `Measurement.check`, whose `demand` raises where it failed.
    progress
        Told the median step so far as `value` and the prediction as `lower_bound`.
    engine
        Who starts the workers; children of this process by default.

    Raises
    ------
    WorkerError
        A worker died or raised. No process is left behind, whatever happens.
    """
    with running(graph, cluster, state, engine) as runner:
        return runner.measure(
            result, steps=steps, warmup=warmup, seed=seed, check=check, progress=progress
        )


@contextmanager
def running(
    graph: Graph,
    cluster: Cluster,
    state: Mapping[str, torch.Tensor],
    engine: Engine | None = None,
) -> Iterator[Runner]:
    """Workers that stay up, so that several plans are measured side by side.

    Parameters
    ----------
    engine
        Who starts the workers; children of this process by default.
    """
    from placewright.execute.session import Session

    with Session(graph, cluster, state, engine) as session:
        yield Runner(session)


@dataclass(frozen=True, slots=True, eq=False)
class Runner:
    """A session that measures plans."""

    session: Session

    def measure(
        self,
        result: Result,
        *,
        steps: int = 10,
        warmup: int = 2,
        seed: int = 0,
        check: ModelSource | None = None,
        progress: Progress = silent,
    ) -> Measurement:
        """Execute a plan; see `run`."""
        _same_graph(result.problem, self.session.graph)
        order = execution_order(result.problem, result.judgement)
        self.session.load(result.plan.placement.tolist(), order, seed)
        checked = None if check is None else self.check(check, seed, _used(self.session, result))
        self.session.run(warmup if check is None else max(0, warmup - CHECKED_STEPS))
        times = self._timed(steps, result.value, progress)
        watched = self.session.run(WATCHED_STEPS, watched=True)
        typical = sorted(watched, key=lambda r: r.duration_s)[len(watched) // 2]
        return Measurement(
            step_s=tuple(times),
            predicted_s=result.value,
            trace=measured_trace(result.problem, typical),
            engine=f"{self.session.engine.name}: torch.distributed/{self.session.layout}",
            emulated=self.session.emulated,
            check=checked,
        )

    def _timed(self, steps: int, predicted_s: float, progress: Progress) -> list[float]:
        times: list[float] = []
        for _ in range(steps):
            times += [record.duration_s for record in self.session.run(1)]
            median = float(np.median(times))
            progress(
                what=f"step {len(times)} of {steps}",
                value=median,
                lower_bound=predicted_s,
                elapsed_s=sum(times),
            )
        return times

    def check(
        self,
        source: ModelSource,
        seed: int,
        devices: Sequence[Device] | None = None,
        steps: int = CHECKED_STEPS,
    ) -> Check:
        """Steps of what was loaded, beside eager steps from the same state and seed.

        Parameters
        ----------
        devices
            That the placement uses; all by default.
        """
        from placewright.operators.check import check_session

        used = self.session.cluster.devices if devices is None else devices
        return check_session(self.session, source, seed=seed, steps=steps, devices=used)


def _used(session: Session, result: Result) -> list[Device]:
    """Devices that a plan puts operators on."""
    devices = session.cluster.devices
    return [devices[k] for k in sorted(set(result.plan.placement.tolist()))]


def compare_with_eager(
    runner: Runner, problem: OperatorProblem, plan: OperatorPlan, source: ModelSource, seed: int = 0
) -> float:
    """Largest difference of any output, parameter or buffer after three steps."""
    order = execution_order(problem, judge(problem, plan))
    runner.session.load(plan.placement.tolist(), order, seed)
    return runner.check(source, seed).max_abs_error


def best_single(problem: OperatorProblem) -> Result | None:
    """The best single device that fits, by the judge; ``None`` if the model fits on none."""
    from placewright.errors import PlacewrightError
    from placewright.solve import compare

    singles = [f"only:{name}" for name in problem.device_names]
    try:
        return compare(problem, singles)
    except PlacewrightError:
        return None


def execution_order(problem: OperatorProblem, judgement: OperatorJudgement) -> list[int]:
    """Operators by predicted start, ties in topological order: what each worker follows."""
    position = np.empty(problem.n, dtype=np.int64)
    position[problem.topology.order] = np.arange(problem.n)
    order: IntArray = np.lexsort((position, judgement.op_start_s))
    return [int(i) for i in order]


def measured_trace(problem: OperatorProblem, record: StepRecord) -> Trace:
    """A step that really happened, in the judge's format."""
    lanes: list[int] = []
    labels: list[int] = []
    spans: list[tuple[float, float]] = []
    for device, log in enumerate(record.logs):
        times = np.asarray(log.spans_s).reshape(-1, 2) - record.origin_s
        lanes += [device] * len(times)
        labels += log.operators
        spans += [(float(a), float(b)) for a, b in times]
        for tag, target, start, end in log.transfers:
            lanes.append(problem.m + int(problem.channel[device, target]))
            labels.append(problem.n + tag)
            spans.append((start - record.origin_s, end - record.origin_s))
    array = np.array(spans, dtype=np.float64).reshape(-1, 2)
    return Trace(
        lanes=(*problem.device_names, *problem.channel_names),
        devices=problem.m,
        labels=(*problem.operator_names, *problem.tensor_names),
        lane=np.array(lanes, dtype=np.int64),
        label=np.array(labels, dtype=np.int64),
        start_s=array[:, 0].copy(),
        end_s=array[:, 1].copy(),
        title=f"{problem.name}, measured",
    )


def _same_graph(problem: OperatorProblem, graph: Graph) -> None:
    if problem.operator_names != graph.operator_names:
        raise InputError(
            "the plan is for another graph",
            where=f"{problem.name} and {graph.name}",
            by=f"{problem.n} and {len(graph.operators)} operators",
            hint="plan again from the model that you run",
        )


def as_json(measurement: Measurement, baseline: tuple[str, Measurement] | None) -> dict[str, Any]:
    """The object that ``operators run -f json`` prints."""
    single = None
    if baseline is not None:
        name, taken = baseline
        single = {"name": name, "predicted_s": taken.predicted_s, "measured_s": taken.measured_s}
    return {
        "predicted_s": measurement.predicted_s,
        "measured_s": measurement.measured_s,
        "steps": len(measurement.step_s),
        "step_s": list(measurement.step_s),
        "baseline": single,
        "engine": measurement.engine,
        "emulated": measurement.emulated,
        "max_abs_error": measurement.max_abs_error,
        "check": None if measurement.check is None else measurement.check.as_json(),
    }


__all__: Sequence[str] = (
    "Runner",
    "as_json",
    "best_single",
    "execution_order",
    "measured_trace",
    "run",
    "running",
)
