"""Problems and plans of wing 2 as YAML or JSON, packed or not: see `placewright.io.stored`.

Piper's inputs (``piper:FILE``), layers with variants, are read as a problem of throughput. The
format is that of msr-fiddle/piper (NeurIPS 2021, arXiv 2106.11731): ``nodes`` with ``TMPCs`` (costs
by tensor degree and variant), ``edges``, ``maxDevices``, ``maxMemoryPerDevice``, ``bandwidth``,
``mbsInBatch``. The order of the layers keeps cuts small: see `topological`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import Field, create_model

from placewright.errors import InputError, PlacewrightError, check_known
from placewright.io.arguments import Unlimited, checked
from placewright.io.boundary import FileModel, errors_in, placed, validate
from placewright.io.stored import finite, read_data, stem, write_data
from placewright.layers.judge import LayerJudgement
from placewright.layers.plan import LayerPlan, Replica, Schedule, Stage, Strategy, check_plan
from placewright.layers.problem import LayerProblem, Objective, Refusal, Training, Variants
from placewright.layers.workers import Link
from placewright.numerics.arrays import FloatArray, IntArray, check_names
from placewright.planning.contract import Proposal
from placewright.planning.result import Result, ResultFile, head_json
from placewright.planning.wing import Document, Format

T = TypeVar("T")

MOST_WORKERS = 65_536
"""Workers have names, memories and places in a plan: of more the problem itself takes gigabytes."""


@checked
def read_piper(
    path: str | Path, *, devices: int | None = None, memory_bytes: Unlimited | None = None
) -> LayerProblem:
    """The problem of a file, with other devices or memory where they are given.

    Raises `InputError`: names the file, and the field that is missing or wrong.
    """
    where = str(path)
    data, _ = read_data(path)
    try:
        return _problem(data, devices, memory_bytes, where, stem(path))
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        text = f"a field has a value that cannot be read: {error!r}"
        raise InputError(text, where=where) from None
    except PlacewrightError as error:
        raise placed(error, where) from None


def _problem(
    data: Any, devices: int | None, memory_bytes: float | None, where: str, name: str
) -> LayerProblem:
    listed = field(data, "nodes", where)
    nodes = {int(node["id"]): node for node in listed}
    check_names("node", (str(int(node["id"])) for node in listed), where)
    edges = [
        (int(e["sourceId"]), int(e["destId"]), _number(e, "communicationCost", where))
        for e in field(data, "edges", where)
    ]
    order = topological(list(nodes), [(a, b) for a, b, _ in edges], where)
    at = {node: i for i, node in enumerate(order)}
    degrees = tuple(sorted({int(t) for node in nodes.values() for t in node["TMPCs"]} | {1}))
    names = tuple(
        dict.fromkeys(
            str(v["id"]) for node in nodes.values() for vs in node["TMPCs"].values() for v in vs
        )
    )
    shape = (len(order), len(degrees), len(names))
    columns = {
        key: np.full(shape, math.inf)
        for key in ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB")
    }
    across = (len(edges), len(degrees), len(names))
    sync_in, sync_out = np.zeros(across), np.zeros(across)
    into = {(a, b): e for e, (a, b, _) in enumerate(edges)}
    for node_id, node in nodes.items():
        for degree, variants in node["TMPCs"].items():
            t = degrees.index(int(degree))
            for v in variants:
                cell = (at[node_id], t, names.index(str(v["id"])))
                for key, table in columns.items():
                    table[cell] = _number(v, key, f"{where}: node {node_id}")
                for other in (sync := v["syncTimeFw"]):
                    at_edge = into[int(other), node_id], t, cell[2]
                    sync_in[at_edge] = _number(sync, other, f"{where}: node {node_id}: syncTimeFw")
                for other in (sync := v["syncTimeBw"]):
                    at_edge = into[node_id, int(other)], t, cell[2]
                    sync_out[at_edge] = _number(sync, other, f"{where}: node {node_id}: syncTimeBw")
    given = devices if devices is not None else field(data, "maxDevices", where)
    k = count(given, "devices", 1, MOST_WORKERS)
    room = _number(data, "maxMemoryPerDevice", where) if memory_bytes is None else memory_bytes
    parameters = np.where(np.isfinite(columns["parameterSize"]), columns["parameterSize"], np.inf)
    parameters = parameters.min(axis=2) / 4.0
    if not np.isfinite(parameters[:, 0]).all():
        raise InputError("a node has no costs at tensor degree 1", where=where)
    tables = np.zeros((1, len(degrees), 1, len(order)))
    bandwidth = _number(data, "bandwidth", where)
    outputs = np.zeros((len(order), len(degrees)))
    for a, _, sent in edges:
        outputs[at[a]] = np.maximum(outputs[at[a]], sent)
    return LayerProblem(
        layer_names=tuple(f"{node}.{nodes[node].get('name', 'layer')}" for node in order),
        parameters=parameters,
        output_bytes=outputs,
        forward_s=tables,
        backward_s=tables,
        degrees=degrees,
        edge_source=np.array([at[a] for a, _, _ in edges]),
        edge_target=np.array([at[b] for _, b, _ in edges]),
        edge_bytes=np.array([sent for _, _, sent in edges]),
        worker_names=tuple(f"device{w}" for w in range(k)),
        memory_bytes=np.full(k, room),
        links=(Link.linear(bandwidth),),
        link_index=np.zeros((1, 1), dtype=np.int64),
        global_batch=count(field(data, "mbsInBatch", where), "mbsInBatch", 1),
        variants=Variants(
            names,
            columns["timePerSample"],
            columns["parameterSize"],
            columns["memoryUsageA"],
            columns["memoryUsageB"],
            sync_in,
            sync_out,
            bandwidth,
            count(field(data, "mbsInBatch", where), "mbsInBatch", 1),
        ),
        objective=Objective.THROUGHPUT,
        name=name,
    )


def _number(entry: Any, key: str, where: str) -> float:
    """A field that is a number of at least 0."""
    return amount(field(entry, key, where), f"{where}: {key}", needed=True)


def topological(ids: list[int], edges: list[tuple[int, int]], where: str) -> list[int]:
    """A topological order in which layers come as late as possible, ties by the file's order.

    Breadth first from the last layers backwards: branches that join are then next to each other,
    and intervals of the order cut few edges.
    """
    sources: dict[int, list[int]] = {i: [] for i in ids}
    waiting = dict.fromkeys(ids, 0)
    for a, b in edges:
        if a not in sources or b not in sources:
            raise InputError(f"an edge from {a} to {b} names a node that is missing", where=where)
        sources[b].append(a)
        waiting[a] += 1
    order = [i for i in ids if waiting[i] == 0]
    for node in order:  # grows while it is read
        for a in sources[node]:
            waiting[a] -= 1
            if waiting[a] == 0:
                order.append(a)
    if len(order) < len(ids):
        raise InputError("the edges have a cycle", where=where)
    return order[::-1]


def field(data: Any, path: str, where: str) -> Any:
    """The value at a dotted path.

    Raises `InputError`: there is none; names the first key that is missing.
    """
    for key in path.split("."):
        if not isinstance(data, Mapping) or key not in data:
            raise InputError(f"{key!r} is missing", where=f"{where}: {path}")
        data = data[key]
    return data


def count(value: Any, where: str, least: int = 0, most: int = 1_000_000) -> int:
    """A whole number of at least `least` and at most `most`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value % 1 != 0:  # so are infinity and NaN
        raise InputError("must be a whole number", where=where, by=f"got {value!r}"[:40])
    if not least <= value <= most:
        limit = f"at least {least}" if value < least else f"at most {most}"
        raise InputError(f"must be {limit}", where=where, by=f"got {value!r}"[:40])
    return int(value)


