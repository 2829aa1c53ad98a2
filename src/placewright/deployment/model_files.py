"""Place a model that another runtime executes: load, profile, run beside a baseline, write back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from placewright.capturing.files.openvino_graph import SCHEME
from placewright.capturing.tensorflow.model import TensorFlowModel, is_tensorflow
from placewright.errors import InputError, UnsupportedError
from placewright.measurement import (
    Baseline,
    Check,
    Difference,
    Measurement,
    Tolerance,
    distance,
    in_turns,
)
from placewright.numerics.arrays import IntArray
from placewright.operators.exactness import ROUNDOFF, coarsest, half_of_the_digits
from placewright.operators.plan import SINGLE
from placewright.operators.run import execution_order
from placewright.planning.contract import Progress, silent
from placewright.planning.result import Result
from placewright.runtime.model_files.contract import FilePlacement, PlacedFile

if TYPE_CHECKING:
    from placewright.capturing.files.model_file import Array, ModelFile
    from placewright.cluster.cluster import Cluster
    from placewright.operators.problem import OperatorProblem
    from placewright.profiling.profiler import Method, ProfileTable


EXACT = Tolerance(
    relative=1e-5,
    reason="a runtime fuses other operators in parts of a model than in the whole",
)


ROUNDED = Tolerance(
    relative=0.05,
    reason="a device computes in 16 bits; the unplaced model in 32",
)
PRECISE = ("", "f32")

QUANTIZE = ("QuantizeLinear", "FakeQuantize")
"""Ends of the kinds of operators that round to integers of 8 bits."""
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
    from placewright.cluster.cluster import Cluster

    return Cluster.preset("hetero-cpu") if for_openvino(source) else None


def capture_model_file(source: str | Path, batch: int | None = None) -> ModelFile:
    """Capture ``model.onnx``, ``ir.xml`` or ``openvino:MODEL``; see `capture_openvino`.

    Raises `InputError`: the file is missing, damaged, or needs `batch`.
    Raises `UnsupportedError`: dynamic shapes or control flow.
    Raises `MissingDependencyError`: the package that reads the format is not installed.
    """
    if for_openvino(str(source)):
        from placewright.capturing.files.openvino_graph import capture_openvino

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

    See `profile_onnx`, `profile_openvino` and
    `placewright.deployment.tensorflow_models.profile_tensorflow`.
    """
    if isinstance(file, TensorFlowModel):
        from placewright.deployment.tensorflow_models import profile_tensorflow

        return profile_tensorflow(file, cluster, method=method)
    from placewright.profiling.model_files import profile_onnx, profile_openvino

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
        if any(operator.kind.endswith(QUANTIZE) for operator in graph.operators):
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
        target.mkdir(parents=True, exist_ok=True)
        placement = self._placement(result, False)
        if self.file.runtime == "openvino":
            from placewright.runtime.model_files.hetero import (
                HeteroModel,
                export_hetero,
                load_exported,
            )

            with HeteroModel(placement) as placed:
                files = export_hetero(placed, target)
            outputs = load_exported(files[0])([inputs[spec.name] for spec in self.file.inputs])
            made = dict(zip(self.file.outputs, outputs.values(), strict=True))
        else:
            from placewright.runtime.model_files.onnx_sessions import export_onnx, run_exported

            files = export_onnx(placement, target)
            made = run_exported(files[0], inputs)
        return files, self._compared(made, inputs)


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
        from placewright.cluster.cluster import Device
        from placewright.runtime.model_files.hetero import compile_alone

        whole = compile_alone(file, Device("CPU", precision="f32"))
        made = whole([inputs[spec.name] for spec in file.inputs])
        return dict(zip(names, made.values(), strict=True))
    from placewright.runtime.model_files.onnx_sessions import open_session, whole_model

    session = open_session(whole_model(file), file.source)
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


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
