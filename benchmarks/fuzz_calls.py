"""Call every public function and constructor with wrong values: each must be refused by name.

    python benchmarks/fuzz_calls.py [--seconds 60] [--seed 0] [--only NAME] [--slowest 5]

One argument after the other is replaced by some fifty wrong values: ``None``, truths, numbers out
of range, texts that are nearly right, bytes, folders, closed files, arrays of other shapes and
types, nested junk, classes instead of objects, generators. Fine is an error of Placewright that
names the argument or the value and says what to do next, and a value that `ACCEPTED` lists. A
finding is anything else: another exception, a wrong value that is taken, a call of more than
``--slowest`` seconds of processor time, growth of more than 500 MB, a file that nobody named, a
public name without a case. It exits with 1 where there is one.

Without ``--seconds`` every value of every argument is tried once, with it as many as fit, in an
order that the seed decides.
"""

from __future__ import annotations

import datetime
import decimal
import faulthandler
import functools
import importlib
import io
import math
import os
import random
import signal
import tempfile
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, fields
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

import placewright
from harness import run
from placewright.adapt.timeline import Timeline
from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, default_loss
from placewright.capturing.state import initial_state
from placewright.cluster.files import load_cluster
from placewright.errors import PlacewrightError
from placewright.graph.files import read_graph
from placewright.layers.files import read_piper
from placewright.measurement import Check, Measurement
from placewright.operators.adaptive.adaptation import AdaptationPolicy
from placewright.operators.readers.neural_networks import read_expert, read_msr, read_pipedream
from placewright.operators.readers.task_graphs import read_dag
from placewright.operators.run import best_single, running
from placewright.planning.wings import register_wing, wings
from placewright.profiling.profiler import ProfileTable
from placewright.requests.serving.server import serve_forever
from placewright.solvers.pbqp import Pbqp, solve_pbqp

HANGS_S = 300.0
"""Wall time, however many other programs are running."""
MOST_GROWTH = 500e6


FLAG = {"True", "False", "np.True_"}
WHOLE = {"0", "1", "np.int64(1)", "2**31"}
COUNT = WHOLE - {"0"}
NUMBER = WHOLE | {"0.5", "np.float64(0.5)", "1e300", "10**30"}
POSITIVE = NUMBER - {"0"}
UNLIMITED = NUMBER | {"inf"}
NEGATIVE = {"-1", "-0.5", "-inf"}
UNKNOWN = {"nan", "np.float32(nan)"}
ANY_NUMBER = UNLIMITED | NEGATIVE
SHARE = {"0", "1", "0.5", "np.int64(1)", "np.float64(0.5)"}
TEXT = {"''", "'autp'", "'latencyy'", "'no such name'", "'1'", "5,000 letters", "str(folder)"}
NONE = {"None"}
EMPTY = {"()"}
VECTOR = {"()", "zeros(0)", "range"}
"""Of no entries, or counting: lengths are compared with the problem by what takes both."""
NOTHING = {"()", "zeros(0)"}
"""An array without entries stands for the default."""
CALLED = {"None", "len"}
MAKERS = {"int", "len", "function", "None"}
"""Functions of no arguments; of those in C nothing is known before the call."""
NEW_FILE = {"'autp'", "'latencyy'", "'no such name'", "'1'"}
"""To write: names of files that are not there, in a folder that is."""
ANYTHING = {"anything"}
"""What it may be is the user's own, or another wing's: it is not looked at here."""

USUAL: dict[str, set[str]] = {
    "seed": WHOLE,
    "note": TEXT,
    "title": TEXT,
    "where": TEXT,
    "time_limit_s": UNLIMITED,
    "deadline_s": UNLIMITED,
    "runtime_s": NUMBER,
    "lr": NUMBER,
    "exact": FLAG,
    "training": FLAG,
    "signed": FLAG,
    "path": NEW_FILE,
}
"""Arguments that mean the same everywhere."""