def amount(value: Any, where: str, *, needed: bool = False) -> float:
    """A number of at least 0; NaN for null, which is refused where a number is `needed`."""
    if value is None and not needed:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InputError("must be a number >= 0", where=where, by=f"got {value!r}")
    return float(value)


Number = float | Literal["inf"] | None
"""``"inf"`` where nothing limits it, ``null`` where it is not known."""


def _entry(name: str, text: str, kind: Any, **given: Any) -> type[FileModel]:
    """What a file has for a dataclass: lists for arrays and tuples, and else the same fields.

    `given`: fields that are there in another form, or only there, as pydantic takes them.
    """
    hints = get_type_hints(kind)
    own = {item.name: (_in_file(item, hints[item.name]), _default(item)) for item in fields(kind)}
    return create_model(name, __base__=FileModel, __doc__=text, **own | given)


def _in_file(item: dataclasses.Field[Any], kind: Any) -> Any:
    if "axes" not in item.metadata:
        return list[get_args(kind)[0]] if get_origin(kind) is tuple else kind  # type: ignore[misc]
    found: Any = int if kind == IntArray else Number
    for _ in item.metadata["axes"]:
        found = list[found]
    return found


def _default(item: dataclasses.Field[Any]) -> Any:
    made = item.default_factory
    usual = item.default if made is dataclasses.MISSING else made()
    if usual is dataclasses.MISSING:
        return ...
    listed = isinstance(usual, tuple | np.ndarray)
    return Field(default_factory=lambda: list(usual)) if listed else usual


