"""Carry a plan out on worker processes, measure it, and hold it against eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.graph.graph import Graph
from placewright.io.arguments import Count, checked
from placewright.measurement.measurement import Baseline, Measurement
from placewright.operators.judge import judge
from placewright.operators.measuring import MeasuringRounds, load_plan
from placewright.operators.placement_summary import placement_summary
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Progress, silent
from placewright.planning.result import Result

if TYPE_CHECKING:
    from placewright.capturing.source import ModelSource
    from placewright.io.tensor_files import AnyTensor
    from placewright.measurement.check import Check
    from placewright.runtime.engines.engine import Engine
    from placewright.runtime.session import Session

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
        steps: int = 10,
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
        steps: int = CHECKED_STEPS,
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
    from placewright.errors import PlacewrightError
    from placewright.planning.solving import compare

    singles = [f"only:{name}" for name in problem.device_names]
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