def wrong_values(folder: Path) -> dict[str, Callable[[], Any]]:
    """By name, what an argument is replaced by; made anew for each call."""
    closed = folder / "closed.txt"
    closed.write_text("")

    def closed_file() -> Any:
        with closed.open() as file:
            return file

    nested: list[Any] = []
    for _ in range(200):
        nested = [nested]
    by_repr: tuple[Any, ...] = (
        *(None, True, False, 0, -1, 1, 0.5, -0.5, math.nan, math.inf, -math.inf, 1j),
        *("", "autp", "latencyy", "no such name", "1", b"auto"),
        *((), [None], [1, "a"], {}, {"a": None}),
    )
    plain: dict[str, Any] = {repr(value): value for value in by_repr} | {
        "np.True_": np.True_,
        "np.int64(1)": np.int64(1),
        "np.float64(0.5)": np.float64(0.5),
        "np.float32(nan)": np.float32(math.nan),
        "2**31": 2**31,
        "10**30": 10**30,
        "10**400": 10**400,
        "1e300": 1e300,
        "Decimal": decimal.Decimal("0.5"),
        "date": datetime.date(2020, 1, 1),
        "NUL": "a\0b",
        "surrogate": "\ud800",
        "5,000 letters": "x" * 5000,
        "bytearray": bytearray(b"auto"),
        "folder": folder,
        "str(folder)": str(folder),
        "missing file": folder / "no such" / "file.json",
        "set": {1, 2},
        "nested": nested,
        "zeros(3, 3, 3)": np.zeros((3, 3, 3)),
        "zeros(0)": np.zeros(0),
        "array of nan": np.array([math.nan]),
        "array of texts": np.array(["a", "b"]),
        "array of objects": np.array([None, {}], dtype=object),
        "array()": np.array(1),
        "int": int,
        "class": placewright.Cluster,
        "function": lambda: 0,
        "len": len,
        "object": object(),
        "module": math,
        "...": ...,
        "exception": ValueError("x"),
        "range": range(3),
    }
    made: dict[str, Callable[[], Any]] = {
        name: functools.partial(lambda x: x, value) for name, value in plain.items()
    }
    return made | {"generator": lambda: (x for x in [1, None]), "closed file": closed_file}


@dataclass(frozen=True, slots=True)
class Case:
    """A function with right arguments; those that are wrong are put in their place.

    `accepted`: by argument, the values that are right for it, beside those of `USUAL`.
    `costly`: right values are not tried, as workers would start.
    """

    title: str
    call: Callable[..., Any]
    right: Mapping[str, Any]
    accepted: Mapping[str, set[str]] = field(default_factory=dict)
    costly: bool = False


@dataclass(slots=True)
class Table:
    """What came of the calls."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


def outcome(case: Case, name: str, label: str, value: Any) -> tuple[str, str]:
    """``refused``, ``accepted``, or the kind of the finding, and what it is."""
    given = {**case.right, name: value}
    try:
        with Alarm(HANGS_S), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            answer = case.call(**given)
            if isinstance(answer, types.GeneratorType):
                next(answer, None)
                answer.close()
    except PlacewrightError as error:
        text = str(error)
        if not error.what or "next:" not in text or not _named(case, name, value, text):
            return "unclear", text.replace("\n", " | ")[:200]
        return "refused", ""
    except _TooSlow:
        return "hang", f"more than {HANGS_S:g} s"
    except Exception as error:
        return "raw", f"{type(error).__name__}: {str(error)[:150]!r}"
    return ("accepted", "") if _right(case, name, label) else ("taken", "")


def _right(case: Case, name: str, label: str) -> bool:
    accepted = case.accepted.get(name, USUAL.get(name, set()))
    return label in accepted or accepted is ANYTHING


def _named(case: Case, name: str, value: Any, text: str) -> bool:
    """Whether the argument or the value is in a message, or what it does not fit."""
    others = [each for each in case.right if len(each) > 3]  # lengths that differ: which is wrong?
    words = [
        name,
        name.split("_")[0],
        name.removesuffix("s"),
        *others,
        case.title.removeprefix("read_"),  # a mapping of a format is named by it
        str(case.right.get("where", name)),
    ]
    if isinstance(value, str | os.PathLike):
        words.append(str(value)[:20] or "''")
    return any(word in text for word in words if word)


class _TooSlow(BaseException):
    """The alarm of a call that hangs."""


class Alarm:
    """Raise `_TooSlow` in the block after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        def ring(*_: object) -> None:
            raise _TooSlow

        self.before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)


def cases(folder: Path) -> Iterator[Case]:
    """Every function, method and constructor that needs no workers."""
    yield from problems(folder)
    yield from builders()
    yield from readers(folder)
    yield from clusters(folder)
    yield from models(folder)