TrainingEntry = _entry(
    "TrainingEntry",
    "What the framework keeps, sends and waits for: see `placewright.layers.problem.Training`.",
    Training,
    bucket_bytes=(Number, "inf"),
)
_link = _entry(
    "LinkEntry", "Times of messages by pairs of workers that send at once and by size.", Link
)
_refusal = _entry("RefusalEntry", "A strategy that a layer cannot have.", Refusal)
_variants = _entry(
    "VariantsEntry", "Costs of layers by degree and variant, for throughput.", Variants
)

LayerFile = _entry(
    "LayerFile",
    "A problem of wing 2 as a file: the fields of `placewright.layers.problem.LayerProblem`.",
    LayerProblem,
    schema_version=(Literal[1], 1),
    sizes=(list[Number], ...),
    links=(list[_link], ...),  # type: ignore[valid-type]
    training=(TrainingEntry, Field(default_factory=TrainingEntry)),
    refusals=(list[_refusal], Field(default_factory=list)),  # type: ignore[valid-type]
    variants=(_variants | None, None),
)


class ReplicaEntry(FileModel):
    """Workers that hold one copy of a stage, and their samples of every micro-batch."""

    workers: list[str]
    share: int


class StageEntry(FileModel):
    """Layers of a stage by name, inclusive.

    The last two fields are for people; strategies in them must be those of the stage.
    """

    first_layer: str
    last_layer: str
    replicas: list[ReplicaEntry]
    tensor_degree: int = 1
    strategies: list[Strategy] = Field(default_factory=list)
    zero_stage: int = 0
    recompute: bool = False
    layers: int = 0
    layer_strategies: dict[str, Strategy] = Field(default_factory=dict)


class LayerPlanEntry(FileModel):
    """What a planner answered; `workers` and the rest are for people."""

    stages: list[StageEntry]
    micro_batches: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    variants: list[int] = Field(default_factory=list)
    lower_bound_s: float = 0.0
    note: str = ""
    left_out: list[str] = Field(default_factory=list)
    workers: list[dict[str, Any]] = Field(default_factory=list)
    peak_memory_bytes: float | None = None
    step_s: float | None = None


class LayerPlanFile(ResultFile):
    """A plan with its result."""

    plan: LayerPlanEntry


def number(value: Number) -> float:
    """What a file's number means."""
    if value is None:
        return math.nan
    return math.inf if value == "inf" else float(value)


def numbers(values: Any) -> Any:
    """`number` of nested lists."""
    return [numbers(v) for v in values] if isinstance(values, list) else number(values)


def written(values: Any) -> Any:
    """Nested lists of numbers as a file holds them."""
    if isinstance(values, list):
        return [written(v) for v in values]
    if math.isnan(values):
        return None
    return "inf" if math.isinf(values) else values


problem_document = Document("layers", ("layer_names", "forward_s"), LayerFile)
plan_document = Document("layers-plan", ("plan.stages", "plan.schedule"), LayerPlanFile)


formats = (Format("piper", "layers with variants, as Piper has them", read_piper),)


def read_problem(path: str | Path) -> LayerProblem:
    """Read layers, workers and links.

    Raises `InputError`, which names the file, the line or the field, and what is wrong.
    """
    data, text = read_data(path)
    return problem_from(data, where=str(path), name=stem(path), text=text)


def problem_from(data: Any, *, where: str, name: str, text: str = "") -> LayerProblem:
    """The problem of a file's data; `text`: its YAML source, to name lines in errors."""
    entry = validate(LayerFile, data, where=where, text=text)
    with errors_in(where):
        given = entry.model_dump(exclude={"schema_version"})
        return _problem_of(given, given["name"] if "name" in data else name)


def _problem_of(given: Mapping[str, Any], name: str) -> LayerProblem:
    training = given["training"]
    links = (_built(Link, x, f"links[{k}].") for k, x in enumerate(given["links"]))
    variants = given["variants"]
    return _built(
        LayerProblem,
        given,
        "",
        name=name,
        links=tuple(links),
        training=Training(**training | {"bucket_bytes": number(training["bucket_bytes"])}),
        refusals=tuple(Refusal(**each) for each in given["refusals"]),
        variants=None if variants is None else _built(Variants, variants, "variants."),
    )


def _built(kind: Callable[..., T], data: Mapping[str, Any], where: str, **given: Any) -> T:
    """A dataclass of what a file holds, whose lists become arrays and tuples."""
    made = dict(data) | given
    for item in fields(kind):  # type: ignore[arg-type]
        value = made[item.name]
        if isinstance(value, list):
            named = str(item.type).startswith("tuple")
            made[item.name] = tuple(value) if named else _table(value, where + item.name)
    return kind(**made)


def _table(values: Any, where: str) -> FloatArray:
    try:
        return np.array(numbers(values), dtype=np.float64)
    except ValueError:
        raise InputError("rows of a table must be equally long", where=where) from None


def write_problem(problem: LayerProblem, path: str | Path) -> Path:
    """Write a file that `read_problem` reads back equal."""
    return write_data(problem_json(problem), path)


