"""Place, run, time and write step graphs by TensorFlow sessions, within the worker process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from placewright.capturing.tensorflow.loading import DEFAULT_SIGNATURE, imported
from placewright.capturing.tensorflow.step_graph import (
    CONSTANTS,
    PASSIVE,
    StepGraph,
    node_of,
    parsed_graph_def,
)
from placewright.errors import InputError, WorkerError
from placewright.io.output import naming
from placewright.io.stored import drafted_folder, write_file
from placewright.measurement import distance

v1 = tf.compat.v1

Placement = Mapping[str, str]
"""TensorFlow's name of a device (``/device:CPU:1``) by operator; empty: as TensorFlow places it."""


def placed(step: StepGraph, placement: Placement) -> Any:
    """The step's GraphDef, without what it does not need, with ``node.device`` written.

    Variables live where the operators that use them are, inputs with their first reader. A
    constant that is read on several devices gets a copy on each: ``NAME/copy_1`` and so on.
    """
    graph_def = step.pruned()
    for node in graph_def.node:
        node.device = ""  # what the file says is not asked for
    if not placement:
        return graph_def
    nodes = {node.name: node for node in graph_def.node}
    for name, device in placement.items():
        nodes[name].device = device
    readers: dict[str, list[Any]] = {}
    for name in step.nodes:
        for reference in nodes[name].input:
            readers.setdefault(node_of(reference), []).append(nodes[name])
    for name, node in step.nodes.items():
        if node.op in PASSIVE and name not in placement:
            _follow(graph_def, nodes[name], readers.get(name, []))
    return graph_def


def _follow(graph_def: Any, node: Any, readers: Sequence[Any]) -> None:
    """Put a node that computes nothing where its readers are."""
    devices = list(dict.fromkeys(reader.device for reader in readers if reader.device))
    if not devices:
        return
    node.device = devices[0]
    if node.op not in CONSTANTS or "_class" in node.attr:
        return
    for count, device in enumerate(devices[1:], 1):
        copy = graph_def.node.add()
        copy.CopyFrom(node)
        copy.name, copy.device = f"{node.name}/copy_{count}", device
        for reader in readers:
            if reader.device == device:
                for k, reference in enumerate(reader.input):
                    if reference in (node.name, f"{node.name}:0"):
                        reader.input[k] = copy.name