def _constructor(made: Any, **accepted: set[str]) -> Case:
    """A dataclass, from an object of it."""
    right = {f.name: getattr(made, f.name) for f in fields(made) if f.init}
    return Case(type(made).__name__, type(made), right, accepted)


def _tiny(wing: str) -> Any:
    conformance = wings()[wing].conformance
    assert conformance is not None
    instances = list(conformance().tiny_instances().values())
    return instances[min(2, len(instances) - 1)]


_SOLVE = {"measure": ANYTHING, "progress": {"len"}}


def problems(folder: Path) -> Iterator[Case]:
    """Problems, plans and results, and what plans, judges and writes them."""
    for wing in ("operators", "layers", "samples", "requests"):
        problem = _tiny(wing)
        yield _constructor(problem, name=TEXT, **PROBLEMS[wing])
        options = {"time_limit_s": 0.2, "seed": 0}
        quick = {"operators": "heft", "layers": "dp", "samples": "nothing", "requests": "jf"}
        known = list(placewright.planners(problem))
        planner = next((name for name in known if name == quick[wing]), known[0])
        result = placewright.solve(problem, planner, time_limit_s=0.2)
        yield _constructor(result.plan, **PLANS[wing])
        right = {"problem": problem, "planner": planner, **options}
        yield Case("solve", placewright.solve, right, _SOLVE, costly=True)
        right = {"problem": problem, "planners": [planner], **options}
        yield Case("compare", placewright.compare, right, {"planners": VECTOR}, costly=True)
        yield Case("judge", placewright.judge, {"problem": problem, "plan": result.plan})
        yield Case("planners", placewright.planners, {"problem": problem})
        yield Case("bounds", placewright.bounds, {"problem": problem})
        yield Case("Result.explain", result.explain, {"name": "?"}, {"name": {"'1'"}})
        for name in ("save", "trace", "report"):
            made = {"path": str(folder / f"{name}-{wing}.json")}
            yield Case(f"Result.{name}", getattr(result, name), made, {})
        yield _constructor(result, **RESULT)
        yield _constructor(result.candidates[0], **CANDIDATE)
    yield Case("best_single", best_single, {"problem": _tiny("operators")})
    yield _constructor(AdaptationPolicy(), **POLICY)
    yield _constructor(placewright.Context(), bound=ANY_NUMBER, judge={"None", "len"},
                       objective={"None", "len"},
                       incumbent=ANYTHING, measure=ANYTHING, progress={"len"})  # fmt: skip
    yield Case("Context.part", placewright.Context().part, {"share": 0.5}, {"share": SHARE})
    yield _constructor(placewright.Proposal(1), bound=ANY_NUMBER | UNKNOWN | NONE,
                       resolution=NUMBER, interrupted=FLAG, plan=ANYTHING)  # fmt: skip
    pbqp = Pbqp.of([[1.0, 2.0], [0.5, 3.0]], [(0, 1, [[0.0, 1.0], [1.0, 0.0]])])
    options = {"deadline_s": time.perf_counter() + 3600, "exact": True}
    right = {"problem": pbqp, "branch_limit": 10, **options}
    yield Case("solve_pbqp", solve_pbqp, right, PBQP)
    yield _constructor(pbqp)
    yield Case("Pbqp.of", Pbqp.of, {"node_costs": [[1.0]], "edges": []}, {
        "node_costs": NOTHING, "edges": NOTHING})  # fmt: skip
    yield Case("Pbqp.value", pbqp.value, {"choice": [0, 1]})