def problem_json(p: LayerProblem) -> dict[str, Any]:
    """A problem as the data of its file."""
    return {"schema_version": 1, **_plain(p)}


def _plain(value: Any) -> Any:
    """A field, and what is in it, as lists, mappings, numbers and text."""
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, np.ndarray):
        return written(value.tolist())
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, StrEnum):
        return str(value)
    return written(value) if isinstance(value, float) else value


def read_proposal(path: str | Path, problem: LayerProblem) -> Proposal[LayerPlan]:
    """Read a plan and what was proved about it, if that was for the very same problem.

    Raises `InputError`: a layer or worker that does not exist, or stages that are no plan.
    """
    where = str(path)
    data, text = read_data(path)
    entry = validate(LayerPlanFile, data, where=where, text=text)
    plan = LayerPlan(
        tuple(
            _stage(x, problem, f"{where}: plan.stages[{k}]")
            for k, x in enumerate(entry.plan.stages)
        ),
        entry.plan.micro_batches,
        entry.plan.schedule,
        tuple(entry.plan.variants),
    )
    with errors_in(where):
        check_plan(problem, plan)
    bound = entry.plan.lower_bound_s
    same = entry.problem_hash == problem.hash() and bound > 0
    return Proposal(plan, bound if same else None, note=entry.plan.note)


def _stage(entry: StageEntry, p: LayerProblem, where: str) -> Stage:
    layer = {name: i for i, name in enumerate(p.layer_names)}
    worker = {name: i for i, name in enumerate(p.worker_names)}
    for name in (entry.first_layer, entry.last_layer):
        check_known("layer", name, layer, where=where)
    for name in (x for r in entry.replicas for x in r.workers):
        check_known("worker", name, worker, where=where)
    stage = Stage(
        layer[entry.first_layer],
        layer[entry.last_layer],
        tuple(Replica(tuple(worker[n] for n in r.workers), r.share) for r in entry.replicas),
        entry.tensor_degree,
        tuple(entry.strategies),
        entry.zero_stage,
        entry.recompute,
    )
    for name, strategy in entry.layer_strategies.items():
        check_known("layer", name, layer, where=f"{where}.layer_strategies")
        at = layer[name] - stage.first_layer
        held = layer[name] in stage.layers and at < len(stage.strategies or stage.layers)
        if held and stage.strategy(layer[name]) is not strategy:
            raise InputError(
                f"layer {name!r} has another strategy in `strategies`",
                where=f"{where}.layer_strategies",
                by=f"{strategy} here, {stage.strategy(layer[name])} there",
                hint="change `strategies`, one per layer of the stage in their order, and leave "
                "`layer_strategies` out",
            )
    return stage


def result_json(result: Result) -> dict[str, Any]:
    """What ``-f json`` prints and `Result.save` writes; infinite numbers are ``null``."""
    return head_json(result) | {"plan": plan_json(result.judgement, result.proposal)}


def plan_json(
    judgement: LayerJudgement, proposal: Proposal[LayerPlan] | None = None
) -> dict[str, Any]:
    """A plan and how the judge saw it."""
    p, plan = judgement.problem, judgement.plan
    known = proposal or Proposal(plan)
    used = plan.workers
    return {
        "stages": [_stage_json(p, stage) for stage in plan.stages],
        "micro_batches": plan.micro_batches,
        "schedule": str(plan.schedule),
        "variants": list(plan.variants),
        "lower_bound_s": known.bound or 0.0,
        "note": "interrupted" if known.interrupted else known.note,
        "left_out": [name for w, name in enumerate(p.worker_names) if w not in used],
        "step_s": judgement.value if p.variants is None else None,
        "peak_memory_bytes": judgement.peak_memory_bytes,
        "workers": [
            {
                "name": p.worker_names[w],
                "stage": next(s for s, x in enumerate(plan.stages) if w in x.workers),
                "peak_bytes": finite(float(judgement.held_bytes[w])),
                "memory_bytes": finite(float(p.memory_bytes[w])),
            }
            for w in used
        ],
    }


def _stage_json(p: LayerProblem, stage: Stage) -> dict[str, Any]:
    return {
        "first_layer": p.layer_names[stage.first_layer],
        "last_layer": p.layer_names[stage.last_layer],
        "layers": len(stage.layers),
        "replicas": [
            {"workers": [p.worker_names[w] for w in r.workers], "share": r.share}
            for r in stage.replicas
        ],
        "tensor_degree": stage.tensor_degree,
        "strategies": [str(strategy) for strategy in stage.strategies],
        "layer_strategies": {
            p.layer_names[layer]: str(stage.strategy(layer)) for layer in stage.layers
        },
        "zero_stage": stage.zero_stage,
        "recompute": stage.recompute,
    }