@dataclass(slots=True)
class Execution:
    """A session that has a placed step, its variables initialised.

    Grappler and the graph optimizer are off: the operators that were placed are those that run.
    """

    step: StepGraph
    placement: Placement
    cpus: int
    intra_threads: int = 0
    inter_threads: int = 0
    read_variables: bool = False
    written: Path | None = None
    session: Any = field(init=False)
    call: Any = field(init=False)
    reads: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        graph = tf.Graph()
        if self.written is None or self.written.suffix:
            graph = imported(self._graph_def(), self.step.name)
        self.session = v1.Session(graph=graph, config=self._configuration())
        if self.written is not None and not self.written.suffix:
            with graph.as_default(), explained(str(self.written)):
                v1.saved_model.load(  # which gives variables their values
                    self.session, [v1.saved_model.tag_constants.SERVING], str(self.written)
                )
        else:
            self.restart()
        fetches = [*self.step.fetches, *map(self.operation, self.step.targets)]
        with explained(self.step.name):
            self.call = self.session.make_callable(
                fetches, feed_list=[f"{name}:0" for name in self.step.feeds]
            )

    def _graph_def(self) -> Any:
        """What the session executes: the placed step, or what was written."""
        if self.written is not None:
            return parsed_graph_def(self.written.read_bytes(), str(self.written))
        graph_def = placed(self.step, self.placement)
        if self.read_variables:
            self.reads = _add_reads(graph_def, self.step)
        return graph_def

    def _configuration(self) -> Any:
        config = v1.ConfigProto(
            device_count={"CPU": self.cpus},
            intra_op_parallelism_threads=self.intra_threads,
            inter_op_parallelism_threads=self.inter_threads,
            allow_soft_placement=any("GPU" in device for device in self.placement.values()),
        )
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
        return config

    def operation(self, name: str) -> Any:
        """A node of the session's graph."""
        return self.session.graph.get_operation_by_name(name)

    def restart(self) -> None:
        """Give variables their initial values."""
        if self.step.init:
            with explained(self.step.name):
                self.session.run(self.operation(self.step.init))
        elif self.step.variables:
            raise InputError(
                "its variables have no values",
                where=f"{self.step.name}: variable {self.step.variables[0]!r}",
                by=f"{len(self.step.variables)} variables, and no node 'init'",
                hint="freeze the graph, or give the SavedModel; it can be planned as it is",
            )

    def run(self, steps: int) -> list[float]:
        """Wall seconds of each of `steps` steps."""
        values, seconds = list(self.step.feeds.values()), []
        with explained(self.step.name):
            for _ in range(steps):
                start = time.perf_counter()
                self.call(*values)
                seconds.append(time.perf_counter() - start)
        return seconds

    def outputs(self) -> dict[str, Any]:
        """Outputs of one step by their tensors, and with `read_variables` all variables."""
        with explained(self.step.name):
            made = self.call(*self.step.feeds.values())[: len(self.step.fetches)]
            held = self.session.run([f"{name}:0" for name in self.reads])
        variables = self.step.variables if self.reads else []
        return dict(zip((*self.step.fetches, *variables), (*made, *held), strict=True))

    def operator_seconds(self, repeats: int) -> dict[str, float]:
        """Median seconds of each operator, by TensorFlow's own trace of every kernel."""
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        feeds = {f"{name}:0": value for name, value in self.step.feeds.items()}
        wanted = [*self.step.fetches, *map(self.operation, self.step.targets)]
        found: dict[str, list[float]] = {}
        for _ in range(repeats):
            record = v1.RunMetadata()
            with explained(self.step.name):
                self.session.run(wanted, feeds, options=options, run_metadata=record)
            for device in record.step_stats.dev_stats:
                for node in device.node_stats:
                    taken = (node.op_end_rel_nanos - node.op_start_rel_nanos) * 1e-9
                    found.setdefault(node.node_name, []).append(taken)
        return {name: statistics.median(times) for name, times in found.items()}

    def close(self) -> None:
        """End the session."""
        self.session.close()


def shapes_of(step: StepGraph, names: Sequence[str]) -> dict[str, list[list[int]]]:
    """Shapes of all outputs of these operators in one step."""
    if not names:
        return {}
    run = Execution(step, {}, 1)
    tensors = {name: run.operation(name).outputs for name in names}
    feeds = {f"{name}:0": value for name, value in step.feeds.items()}
    with explained(step.name):
        values = run.session.run({name: list(made) for name, made in tensors.items()}, feeds)
    run.close()
    return {name: [list(np.shape(value)) for value in made] for name, made in values.items()}


def kernel_seconds(step: StepGraph, threads: int, repeats: int) -> dict[str, float]:
    """Median seconds of each operator, one at a time, on so many threads.

    The trace leaves out what the executor does between operators and adds its own cost, so all are
    scaled by one factor that makes their sum the time of a step without trace.
    """
    run = Execution(step, {}, 1, intra_threads=threads, inter_threads=1)
    run.run(2)
    whole = statistics.median(run.run(repeats))
    found = run.operator_seconds(repeats)
    # Before and after the traced steps: other load can only add time.
    whole = min(whole, statistics.median(run.run(repeats)))
    run.close()
    return {name: seconds * whole / sum(found.values()) for name, seconds in found.items()}


def handover_seconds(hops: int = 200, repeats: int = 15) -> float:
    """Seconds that a tensor takes from one logical CPU to another: a reference is handed over."""
    times = []
    for devices in (["/device:CPU:0", "/device:CPU:1"], ["/device:CPU:0"]):
        with tf.Graph().as_default() as graph:
            value = v1.placeholder(tf.float32, (1,), name="x")
            for k in range(hops):
                with tf.device(devices[k % len(devices)]):
                    value = tf.negative(value, name=f"hop{k}")
        feeds = {"x": np.ones(1, np.float32)}
        step = StepGraph("handover", graph.as_graph_def(), feeds, (value.name,))
        run = Execution(step, {}, 2)
        run.run(3)
        times.append(statistics.median(run.run(repeats)))
        run.close()
    # The same chain on one device is what the operators take by themselves.
    return max(0.0, times[0] - times[1]) / hops