LAYER_DEFAULTS = (
    *("activation_bytes", "working_bytes", "update_bytes", "tensor_bytes", "flops", "edge_source"),
    *("worker_kind", "worker_node", "memory_bytes", "framework_bytes", "begin_s", "optimizer_s"),
    *("optimizer_fixed_s", "pack_s", "gather_s", "scatter_s", "send_s", "receive_s", "message_s"),
)
PROBLEMS: dict[str, dict[str, set[str]]] = {
    "operators": {
        **dict.fromkeys(("contiguous", "dimensionless", "program_order"), FLAG),
        "calls": COUNT,
        **dict.fromkeys(("device_kinds", "operator_modules", "operator_kinds"), EMPTY),
        "output_shapes": EMPTY,
        "modules": NONE,
        **dict.fromkeys(("host_seconds_per_byte", "is_backward", "alias_of"), NOTHING),
        "micro_batch": NOTHING,
    },
    "layers": {
        "alone": SHARE - {"0"},
        **dict.fromkeys(LAYER_DEFAULTS, NOTHING),
        **dict.fromkeys(("tied", "refusals", "layer_kinds"), EMPTY),
        "variants": NONE,
        "recompute": FLAG,
        "global_batch": COUNT,
        "micro_batches": {"0", "1", "np.int64(1)"},
    },
    "samples": {
        "epochs": COUNT,
        "relay": FLAG,
        "label_mix": UNLIMITED,
        **dict.fromkeys(("sync_s", "sample_bytes"), NUMBER),
    },
    "requests": {
        "noise_seed": WHOLE,
        "duration_s": POSITIVE,
        **dict.fromkeys(("rates_per_s", "rate_variants"), VECTOR),
    },
}
PLANS: dict[str, dict[str, set[str]]] = {
    "operators": {"placement": VECTOR}
    | dict.fromkeys(("order", "call", "replica_of"), NONE | VECTOR),
    "layers": {"micro_batches": WHOLE, "stages": EMPTY, "variants": VECTOR},
    "samples": dict.fromkeys(("source", "target", "count", "sample_class"), VECTOR),
    "requests": {"policy": TEXT, "parameters": EMPTY},
}
CANDIDATE: dict[str, set[str]] = {
    "planner": TEXT,
    "value": ANY_NUMBER | UNKNOWN,
    "measured_s": UNLIMITED | UNKNOWN,
    "proposal": NONE,
}
RESULT: dict[str, set[str]] = {
    "planner": TEXT,
    "objective": TEXT,
    **dict.fromkeys(("interrupted", "own_objective"), FLAG),
    **dict.fromkeys(("value", "bound"), ANY_NUMBER),
    "candidates": EMPTY,
    "bound_names": {"{}"},
    "compile_s": NUMBER,
    **dict.fromkeys(("problem", "plan", "judgement"), ANYTHING),
}
POLICY = {
    **dict.fromkeys(("sample_every", "confirmations", "trial_steps"), COUNT),
    **dict.fromkeys(("margin", "tolerance"), NUMBER),
    **dict.fromkeys(("least_gain", "look_share"), SHARE),
}
PBQP = {"branch_limit": WHOLE, "rounds": WHOLE}


DAG = """{"nodes": [{"name": "a", "speed": 1.0}, {"name": "b", "speed": 2.0}],
"links": [{"source": "a", "target": "b", "speed": 4.0}],
"tasks": [{"name": "x", "cost": 6.0}, {"name": "y", "cost": 3}],
"dependencies": [{"source": "x", "target": "y", "size": 8.0}]}"""
MSR = """{"maxSizePerFPGA": 10.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": [
{"id": 7, "supportedOnFpga": 1, "cpuLatency": 4.0, "fpgaLatency": 1.0, "isBackwardNode": 0},
{"id": 2, "supportedOnFpga": 1, "cpuLatency": 6.0, "fpgaLatency": 2.0, "isBackwardNode": 0}],
"edges": [{"sourceId": 7, "destId": 2, "cost": 0.5}]}"""
PIPEDREAM = (
    "".join(
        f"node{k} -- ReLU -- forward_compute_time=1, backward_compute_time=2, "
        "activation_size=6.0, parameter_size=4\n"
        for k in (1, 2)
    )
    + "\tnode1 -- node2\n"
)


