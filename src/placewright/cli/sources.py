"""What SOURCE and CLUSTER on the command line mean, and the way from there to a problem."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from placewright.cli.console import Console
from placewright.cli.options import DIFFMAXIMA, PipelineOptions
from placewright.errors import InputError, UnsupportedError
from placewright.numerics.collector import collector_paused

if TYPE_CHECKING:
    from placewright.capturing.files.model_file import ModelFile
    from placewright.capturing.source import ModelSource
    from placewright.capturing.tensorflow.model import TensorFlowModel
    from placewright.cluster.cluster import Cluster
    from placewright.deployment.model_files import FileWorkload, TensorFlowWorkload
    from placewright.deployment.workers import MeasuredPlacements
    from placewright.deployment.workload import Workload
    from placewright.graph.graph import Graph
    from placewright.operators.problem import OperatorProblem
    from placewright.profiling.profiler import ProfileTable

Method = Literal["auto", "in-place", "isolated", "analytic"]

SCHEMES = {
    "zoo": "zoo:NAME, a model that ships with Placewright",
    "onnx": "FILE.onnx, a model that ONNX Runtime executes",
    "openvino": "FILE.xml or openvino:MODEL, a model that OpenVINO executes",
    "tensorflow": "GRAPH.pb, FOLDER of a SavedModel, MODEL.keras or "
    "tensorflow:package.module:factory, models that TensorFlow executes",
    "dag": "dag:FILE.json, a task graph on heterogeneous nodes",
    "stg": "stg:FILE.stg[?devices=N], a task graph of the Standard Task Graph Set",
    "dot": "dot:FILE.dot [--on CLUSTER], a directed graph of Graphviz",
    "wfcommons": "wfcommons:FILE.json --on CLUSTER, a scientific workflow",
    "msr": "msr:FILE.json[?cost_scale=X], accelerators and CPUs around host memory",
    "pipedream": "pipedream:FILE.txt --on CLUSTER, a profiled training graph",
}
MODELS = ("zoo", "onnx", "openvino", "tensorflow")
ELSEWHERE = {
    "piper": "layers plan",
    "flow": "layers plan",
    "halda": "layers plan",
    "devicemap": "layers plan",
    "strategy": "layers simulate",
    "serving": "requests plan",
}
"""Formats of other verbs."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options that change the problem; ``None`` leaves it to the source."""

    source: str
    on: str | None = None
    training: bool = False
    batch: int | None = None
    objective: str | None = None
    links: str | None = None
    overlap: str | None = None
    contiguous: bool = False
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    method: Method = "auto"
    table: Path | None = None
    weights: Path | None = None
    micro_batches: int | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Fields of the problem that the options set; contiguous plans are about throughput.

        Raises `InputError` where the objective is latency.
        """
        if self.contiguous and self.objective == "latency":
            raise InputError(
                "--contiguous is for throughput",
                where=self.source,
                by="got --objective latency",
                hint="leave one of the two out",
            )
        objective = self.objective or ("throughput" if self.contiguous else None)
        objective = "throughput" if objective == DIFFMAXIMA else objective
        given = {
            "objective": objective,
            "links": self.links,
            "overlap": self.overlap,
        }
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        return changes | ({"contiguous": True} if self.contiguous else {})

    def of(self, problem: OperatorProblem) -> OperatorProblem:
        """The problem with these options."""
        return self.pipeline.replace(problem.replace(**self.changes), self.objective)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedSource:
    """A problem and what it was made of, as far as it was made of anything."""

    problem: OperatorProblem
    graph: Graph | None = None
    cluster: Cluster | None = None
    workload: Workload | None = None
    file: ModelFile | TensorFlowModel | None = None

    def measuring(self) -> AbstractContextManager[MeasuredPlacements | None]:
        """What executes placements, for planners that learn from runs; ``None`` without a model."""
        from placewright.deployment.workers import measured_rewards

        if self.file is not None:
            return measured_rewards(self.file_workload())
        return nullcontext() if self.workload is None else measured_rewards(self.workload)

    def file_workload(self) -> FileWorkload | TensorFlowWorkload:
        """The model of another runtime on its cluster."""
        from placewright.capturing.tensorflow.model import TensorFlowModel
        from placewright.deployment.model_files import FileWorkload, TensorFlowWorkload

        assert self.file is not None
        assert self.cluster is not None
        if isinstance(self.file, TensorFlowModel):
            return TensorFlowWorkload(self.file, self.cluster, self.problem)
        return FileWorkload(self.file, self.cluster, self.problem)


def find_cluster(spec: str | None) -> Cluster:
    """A file, a preset, or this machine where `spec` is ``None``."""
    from placewright.cluster.cluster import Cluster
    from placewright.cluster.files import load_cluster

    return Cluster.detect() if spec is None else load_cluster(spec)


@collector_paused()
def load(options: SourceOptions, console: Console, *, planned: bool = True) -> LoadedSource:
    """The problem that SOURCE and the options ask for.

    `planned`: a plan is wanted, and nothing is measured where there can be none.

    Raises
    ------
    InputError
        No such file, scheme or model; lists what is known.
    InfeasibleError
        No plan can fit.
    """
    scheme, _, rest = options.source.partition(":")
    if scheme in ELSEWHERE and rest:
        raise UnsupportedError(
            f"{scheme}: files are no problems of operators",
            where=options.source,
            hint=f"placewright {ELSEWHERE[scheme]} {options.source}",
        )
    if scheme in SCHEMES and rest and scheme not in MODELS:
        return _published(scheme, options)
    from placewright.deployment.model_files import is_model_file

    if is_model_file(options.source):
        return _from_model_file(options, console)
    if is_file(options.source):
        return _from_file(Path(options.source), options, console, planned)
    return _from_model(options, console, planned)


def captured_graph(options: SourceOptions, console: Console) -> Graph:
    """The graph of the model that SOURCE names, whatever executes it."""
    from placewright.deployment.model_files import is_model_file

    if is_model_file(options.source):
        return _captured_file(options, console).graph
    model = _built(options, console, weights=False)
    from placewright.capturing.model import capture_call

    with console.meter(f"capturing {options.source}"):
        return capture_call(model, training=options.training).graph


def _built(options: SourceOptions, console: Console, *, weights: bool) -> ModelSource:
    """The PyTorch model that SOURCE names."""
    if ":" not in options.source:
        raise _unknown_scheme(options.source, "is neither a file nor a model")
    if options.micro_batches is not None and not options.training:
        raise InputError("--micro-batches is for training steps", hint="add --training")
    from placewright.capturing.source import load_model

    with console.meter(f"building {options.source}"):
        model = load_model(options.source, options.batch, options.training, weights=weights)
    if options.micro_batches is None:
        return model
    return model.with_recipe(micro_batches=options.micro_batches)


def is_file(source: str) -> bool:
    """Whether `source` means a graph or a problem in a file."""
    path = Path(source)
    return path.name.endswith((".json", ".json.gz")) or os.path.isfile(path)


def _from_file(path: Path, options: SourceOptions, console: Console, planned: bool) -> LoadedSource:
    _only_models(options)
    from placewright.files import document_kind

    kind = document_kind(path)
    if kind == "problem":
        return LoadedSource(_kept_problem(path, options))
    if kind != "graph":
        raise InputError(
            f"is a {kind.replace('-', ' ')}, not something to plan here",
            where=str(path),
            hint="give a graph.json, a problem.json or a model",
        )
    from placewright.graph.files import read_graph

    table = _kept_profile(options, console)
    graph, cluster = read_graph(path), find_cluster(options.on)
    from placewright.deployment.workload import refuse_what_cannot_fit
    from placewright.profiling.profiler import profile

    if planned:
        refuse_what_cannot_fit(graph, cluster)
    with _profiling(console, graph, cluster):
        problem = options.of(profile(graph, cluster, method=options.method, table=table))
    return LoadedSource(problem, graph, cluster)


def _from_model_file(options: SourceOptions, console: Console) -> LoadedSource:
    from placewright.deployment.model_files import default_cluster, profile_model_file

    table = _kept_profile(options, console)
    file = _captured_file(options, console)
    own = None if options.on is not None else default_cluster(options.source)
    cluster = own or find_cluster(options.on)
    with _profiling(console, file.graph, cluster):
        problem = options.of(profile_model_file(file, cluster, method=options.method, table=table))
    return LoadedSource(problem, file.graph, cluster, file=file)


def _captured_file(options: SourceOptions, console: Console) -> ModelFile | TensorFlowModel:
    from placewright.capturing.tensorflow.model import capture_tensorflow, is_tensorflow
    from placewright.deployment.model_files import capture_model_file, refuse_for_files

    own = is_tensorflow(options.source)
    refused = {
        "--weights": options.weights is not None,
        "--table": own and options.table is not None,
    }
    refuse_for_files(options.source, refused | {"--training": options.training and not own})
    with console.meter(f"capturing {options.source}"):
        if own:
            return capture_tensorflow(
                options.source, batch=options.batch, training=options.training
            )
        return capture_model_file(options.source, options.batch)


def _from_model(options: SourceOptions, console: Console, planned: bool) -> LoadedSource:
    table, cluster = _kept_profile(options, console), find_cluster(options.on)
    model = _built(options, console, weights=True)
    from placewright.deployment.workload import profiled
    from placewright.profiling.profile_warnings import ProfileWarning

    with console.noted(ProfileWarning):
        found = profiled(
            model,
            cluster,
            training=options.training,
            method=options.method,
            table=table,
            weights=options.weights,
            monitor=console,
            planned=planned,
        )
    found = replace(found, problem=options.of(found.problem))
    return LoadedSource(found.problem, found.graph, cluster, found)


@contextmanager
def _profiling(console: Console, graph: Graph, cluster: Cluster) -> Iterator[None]:
    """Progress while it is measured; notes on what its costs are not."""
    from placewright.profiling.profile_warnings import ProfileWarning

    with console.noted(ProfileWarning), console.meter(f"profiling {graph.name} on {cluster.name}"):
        yield


def _kept_profile(options: SourceOptions, console: Console) -> ProfileTable:
    """The table of ``--table``; one that cannot be written is refused before any work."""
    from placewright.profiling.profile_warnings import OtherMachineWarning
    from placewright.profiling.profiler import ProfileTable

    if options.table is None:
        return ProfileTable()
    with console.noted(OtherMachineWarning):
        return ProfileTable.kept(options.table)


def _published(scheme: str, options: SourceOptions) -> LoadedSource:
    """The problem of a published format, on ``--on`` where it has no devices of its own."""
    from placewright.files import formats, read_file

    _only_models(options)
    _only_profiled(options)
    cluster, takes = None, signature(formats()[scheme].read).parameters
    if "cluster" not in takes:
        _no_cluster(options)
    elif options.on is not None or takes["cluster"].default is Parameter.empty:
        cluster = find_cluster(options.on)
    given: dict[str, Any] = {} if cluster is None else {"cluster": cluster}
    given |= {"objective": "latency"} if "objective" in takes else {}
    return LoadedSource(options.of(read_file(options.source, **given)), cluster=cluster)


def _kept_problem(path: Path, options: SourceOptions) -> OperatorProblem:
    from placewright.operators.files import read_problem

    _only_profiled(options)
    _no_cluster(options)
    return options.of(read_problem(path))


def _only_models(options: SourceOptions) -> None:
    for flag, given in (
        ("--training", options.training),
        ("--batch", options.batch),
        ("--micro-batches", options.micro_batches),
    ):
        if given:
            raise InputError(
                f"{flag} is for models",
                where=options.source,
                hint="it is decided when the model is captured; capture it again",
            )


def _only_profiled(options: SourceOptions) -> None:
    for flag, given in (
        ("--method", options.method != "auto"),
        ("--table", options.table is not None),
    ):
        if given:
            raise InputError(
                f"{flag} is for models and graphs",
                where=options.source,
                hint=f"a problem already has its costs; leave {flag} out",
            )


def _no_cluster(options: SourceOptions) -> None:
    if options.on is not None:
        raise InputError(
            "--on is for models and graphs",
            where=options.source,
            hint="a problem already has its devices; leave --on out",
        )


def _unknown_scheme(source: str, what: str) -> UnsupportedError:
    known = "; ".join(SCHEMES.values())
    return UnsupportedError(
        what,
        where=source,
        hint=f"known: {known}; package.module:factory or FILE.py:factory; graph.json; problem.json",
    )