def _add_reads(graph_def: Any, step: StepGraph) -> list[str]:
    """Nodes that read every variable."""
    nodes, names = step.nodes, []
    for name in step.variables:
        node = graph_def.node.add(name=f"{name}/checked_value")
        node.input.append(name)
        if nodes[name].op == "VarHandleOp":
            node.op = "ReadVariableOp"
            node.attr["dtype"].type = nodes[name].attr["dtype"].type
        else:
            node.op = "Identity"
            node.attr["T"].type = nodes[name].attr["dtype"].type
        names.append(node.name)
    return names


Difference = tuple[int, str, str, float, float]
"""Step, role, tensor, and what `distance` says of it."""


def differences(step: StepGraph, placement: Placement, cpus: int, steps: int) -> list[Difference]:
    """Every tensor of a placed run beside the unplaced one, from the same state."""
    runs = [Execution(step, p, cpus, read_variables=True) for p in (placement, {})]
    found: list[Difference] = []
    for count in range(1, steps + 1):
        own, plain = (run.outputs() for run in runs)
        found += _compared(step, count, own, plain)
    for run in runs:
        run.close()
    return found


def _compared(
    step: StepGraph, count: int, own: Mapping[str, Any], plain: Mapping[str, Any]
) -> list[Difference]:
    roles = dict.fromkeys(step.fetches, "output")
    pairs = ((name, np.asarray(value), np.asarray(plain[name])) for name, value in own.items())
    return [(count, roles.get(n, "parameter"), n, *distance(a, b)) for n, a, b in pairs]


def write(step: StepGraph, placement: Placement, path: Path, cpus: int) -> list[Difference]:
    """Write the placed step, load what was written, and run it beside the unplaced graph.

    A SavedModel where `path` has no suffix, else a GraphDef.
    """
    if path.suffix:
        write_file(path, placed(step, placement).SerializeToString(deterministic=True))
        run = Execution(step, placement, cpus, written=path)
    else:
        with naming(path), drafted_folder(path, "saved_model.pb") as draft:
            _write_saved_model(step, placement, draft, cpus)
            run = Execution(step, placement, cpus, written=draft)
    plain = Execution(step, {}, cpus)
    found = _compared(step, 1, run.outputs(), plain.outputs())
    for one in (run, plain):
        one.close()
    return found


def _write_saved_model(step: StepGraph, placement: Placement, path: Path, cpus: int) -> None:
    run = Execution(step, placement, cpus)
    graph, saved = run.session.graph, v1.saved_model
    keys = step.keys or list(map(node_of, step.fetches))
    if len(set(keys)) < len(keys):  # several outputs of one node
        keys = [name.replace(":", "_") for name in step.fetches]
    builder = saved.Builder(str(path))
    with graph.as_default():
        signature = saved.build_signature_def(
            inputs={n: _info(graph, f"{n}:0") for n in step.feeds},
            outputs={key: _info(graph, n) for key, n in zip(keys, step.fetches, strict=True)},
            method_name=saved.signature_constants.PREDICT_METHOD_NAME,
        )
        builder.add_meta_graph_and_variables(
            run.session,
            [saved.tag_constants.SERVING],
            {DEFAULT_SIGNATURE: signature},
            main_op=run.operation(step.init) if step.init else None,
            clear_devices=False,
        )
    builder.save()
    run.close()


def _info(graph: Any, tensor: str) -> Any:
    return v1.saved_model.build_tensor_info(graph.get_tensor_by_name(tensor))


@contextmanager
def explained(where: str) -> Iterator[None]:
    """TensorFlow's errors of a run as ours: which node, and why."""
    try:
        yield
    except tf.errors.OpError as error:
        node = getattr(error.op, "name", "") if error.op is not None else ""
        lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
        raise WorkerError(
            f"TensorFlow cannot run it: {type(error).__name__}",
            where=f"{where}: node {node!r}" if node else where,
            by=lines[0][:400] if lines else "",
            hint="plan with devices that have a kernel for the node, or take it out of the model",
        ) from error