def builders() -> Iterator[Case]:
    """Problems by name; a builder is made anew for each call."""

    def called(method: str, /, **given: Any) -> Any:
        builder = placewright.OperatorProblem.builder(["cpu", "gpu"])
        for name in ("a", "b"):
            builder.add_operator(name, 1.0)
        return getattr(builder, method)(**given)

    right: dict[str, dict[str, Any]] = {
        "add_operator": {"name": "c", "seconds": 1.0, "resident_bytes": 0.0, "pin": None},
        "add_tensor": {"producer": "a", "consumers": "b", "nbytes": 1.0, "name": None,
                       "view_of": None},
        "add_link": {"source": "cpu", "target": "gpu", "bandwidth": 1.0, "latency_s": 0.0,
                     "channel": None, "duplex": True},
        "link_all": {"bandwidth": 1.0, "latency_s": 0.0},
        "pin": {"operator": "a", "device": "cpu"},
        "limit_memory": {"device": "cpu", "nbytes": 1.0},
    }  # fmt: skip
    accepted = {
        "name": TEXT | NONE, "seconds": UNLIMITED, "resident_bytes": NUMBER, "pin": NONE,
        "nbytes": UNLIMITED, "view_of": TEXT | NONE, "bandwidth": POSITIVE | {"inf"},
        "latency_s": NUMBER, "channel": TEXT | NONE, "duplex": FLAG, "consumers": NOTHING,
    }  # fmt: skip
    for name, given in right.items():
        call = functools.partial(called, name)
        yield Case(f"ProblemBuilder.{name}", call, given, accepted)
    given = {"devices": ["cpu"], "name": "x"}
    yield Case("OperatorProblem.builder", placewright.OperatorProblem.builder, given, {
        "devices": NOTHING | {"{}"}, "name": TEXT})  # fmt: skip
    seconds = {"a": {"cpu": 1.0, "gpu": 2.0}, "b": {"cpu": 1.0, "gpu": 2.0}}
    given = {"seconds": seconds, "edges": {("a", "b"): 1.0}, "cluster": None, "memory": None,
             "pin": None, "colocate": (), "bandwidth": 1e9, "latency_s": 0.0,
             "name": "x"}  # fmt: skip
    empty = {"{}"} | NONE
    yield Case("tasks", placewright.tasks, given, {
        "edges": empty, "memory": empty, "pin": empty, "colocate": NOTHING, "cluster": NONE,
        "bandwidth": POSITIVE | {"inf"}, "latency_s": NUMBER, "name": TEXT})  # fmt: skip
    given = {"graph": None, "cluster": "edge-duo", "nbytes": "bytes"}
    yield Case("from_networkx", placewright.from_networkx, given, {})
    given = {"layers": {"a": {"seconds": 1.0}}, "cluster": "edge-duo", "global_batch": 4,
             "name": "x"}  # fmt: skip
    yield Case("layer_chain", placewright.layer_chain, given, {
        "global_batch": COUNT, "name": TEXT})  # fmt: skip
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
    config = {"model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 4096}
    given = {"model": config | dict.fromkeys(sizes, 8), "cluster": load_cluster("edge-duo"),
             "context": 64, "users": 1, "prompt": 0, "dtype": "bf16", "objective": "latency",
             "memory_share": 0.9}  # fmt: skip
    yield Case("device_map", placewright.device_map, given, {
        "context": COUNT, "users": COUNT, "prompt": WHOLE, "dtype": NONE | {"''"},
        "objective": NONE, "memory_share": SHARE})  # fmt: skip
    tiny = _tiny("operators")
    place = dict.fromkeys(tiny.operator_names, tiny.device_names[0])
    yield Case("OperatorPlan.of", placewright.OperatorPlan.of, {
        "problem": tiny, "placement": place, "order": None}, {"order": NONE})  # fmt: skip


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def readers(folder: Path) -> Iterator[Case]:
    """Of no path that is replaced is there a file."""
    for reader in (read_graph, read_piper):
        yield Case(reader.__name__, reader, {"path": folder / "none"})
    cluster = load_cluster("edge-duo")
    kept = placewright.write(cluster, folder / "cluster.yaml")
    yield Case("read", placewright.read, {"source": kept, "problem": None}, {"problem": NONE})
    yield Case("write", placewright.write, {"value": cluster, "path": folder / "new.yaml"})
    right: dict[str, Any] = {"path": _written(folder / "dag.json", DAG)}
    yield Case("read_dag", read_dag, {**right, "links": "free"})
    right = {"path": _written(folder / "msr.json", MSR), "objective": "throughput"}
    right |= {"contiguous": False, "calls": 1, "cost_scale": 1.0}
    yield Case("read_msr", read_msr, right, {
        "contiguous": FLAG, "calls": COUNT, "cost_scale": NUMBER - {"10**30", "1e300"}
    })  # fmt: skip
    problem = read_msr(right["path"])
    yield Case("read_expert", read_expert, {"path": folder / "x", "problem": problem})
    path = _written(folder / "two.graph.txt", PIPEDREAM)
    right = {"path": path, "cluster": load_cluster("edge-duo")}
    yield Case("read_pipedream", read_pipedream, right)


def clusters(folder: Path) -> Iterator[Case]:
    """Clusters and other small objects."""
    cluster = load_cluster("edge-duo")
    yield _constructor(cluster, name=TEXT, links=EMPTY)
    yield _constructor(cluster.devices[0], name=TEXT, kind=TEXT, node=TEXT, cores=COUNT,
                       speed=POSITIVE, memory_bytes=POSITIVE | {"inf"}, peak_flops=POSITIVE | NONE,
                       memory_bandwidth=POSITIVE | NONE, disk_bandwidth=POSITIVE | NONE,
                       launch_overhead_s=NUMBER | NONE,
                       speed_by_kind={"{}"}, efficiency={"{}"}, precision=TEXT)  # fmt: skip
    yield _constructor(cluster.links[0], source=TEXT, target=TEXT, bandwidth=POSITIVE,
                       latency_s=NUMBER, channel=TEXT)  # fmt: skip
    yield _constructor(cluster.nodes[0], name=TEXT, devices=EMPTY)
    yield Case("Cluster.index", cluster.index, {"name": cluster.device_names[0]})
    yield Case("Cluster.preset", placewright.Cluster.preset, {"name": "edge-duo"})
    yield Case("Cluster.from_file", placewright.Cluster.from_file, {"path": folder / "none"})
    yield Case("Cluster.from_text", placewright.Cluster.from_text, {
        "text": "devices: [{name: a}]", "where": "here", "name": "x"
    }, {"where": TEXT, "name": TEXT})  # fmt: skip
    yield Case("load_cluster", load_cluster, {"spec": "edge-duo"})
    files = importlib.import_module("placewright.cluster.files")
    yield Case("read_cluster", files.read_cluster, {"path": folder / "none"})
    right = {"cluster": cluster, "path": folder / "cluster.yaml"}
    yield Case("write_cluster", files.write_cluster, right, {})
    generate = importlib.import_module("placewright.samples.problem").generate
    right = {"regime": "mild", "nodes": 3, "seed": 0}
    yield Case("generate", generate, right, {"seed": WHOLE, "nodes": {"1", "np.int64(1)"}})
    yield _constructor(Timeline(), check=NONE, began_s=NUMBER, plans=WHOLE,
                       **dict.fromkeys(("scalars", "events", "plan", "step_s"), NOTHING),
                       first_step=WHOLE)  # fmt: skip
    yield _constructor(ProfileTable(), entries={"{}"}, machine=TEXT,
                       file={"None", "missing file", "folder"})  # fmt: skip
    path = {"path": folder / "table.json"}
    yield Case("ProfileTable.write", ProfileTable().write, path, {})
    yield Case("ProfileTable.read", ProfileTable.read, path)
    yield Case("register_wing", register_wing, {"wing": wings()["layers"]})
    makers = ("problem_type", "plan_type", "planning", "files", "views", "command_line")
    yield _constructor(wings()["layers"], name=TEXT, unit=TEXT, places_models=FLAG,
                       families=NOTHING, language=MAKERS, explain={"None", "len"},
                       simplifier=MAKERS, conformance=MAKERS,
                       **dict.fromkeys(makers, MAKERS))  # fmt: skip


def models(folder: Path) -> Iterator[Case]:
    """Models, graphs, profiles, and what places models."""
    import torch

    model, inputs = torch.nn.Linear(3, 2), torch.ones(4, 3)
    targets = torch.zeros(4, 2)
    loss = torch.nn.functional.mse_loss
    right: dict[str, Any] = {"model": model, "inputs": inputs, "training": True, "loss_fn": loss}
    right |= {"targets": targets, "optimizer": "adam", "lr": 1e-3, "name": "x"}
    yield Case("capture", placewright.capture, right, {
        "name": TEXT, "loss_fn": NONE
    })  # fmt: skip
    graph = placewright.capture(model, inputs)
    cluster = load_cluster("edge-duo")
    yield _constructor(graph, name=TEXT, tensors=EMPTY, program=ANYTHING, modules=NONE)
    numbers = ("flops", "elementwise_flops", "bytes_accessed")
    texts = ("name", "kind", "module", "signature", "colocation", "phase")
    yield _constructor(graph.operators[0], outputs=EMPTY, uncounted=FLAG, from_weights=FLAG,
                       micro_batch=WHOLE, resident_bytes=WHOLE, **dict.fromkeys(numbers, NUMBER),
                       **dict.fromkeys(texts, TEXT))  # fmt: skip
    right = {"graph": graph, "cluster": cluster, "state": None, "method": "analytic"}
    right |= {"table": None, "objective": "latency", "links": "free", "overlap": "parallel"}
    yield Case("profile", placewright.profile, right, {"state": NONE | {"{}"}, "table": NONE})
    source = ModelSource(model, inputs, loss, targets, "x")
    yield _constructor(
        source, name=TEXT, recipe=NONE, loss_fn=CALLED, inputs=ANYTHING, targets=ANYTHING
    )
    right = {"source": source, "training": False}
    yield Case("capture_source", capture_source, right, {"training": FLAG})
    right = {"source": "zoo:alexnet", "batch": 1, "training": False, "weights": False, "seed": 0}
    yield Case("load_model", placewright.load_model, right, {
        "batch": COUNT | NONE, "training": FLAG, "weights": FLAG, "seed": WHOLE
    })  # fmt: skip
    yield Case("default_loss", default_loss, {"outputs": inputs, "targets": None},
               {"targets": ANYTHING})  # fmt: skip
    right = {"source": source, "program": graph.program, "only": None, "copy": True}
    yield Case("initial_state", initial_state, right, {
        "only": NONE | VECTOR | {"{}", "{'a': None}", "array of texts"}, "copy": FLAG})  # fmt: skip
    yield _constructor(placewright.TrainingRecipe(), lr=NUMBER, outputs=FLAG, accumulate=COUNT,
                       micro_batches=COUNT, clip_norm=POSITIVE | NONE, clip_value=POSITIVE | NONE,
                       autocast=NONE, scaler=NONE)  # fmt: skip
    problem = placewright.profile(graph, cluster, method="analytic")
    result = placewright.solve(problem, "round-robin")
    state = initial_state(source, graph.program)
    right = {"graph": graph, "cluster": cluster, "state": state, "engine": None}
    yield Case("running", lambda **given: running(**given), right, RUN, costly=True)
    right = right | {
        "result": result,
        "steps": 1,
        "warmup": 0,
        "seed": 0,
        "check": None,
        "beside": None,
    }
    yield Case("run", placewright.run, right, RUN, costly=True)
    right = {p.name: p.default for p in signature(placewright.train_samples).parameters.values()}
    right |= {"nodes": _tiny("samples"), "model": model, "loss_fn": torch.nn.MSELoss()}
    right["dataset"] = [(torch.zeros(3, 4), torch.zeros(2))] * 12
    yield Case("train_samples", placewright.train_samples, right, RUN | {
        "test": NONE, "collate": NONE, "read": CALLED}, costly=True)  # fmt: skip
    yield from _measured()
    for function in (placewright.place, placewright.train, placewright.layer_problem):
        options = {p.name: p.default for p in signature(function).parameters.values()}
        right = {**options, "model": model, "inputs": inputs, "cluster": cluster}
        yield Case(function.__name__, function, right, PLACE, costly=True)


NEEDS_WORKERS = "made by other functions; its methods need workers"
LEFT_OUT = {
    "__version__": "a text",
    **{
        name: "one that refused its text would hide the error"
        for name in placewright.__all__
        if name.endswith("Error")
    },
    "Planner": "a protocol",
    **dict.fromkeys(("PlacedModel", "PlacedSamples", "PlacedTraining"), NEEDS_WORKERS),
    **dict.fromkeys(("Testbed", "Trainer"), NEEDS_WORKERS),
}
"""Public names without a case, and why."""

RUN: dict[str, set[str]] = {
    **dict.fromkeys(("engine", "check", "beside", "recipe"), NONE),
    "state": {"{}"},
    "steps": COUNT,
    "warmup": WHOLE,
    "speed": POSITIVE,
}


SERVED = {"families": NOTHING, "servers": {"{}"}, "options": NONE}
"""What is wrong is said where the block is entered."""


def _measured() -> Iterator[Case]:
    """What runs return, and what serving is asked for."""
    check = importlib.import_module("placewright.measurement")
    yield _constructor(Check(1, check.Tolerance(), {}, 0.0), steps=WHOLE,
                       compared={"{}"}, max_abs_error=UNLIMITED, failed=EMPTY, beyond=WHOLE,
                       reference=TEXT)  # fmt: skip
    yield _constructor(Measurement((1.0,), 1.0, None, "local"), step_s=VECTOR,
                       predicted_s=UNLIMITED | UNKNOWN, rounds=EMPTY, engine=TEXT, emulated=TEXT,
                       trace=NONE, check=NONE, baseline=NONE, machine=NONE)  # fmt: skip
    yield _constructor(placewright.ServingOptions(), token=TEXT,
                       hosts=EMPTY, policy={"range"}, drain_s=UNLIMITED,
                       log={"None", "folder", "missing file"},
                       port={"0", "1", "np.int64(1)"}, origins=EMPTY,
                       grpc_port={"None", "0", "1", "np.int64(1)"}, tls_cert=NONE, tls_key=NONE,
                       **dict.fromkeys(("most_waiting", "most_batch"), COUNT))  # fmt: skip
    right = {"families": (), "servers": {"a": 1.0}, "options": None}
    yield Case("serve", placewright.serve, right, SERVED, costly=True)
    yield Case("serve_forever", serve_forever, right, RUN, costly=True)
    yield Case("connect", placewright.connect, {"url": "http://127.0.0.1:9"})


PLACE: dict[str, set[str]] = {
    "cluster": NONE,
    "targets": ANYTHING,
    "plan": NONE,
    **dict.fromkeys(("loss_fn", "progress"), CALLED),
    **dict.fromkeys(("emulate", "contiguous", "calibrate", "trials"), FLAG),
    "micro_batches": COUNT | NONE,
    **dict.fromkeys(("gpus", "table", "weights"), NONE),
    "time_limit_s": UNLIMITED | NONE,
}


def tables(
    chosen: Iterable[Case],
    values: Mapping[str, Callable[[], Any]],
    *,
    seed: int,
    seconds: float = math.inf,
    slowest_s: float = math.inf,
    watched: Iterable[Path] = (),
) -> Table:
    """Try values in an order that the seed decides, until the time is over."""
    table = Table()
    calls = [(case, name, label) for case in chosen for name in case.right for label in values]
    random.Random(seed).shuffle(calls)
    ends = time.perf_counter() + seconds
    before = _files(watched)
    for case, name, label in calls:
        if time.perf_counter() > ends:
            break
        if case.costly and _right(case, name, label):
            continue
        held, start = _memory(), time.process_time()
        kind, text = outcome(case, name, label, values[label]())
        took, grown = time.process_time() - start, _memory() - held
        if kind != "hang" and took > slowest_s:
            kind, text = "slow", f"{took:.1f} s"
        if grown > MOST_GROWTH:
            kind, text = "growth", f"{grown / 1e6:.0f} MB"
        after = _files(watched)
        if after != before and not _right(case, name, label):
            kind, text = "files", ", ".join(sorted(after ^ before))
        for path in after - before:
            Path(path).unlink()
        table.counts.setdefault(case.title, Counter())[kind] += 1
        if kind not in ("refused", "accepted"):
            table.findings.append(f"{case.title}({name}={label}): {kind}: {text}")
    return table


def _memory() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _files(folders: Iterable[Path]) -> set[str]:
    return {str(path) for folder in folders for path in folder.iterdir()}


def main(*, seconds: float = math.inf, seed: int = 0, slowest: float = 5.0, only: str = "") -> int:
    """Print a row per function, and every finding; `only`: functions with this in their name."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as made, chdir(made):
        folder = Path(made)
        chosen = [case for case in cases(folder) if only in case.title]
        limits = {"seconds": seconds, "slowest_s": slowest}
        table = tables(chosen, wrong_values(folder), seed=seed, watched=[folder], **limits)
    known = {case.title.partition(".")[0] for case in chosen} | set(LEFT_OUT)
    if not only:
        table.findings += [f"{name}: no case" for name in set(placewright.__all__) - known]
    kinds = sorted({kind for counts in table.counts.values() for kind in counts})
    print(f"{'function':24}" + "".join(f"{kind:>10}" for kind in kinds))
    for title, counts in sorted(table.counts.items()):
        print(f"{title:24}" + "".join(f"{counts[kind]:>10}" for kind in kinds))
    print(*sorted(table.findings), sep="\n")
    total = sum(sum(counts.values()) for counts in table.counts.values())
    print(f"{total} calls, {len(table.findings)} findings")
    return int(bool(table.findings))


if __name__ == "__main__":
    run(main)
