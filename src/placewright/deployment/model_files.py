"""Place a model that another runtime executes: costs, steps beside a baseline, writing it back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.capturing.files.openvino_graph import SCHEME, capture_openvino
from placewright.capturing.tensorflow.model import TensorFlowModel, cpus_of, is_tensorflow
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.cluster.devices import analytic_seconds, cpu_cores
from placewright.errors import InputError, UnsupportedError
from placewright.io.output import naming
from placewright.io.stored import drafted_folder
from placewright.measurement import (
    Baseline,
    Check,
    Difference,
    Measurement,
    Role,
    SpeedUp,
    Tolerance,
    distance,
    in_turns,
    speed_up,
)
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.exactness import ROUNDOFF, coarsest, half_of_the_digits
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.operators.run import execution_order
from placewright.planning.contract import Progress, silent
from placewright.planning.result import Result
from placewright.profiling.model_files import HANDOVER_BANDWIDTH, profile_onnx, profile_openvino
from placewright.profiling.profiler import Method, ProfileTable, operator_problem
from placewright.report.text import seconds as text_of_seconds
from placewright.runtime.model_files import FilePlacement, PlacedFile

if TYPE_CHECKING:
    from placewright.capturing.files.model_file import Array, ModelFile
    from placewright.operators.problem import OperatorProblem


EXACT = Tolerance(
    relative=1e-5,
    reason="a runtime fuses other operators in parts of a model than in the whole",
)


ROUNDED = Tolerance(
    relative=0.05,
    reason="a device computes in 16 bits; the unplaced model in 32",
)
PRECISE = ("", "f32")

QUANTIZE = ("QuantizeLinear", "DequantizeLinear", "FakeQuantize")
"""Kinds of operators of models that compute in integers of 8 bits, and of 4 in their weights."""
QUANTIZED = Tolerance(
    relative=0.05,
    reason="a value between two integers of 8 bits may be rounded to either in parts of a model",
)


def is_model_file(source: str) -> bool:
    """Whether `source` is a model that another runtime than PyTorch executes."""
    return for_openvino(source) or Path(source).suffix == ".onnx" or is_tensorflow(source)


def for_openvino(source: str) -> bool:
    """Whether OpenVINO executes a model: IR, or whatever has its scheme before it."""
    return source.startswith(SCHEME) or Path(source).suffix == ".xml"


def default_cluster(source: str) -> Cluster | None:
    """The cluster on which a model is placed where none is named: ``None`` for this machine."""
    return Cluster.preset("hetero-cpu") if for_openvino(source) else None


def capture_model_file(source: str | Path, batch: int | None = None) -> ModelFile:
    """Capture ``model.onnx``, ``ir.xml`` or ``openvino:MODEL``; see `capture_openvino`.

    Raises `InputError`: the file is missing, damaged, or needs `batch`.
    Raises `UnsupportedError`: dynamic shapes or control flow.
    Raises `MissingDependencyError`: the package that reads the format is not installed.
    """
    if for_openvino(str(source)):
        return capture_openvino(str(source), batch)
    from placewright.capturing.files.onnx_graph import capture_onnx

    return capture_onnx(Path(source), batch)


def profile_model_file(
    file: ModelFile | TensorFlowModel,
    cluster: Cluster,
    *,
    method: Method = "auto",
    table: ProfileTable | None = None,
) -> OperatorProblem:
    """Costs of the model's operators on the devices of a cluster.

    See `profile_onnx`, `profile_openvino` and `profile_tensorflow`.
    """
    if isinstance(file, TensorFlowModel):
        return profile_tensorflow(file, cluster, method=method)

    own = profile_onnx if file.runtime == "onnxruntime" else profile_openvino
    return own(file, cluster, method=method, table=table)


@dataclass(frozen=True, slots=True, eq=False)
class FileWorkload:
    """A model of another runtime, the cluster that it is placed on, and the problem of that."""

    file: ModelFile
    cluster: Cluster
    problem: OperatorProblem

    def placed(self, result: Result, *, emulate: bool = True) -> PlacedFile:
        """Load the model under a plan.

        Raises `UnsupportedError`: the runtime does not take it.
        """
        return _opened(self._placement(result, emulate))

    def placed_at(self, placement: IntArray) -> PlacedFile:
        """Load the model under a placement, shape (operators,), in topological order."""
        names = self.problem.operator_names
        order = [names[i] for i in self.problem.topology.order]
        device = dict(zip(names, placement.tolist(), strict=True))
        return _opened(FilePlacement(self.file, self.cluster, device, order))

    @contextmanager
    def opened(self, placement: IntArray) -> Iterator[Callable[[int], list[float]]]:
        """Load a placement; executes so many inferences and returns their seconds."""
        inputs = self.file.random_inputs()
        with self.placed_at(placement) as placed:
            yield lambda steps: [_timed(placed.infer, inputs) for _ in range(steps)]

    def _placement(self, result: Result, emulate: bool) -> FilePlacement:
        problem = result.problem
        if problem.operator_names != self.file.graph.operator_names:
            raise InputError(
                "the plan is for another graph",
                where=f"{problem.name} and {self.file.source}",
                by=f"{problem.n} and {len(self.file.graph.operators)} operators",
                hint="plan again from the model that you run",
            )
        names = problem.operator_names
        order = [names[i] for i in execution_order(problem, result.judgement)]
        device = dict(zip(names, result.plan.placement.tolist(), strict=True))
        return FilePlacement(self.file, self.cluster, device, order, emulate)

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
    ) -> Measurement:
        """Run a plan, and another one in turns with it.

        Raises `UnsupportedError`: the runtime does not take the plan.
        Raises `RunError`: it failed while it ran.

        Parameters
        ----------
        beside
            `best_single(result.problem)` for `Measurement.speed_up`.
        check
            Compare the outputs with those of the unplaced model; `Measurement.check.demand`
            raises where they differ.
        """
        inputs = self.file.random_inputs(seed)
        alike = beside is not None and np.array_equal(beside.plan.placement, result.plan.placement)
        results = [result] if beside is None or alike else [result, beside]
        with ExitStack() as up:
            placed = [up.enter_context(self.placed(result, emulate=emulate))]
            checked = self.check(placed[0], inputs) if check else None
            placed += [up.enter_context(self.placed(r, emulate=emulate)) for r in results[1:]]
            runs = [partial(_steps, one, inputs) for one in placed]
            times = in_turns(runs, steps, warmup, result.value, progress)
            every = zip(results, times, placed, strict=True)
            found = [Measurement.of_rounds(t, r.value, p.engine, p.emulated) for r, t, p in every]
        baseline = None
        if beside is not None:
            rival = None if alike else found[1]
            baseline = Baseline(beside.planner.removeprefix(SINGLE), rival)
        return replace(found[0], check=checked, baseline=baseline)

    def check(self, placed: PlacedFile, inputs: Mapping[str, Array]) -> Check:
        """Outputs of the placed model beside those of the unplaced one on the same inputs."""
        return self._compared(placed.infer(inputs), inputs)

    def _compared(self, made: Mapping[str, Array], inputs: Mapping[str, Array]) -> Check:
        wanted = unplaced_outputs(self.file, inputs)
        return compared(made, wanted, self.file.runtime, self._tolerance())

    def _tolerance(self) -> Tolerance:
        if any(device.precision not in PRECISE for device in self.cluster.devices):
            return ROUNDED
        graph = self.file.graph
        nodes = self.file.model.graph.node if self.file.runtime == "onnxruntime" else ()
        kinds = {
            *(op.kind.rpartition(".")[2] for op in graph.operators),
            *(n.op_type for n in nodes),
        }
        if not kinds.isdisjoint(QUANTIZE):
            return QUANTIZED
        if coarsest(graph) <= ROUNDOFF["float32"]:
            return EXACT
        reason = "a runtime rounds to 16 bits where a part ends; within it computes in 32"
        return Tolerance(relative=half_of_the_digits(graph), reason=reason)

    def export(self, result: Result, folder: str | Path) -> tuple[list[Path], Check]:
        """Write the plan in the model's own format, load what was written, and check its outputs.

        Returns
        -------
        The files, the manifest first.
        """
        target, inputs = Path(folder), self.file.random_inputs()
        placement = self._placement(result, False)
        with naming(target), drafted_folder(target, "manifest.json") as draft:
            if self.file.runtime == "openvino":
                from placewright.runtime.model_files.hetero import (
                    HeteroModel,
                    export_hetero,
                    load_exported,
                )

                with HeteroModel(placement) as placed:
                    files = export_hetero(placed, draft)
                outputs = load_exported(files[0])([inputs[spec.name] for spec in self.file.inputs])
                made = dict(zip(self.file.outputs, outputs.values(), strict=True))
            else:
                from placewright.runtime.model_files.onnx_sessions import export_onnx, run_exported

                files = export_onnx(placement, draft)
                made = run_exported(files[0], inputs)
        return [target / file.name for file in files], self._compared(made, inputs)


def _opened(placement: FilePlacement) -> PlacedFile:
    if placement.file.runtime == "openvino":
        from placewright.runtime.model_files.hetero import HeteroModel

        return HeteroModel(placement)
    from placewright.runtime.model_files.onnx_sessions import OnnxSessions

    return OnnxSessions(placement)


def unplaced_outputs(file: ModelFile, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """What the model computes as it is, on one CPU in 32 bits."""
    names = list(file.outputs)
    if file.runtime == "openvino":
        from placewright.runtime.model_files.hetero import compile_alone

        whole = compile_alone(file, Device("CPU", precision="f32"))
        made = whole([inputs[spec.name] for spec in file.inputs])
        return dict(zip(names, made.values(), strict=True))
    from placewright.runtime.model_files.onnx_sessions import (
        as_array,
        open_session,
        run_session,
        whole_model,
    )

    session = open_session(whole_model(file), file.source)
    made = run_session(session, names, inputs, file.source)
    return dict(zip(names, map(as_array, made), strict=True))


def compared(
    made: Mapping[str, Array],
    wanted: Mapping[str, Array],
    runtime: str,
    tolerance: Tolerance = EXACT,
) -> Check:
    """Outputs, one by one."""
    found = []
    for name, value in wanted.items():
        apart, largest = distance(made.get(name), value)
        allowed = tolerance.absolute("output", largest, 1)
        found.append(Difference(1, "output", name, apart, allowed))
    return Check.of(found, tolerance, f"the unplaced model on {runtime}")


def _steps(placed: PlacedFile, inputs: Mapping[str, Array], warmup: int, steps: int) -> list[float]:
    for _ in range(warmup):
        placed.infer(inputs)
    return [_timed(placed.infer, inputs) for _ in range(steps)]


def _timed(infer: Callable[[Mapping[str, Array]], object], inputs: Mapping[str, Array]) -> float:
    began = time.perf_counter()
    infer(inputs)
    return time.perf_counter() - began


def refuse_for_files(source: str, given: Mapping[str, bool]) -> None:
    """Raise for an option that is for PyTorch models only.

    Raises `UnsupportedError`, which names the option.
    """
    for option, set_ in given.items():
        if set_:
            raise UnsupportedError(
                f"{option} is for PyTorch models",
                where=source,
                hint=f"leave {option} out",
            )


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
