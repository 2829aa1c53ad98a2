"""Place a TensorFlow model: costs, measured steps beside the unplaced graph, writing it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.capturing.tensorflow.model import TensorFlowModel, cpus_of
from placewright.cluster.cluster import Link
from placewright.cluster.devices import analytic_seconds, cpu_cores
from placewright.errors import InputError, UnsupportedError
from placewright.measurement import (
    Baseline,
    Check,
    Difference,
    Measurement,
    Role,
    SpeedUp,
    Tolerance,
    in_turns,
    speed_up,
)
from placewright.operators.exactness import half_of_the_digits
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.planning.contract import Progress, silent
from placewright.planning.result import Result
from placewright.profiling.model_files import HANDOVER_BANDWIDTH
from placewright.profiling.profiler import operator_problem
from placewright.report.text import seconds as text_of_seconds

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster, Device
    from placewright.numerics.arrays import FloatArray, IntArray
    from placewright.operators.problem import OperatorProblem

REPEATS = 7
"""Traced steps of a profile."""

CHECKED_STEPS = 3

SAME = Tolerance(reason="the same kernels on the CPUs of one machine: every bit must be equal")
FUSED = ("Conv", "DepthwiseConv")
"""Beginnings of the names of operators that oneDNN computes with a neighbour on their device."""

Placement = Mapping[str, str]


def profile_tensorflow(
    model: TensorFlowModel, cluster: Cluster, *, method: str = "auto"
) -> OperatorProblem:
    """The problem of placing a step on a cluster.

    `method`: ``analytic`` computes from FLOPs and bytes. All others take the medians of
    TensorFlow's own trace of every kernel for CPUs, scaled to a step without trace, with as many
    threads as the device has cores (at most those that are here) and one operator at a time,
    divided by the device's ``speed``; devices of other kinds are computed. The time of handing a
    tensor from one logical CPU to another is measured, too.
    Raises `UnsupportedError`: no device has a kernel for an operator, or the graph's variables have
    no values.
    """
    supported = model.supported(cluster)
    known: dict[int, FloatArray] = {}
    columns = [_seconds(model, device, method, known) for device in cluster.devices]
    compute_s = np.where(supported, np.stack(columns, axis=1), np.inf)
    delivering = cluster if method == "analytic" else _handing_over(model, cluster)
    return operator_problem(model.graph, delivering, compute_s)


def _handing_over(model: TensorFlowModel, cluster: Cluster) -> Cluster:
    """Between CPUs of one node that no link joins TensorFlow hands over a reference."""
    cpus = {device.name for device in cluster.devices if device.kind == "cpu"}
    local = [link for link in cluster.local_links() if {link.source, link.target} <= cpus]
    if not local:
        return cluster
    seconds = float(model.process.order("handover"))
    handed = [Link(x.source, x.target, HANDOVER_BANDWIDTH, seconds) for x in local]
    return replace(cluster, links=(*cluster.links, *handed))


def _seconds(
    model: TensorFlowModel, device: Device, method: str, known: dict[int, FloatArray]
) -> FloatArray:
    """Seconds of every operator on one device."""
    computed = analytic_seconds(model.graph.operators, device)
    if method == "analytic" or device.kind != "cpu":
        return computed
    threads = min(device.cores, cpu_cores())
    if threads not in known:
        found = model.process.order("profile", threads=threads, repeats=REPEATS)
        names = model.graph.operator_names
        known[threads] = np.array([found.get(name, np.nan) for name in names])
    measured = known[threads] / device.speed
    return np.where(np.isnan(measured), computed, measured)


@dataclass(frozen=True, slots=True, eq=False)
class TensorFlowWorkload:
    """A step of TensorFlow, the cluster that it is placed on, and the problem of that."""

    model: TensorFlowModel
    cluster: Cluster
    problem: OperatorProblem

    @property
    def engine(self) -> str:
        """TensorFlow, and what its devices are."""
        cpus = cpus_of(self.cluster)
        gpus = len(self.cluster.devices) - sum(d.kind == "cpu" for d in self.cluster.devices)
        parts = [f"{cpus} logical CPU{'s' * (cpus != 1)} that share {cpu_cores()} threads"]
        return f"{self.model.runtime}: {', '.join(parts + ([f'{gpus} GPUs'] if gpus else []))}"

    def placement(self, plan: OperatorPlan) -> dict[str, str]:
        """TensorFlow's device of every operator."""
        return self.model.placement(self.cluster, plan.placement.tolist())

    def step_seconds(self, plan: OperatorPlan | None, steps: int) -> list[float]:
        """Seconds of steps under a plan, or of the unplaced graph; its session stays open.

        Raises `WorkerError`: TensorFlow cannot run it.
        """
        placed = {} if plan is None else self.placement(plan)
        found = self.model.process.order(
            "run", key=_key(placed), placement=placed, cpus=cpus_of(self.cluster), steps=steps
        )
        return [float(seconds) for seconds in found]

    def _steps(self, plan: OperatorPlan | None, warmup: int, steps: int) -> list[float]:
        return self.step_seconds(plan, warmup + steps)[warmup:]

    @contextmanager
    def opened(self, placement: IntArray) -> Iterator[Callable[[int], list[float]]]:
        """Take a placement; executes so many steps and returns their seconds."""
        plan = OperatorPlan(placement)
        try:
            yield lambda steps: self.step_seconds(plan, steps)
        finally:
            self.forget()

    def forget(self) -> None:
        """Close the sessions of all placements, which hold a copy of the weights each."""
        self.model.process.order("drop")

    def measure(
        self,
        result: Result,
        *,
        beside: Result | None = None,
        steps: int = 10,
        warmup: int = 2,
        seed: int = 0,
        check: bool = False,
        emulate: bool = True,
        progress: Progress = silent,
    ) -> TensorFlowMeasurement:
        """Run a plan, the unplaced graph and another plan in turns.

        Raises `InputError`: the plan is for another graph, or the cluster has devices that are not
        here.
        Raises `WorkerError`: TensorFlow cannot run the placement.

        Parameters
        ----------
        beside
            `best_single(result.problem)` for `Measurement.speed_up`.
        seed
            Not used: inputs and initial values are those of the captured step.
        check
            Compare outputs and variables with those of the unplaced graph over three steps.
        emulate
            Not used: TensorFlow cannot be slowed device by device, so nothing is emulated.
        """
        _same_graph(result.problem, self.model)
        checked = self.check(result.plan) if check else None
        alike = beside is not None and _alike(beside, result)
        plans = [result.plan, None, *([] if beside is None or alike else [beside.plan])]
        runs = [partial(self._steps, plan) for plan in plans]
        times = in_turns(runs, steps, warmup, result.value, progress)
        baseline = None
        if beside is not None:
            rival = None
            if not alike:
                rival = Measurement.of_rounds(times[2], beside.value, self.engine)
            baseline = Baseline(beside.planner.removeprefix(SINGLE), rival)
        self.forget()
        own = TensorFlowMeasurement.of_rounds(times[0], result.value, self.engine)
        unplaced = tuple(map(tuple, times[1]))
        return replace(own, check=checked, baseline=baseline, unplaced=unplaced)

    def check(self, plan: OperatorPlan, steps: int = CHECKED_STEPS) -> Check:
        """Outputs and variables of the placed step beside those of the unplaced graph."""
        tolerance = self._tolerance(plan)
        steps = min(steps, tolerance.steps or steps)
        found = self.model.process.order(
            "check", placement=self.placement(plan), cpus=cpus_of(self.cluster), steps=steps
        )
        return _checked(found, tolerance, self.model.runtime)

    def export(self, result: Result, target: str | Path) -> tuple[list[Path], Check]:
        """Write the placed step: a GraphDef if `target` ends in ``.pb``, else a SavedModel.

        Returns
        -------
        What was written; loaded again, its outputs beside those of the unplaced graph.
        """
        _same_graph(result.problem, self.model)
        found = self.model.write(self.cluster, result.plan.placement.tolist(), target)
        return [Path(target)], _checked(found, self._tolerance(result.plan), self.model.runtime)

    def _tolerance(self, plan: OperatorPlan) -> Tolerance:
        graph = self.model.graph
        devices = set(plan.placement.tolist())
        gpus = any(self.cluster.devices[k].kind != "cpu" for k in devices)
        kinds = (operator.kind.removeprefix("tensorflow.") for operator in graph.operators)
        fuses = len(devices) > 1 and any(kind.startswith(FUSED) for kind in kinds)
        if not gpus and not fuses:
            return SAME
        reason = "oneDNN fuses convolutions with neighbours that are on the same device"
        return Tolerance(
            relative=half_of_the_digits(graph, gpus=gpus),
            update=2.0 * self.model.lr,
            reason="GPUs have kernels of their own" if gpus else reason,
            steps=1 if self.model.lr else None,
        )


@dataclass(frozen=True, slots=True, eq=False)
class TensorFlowMeasurement(Measurement):
    """A measured plan, and the unplaced graph that ran in turns with it.

    `unplaced`: seconds of every step of the unplaced graph, by round.
    """

    unplaced: tuple[tuple[float, ...], ...] = ()

    @property
    def unplaced_s(self) -> float:
        """Median step of the unplaced graph."""
        return median(seconds for block in self.unplaced for seconds in block)

    @property
    def unplaced_speed_up(self) -> SpeedUp:
        """Of the plan over the unplaced graph."""
        return speed_up(self.by_round(), self.unplaced)

    def unplaced_json(self) -> dict[str, Any]:
        """What `operators run -f json` has as ``unplaced``."""
        return {
            "measured_s": self.unplaced_s,
            "step_s": [seconds for block in self.unplaced for seconds in block],
            "speed_up": self.unplaced_speed_up.as_json(),
        }

    def unplaced_text(self) -> str:
        """One line for people."""
        found = self.unplaced_speed_up
        interval = (
            "" if found.rounds < 2 else f", 95 % interval {found.low:.2f} to {found.high:.2f}"
        )
        return (
            f"unplaced graph: measured {text_of_seconds(self.unplaced_s)}; the plan is "
            f"{found.ratio:.2f} times as fast{interval}"
        )


def _key(placement: Placement) -> str:
    return "|".join(f"{name}@{device}" for name, device in placement.items())


def _same_graph(problem: OperatorProblem, model: TensorFlowModel) -> None:
    if problem.operator_names != model.graph.operator_names:
        raise InputError(
            "the plan is for another graph",
            where=f"{problem.name} and {model.source}",
            by=f"{problem.n} and {len(model.graph.operators)} operators",
            hint="plan again from the model that you run",
        )


def _alike(result: Result, other: Result) -> bool:
    return bool((result.plan.placement == other.plan.placement).all())


def _checked(found: Iterable[Sequence[Any]], tolerance: Tolerance, runtime: str) -> Check:
    """A check of differences: step, role, tensor, difference, largest magnitude."""
    every = []
    for step, role, tensor, apart, largest in found:
        kind: Role = "output" if role == "output" else "parameter"
        allowed = tolerance.absolute(kind, largest, step)
        every.append(Difference(step, kind, tensor, apart, allowed))
    if not every:
        raise UnsupportedError("has no outputs to compare", where=runtime)
    reference = f"the unplaced graph on {runtime}"
    return Check.of(every, tolerance, reference, ("output", "parameter"))
