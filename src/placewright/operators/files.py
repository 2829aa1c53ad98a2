"""Problems and plans of wing 1 as JSON or YAML, packed or not: what files hold, read and written.

Models forbid what they do not know. Reading turns names into indices and ``null`` into infinity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from placewright.errors import InputError, look_up
from placewright.graph.files import ModuleTreeEntry, tree_json
from placewright.io.boundary import FileModel, errors_in, validate
from placewright.io.stored import read_data, stem, write_data
from placewright.operators.judgement import OperatorJudgement, end_name
from placewright.operators.pipeline import PLAIN, Pipeline
from placewright.operators.placement_summary import placement_summary
from placewright.operators.plan import Dispatch, OperatorPlan, check_plan
from placewright.operators.problem import Communication, Links, Objective, OperatorProblem, Overlap
from placewright.operators.readers.dot import read_dot
from placewright.operators.readers.neural_networks import read_msr, read_pipedream
from placewright.operators.readers.task_graphs import read_dag, read_stg, read_wfcommons
from placewright.operators.sizes import NO_VIEW, OF_RESIDENT
from placewright.planning.contract import Proposal
from placewright.planning.result import Result, ResultFile, head_json
from placewright.planning.wing import Document, Format

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Maybe = Amount | None
MOST = 2**53
"""Largest whole number in a file."""

Whole = Annotated[int, Field(ge=-MOST, le=MOST)]
Number = Annotated[int, Field(ge=1, le=MOST)]


class TensorEntry(FileModel):
    """One tensor, its producer and consumers by name; of what it is a view, if it is one."""

    name: str
    producer: str
    bytes: Amount
    consumers: list[str]
    view_of: str = ""
    view_of_resident: bool = False


class PipelineEntry(FileModel):
    """Replicated stages, clusters of accelerators, passes that do not mix."""

    diffmaxima: bool = False
    replication: bool = False
    by_speed: bool = False
    sync_seconds_per_byte: Amount = 0.0
    cluster: list[Annotated[int, Field(ge=-1, le=MOST)]] = Field(default_factory=list)
    cluster_seconds_per_byte: list[Amount] = Field(default_factory=list)


class ProblemFile(FileModel):
    """A problem file; ``null`` stands for infinity, or for no pin."""

    schema_version: Literal[1] = 1
    name: str = "problem"
    objective: Objective = Objective.LATENCY
    links: Links = Links.CONTENDED
    overlap: Overlap = Overlap.PARALLEL
    devices: list[str]
    memory_bytes: list[Maybe] | None = None
    channels: list[str]
    channel: list[list[Whole]]
    latency_s: list[list[Maybe]]
    seconds_per_byte: list[list[Maybe]]
    operators: list[str]
    resident_bytes: list[Amount] | None = None
    colocation: list[Whole] | None = None
    pinned: list[str | None] | None = None
    compute_s: list[list[Maybe]]
    tensors: list[TensorEntry]
    communication: Communication = Communication.PAIRWISE
    host_seconds_per_byte: list[Amount] | None = None
    contiguous: bool = False
    backward: list[str] = Field(default_factory=list)
    calls: Number = 1
    pipeline: PipelineEntry = Field(default_factory=PipelineEntry)
    device_kinds: list[str] | None = None
    operator_modules: list[str] | None = None
    operator_kinds: list[str] | None = None
    output_shapes: list[list[Annotated[int, Field(ge=0, le=MOST)]]] | None = None
    micro_batch: list[Annotated[int, Field(ge=0, le=MOST)]] | None = None
    program_order: bool = False
    modules: ModuleTreeEntry | None = None
    dimensionless: bool = False


class SpanEntry(FileModel):
    """One operator's turn."""

    op: str
    device: str
    start_s: float
    end_s: float


class TransferEntry(FileModel):
    """One transfer."""

    tensor: str
    source: str
    target: str
    start_s: float
    end_s: float


class PlanEntry(FileModel):
    """A plan by names; schedule and transfers are for people and are not read back."""

    placement: dict[str, str]
    order: list[str] | None = None
    dispatch: Dispatch = Dispatch.READY
    call: dict[str, Whole] | None = None
    replica_of: dict[str, str] | None = None
    lower_bound_s: Amount = 0.0
    resolution_s: Amount = 0.0
    note: str = ""
    devices: tuple[str, ...] = ()
    dimensionless: bool = False
    peak_bytes: dict[str, int] = Field(default_factory=dict)
    schedule: tuple[SpanEntry, ...] = ()
    transfers: tuple[TransferEntry, ...] = ()


class PlanFile(ResultFile):
    """A plan file; only `plan` is needed to read it back."""

    plan: PlanEntry
    where: dict[str, Any] = Field(default_factory=dict)


def problem_of(entry: ProblemFile) -> OperatorProblem:
    """The problem of a file.

    Raises `InputError`, which names the field that is wrong.
    """
    try:
        return OperatorProblem(**_fields(entry))
    except ValueError as error:
        raise InputError("a table has rows of unlike length", by=str(error)) from None


def plan_of(entry: PlanEntry, problem: OperatorProblem, where: str) -> OperatorPlan:
    """The plan of a file, for `problem`; names are what counts, not positions.

    `where`: the file, for errors.

    Raises `UnknownNameError`: an operator or a device that does not exist.
    Raises `InputError`: an operator without a device, or a plan for another cluster.
    """
    operator = {name: i for i, name in enumerate(problem.operator_names)}
    device = {name: d for d, name in enumerate(problem.device_names)}
    _some_known(entry.placement, device, where)
    _most_known(entry.placement, operator, where)
    plan = OperatorPlan.of(problem, entry.placement, entry.order, where=f"{where}: plan")
    return replace(
        plan,
        dispatch=entry.dispatch,
        call=_calls(entry.call, operator, f"{where}: plan.call"),
        replica_of=_copies(entry.replica_of, device, f"{where}: plan.replica_of"),
    )


def _some_known(placement: dict[str, str], device: dict[str, int], where: str) -> None:
    """Raise if the plan is for another cluster: `--on` was forgotten, not a name misspelt."""
    used = dict.fromkeys(placement.values())
    if used and not any(get_close_matches(name, device, n=1, cutoff=0.5) for name in used):
        raise InputError(
            "is a plan for other devices",
            where=where,
            by=f"it has {_listed(used)}; the problem has {_listed(device)}",
            hint="give the plan's cluster with --on beside a model or a graph, or plan again "
            "for these devices",
        )


def _most_known(placement: dict[str, str], operator: dict[str, int], where: str) -> None:
    """Raise if the plan is of another graph: of a training step, say, and no name misspelt."""
    unknown = [name for name in placement if name not in operator]
    missing = [name for name in operator if name not in placement]
    if len(unknown) + len(missing) > 2 and (unknown or 2 * len(missing) > len(operator)):
        raise InputError(
            "is a plan of another graph",
            where=where,
            by=f"{len(unknown)} of its {len(placement)} operators are not in the graph, and "
            f"{len(missing)} of {len(operator)} there not in it: {_listed([*unknown, *missing])}",
            hint="give what the plan was made with: --training for the plan of a training step, "
            "the model, the batch",
        )


def _listed(names: Iterable[str]) -> str:
    first = list(names)
    return ", ".join(first[:8]) + ", ..." * (len(first) > 8)


def _calls(
    entry: dict[str, int] | None, operator: dict[str, int], where: str
) -> np.ndarray[Any, Any] | None:
    """The call of every operator; those that are not named run in the first."""
    if entry is None:
        return None
    call = np.zeros(len(operator), dtype=np.int64)
    for name, number in entry.items():
        call[look_up("operator", name, operator, where)] = number
    return call


def _copies(
    entry: dict[str, str] | None, device: dict[str, int], where: str
) -> np.ndarray[Any, Any] | None:
    """The leader of every device; those that are not named have no copies of anything."""
    if entry is None:
        return None
    leader = np.arange(len(device))
    for name, of in entry.items():
        copy = look_up("device", name, device, where)
        leader[copy] = look_up("device", of, device, where)
    return leader


def _fields(entry: ProblemFile) -> dict[str, Any]:
    """The arguments of `OperatorProblem`."""
    n, m = len(entry.operators), len(entry.devices)
    operator = {name: i for i, name in enumerate(entry.operators)}
    device = {name: d for d, name in enumerate(entry.devices)}
    tensors = entry.tensors
    readers = [_indices(t.consumers, operator, f"tensor {t.name!r}", "operator") for t in tensors]
    producers = [t.producer for t in tensors]
    return {
        "operator_names": tuple(entry.operators),
        "device_names": tuple(entry.devices),
        "compute_s": _infinities(entry.compute_s),
        "tensor_names": tuple(t.name for t in tensors),
        "tensor_producer": _indices(producers, operator, "tensors", "operator"),
        "tensor_bytes": [t.bytes for t in tensors],
        "consumer_offsets": np.cumsum([0, *map(len, readers)]),
        "consumers": [j for some in readers for j in some],
        "latency_s": _infinities(entry.latency_s),
        "seconds_per_byte": _infinities(entry.seconds_per_byte),
        "channel": entry.channel,
        "channel_names": tuple(entry.channels),
        "resident_bytes": np.zeros(n) if entry.resident_bytes is None else entry.resident_bytes,
        "memory_bytes": _infinities(entry.memory_bytes or [None] * m),
        "colocation": np.arange(n) if entry.colocation is None else entry.colocation,
        "pinned": _pins(entry.pinned or [None] * n, device),
        "objective": entry.objective,
        "links": entry.links,
        "overlap": entry.overlap,
        "name": entry.name,
        "communication": entry.communication,
        "host_seconds_per_byte": np.zeros(m)
        if entry.host_seconds_per_byte is None
        else entry.host_seconds_per_byte,
        "contiguous": entry.contiguous,
        "is_backward": np.isin(
            np.arange(n), _indices(entry.backward, operator, "backward", "operator")
        ),
        "calls": entry.calls,
        "alias_of": _aliases(tensors),
        "pipeline": Pipeline(**entry.pipeline.model_dump()),
        "device_kinds": tuple(entry.device_kinds or ()),
        "operator_modules": tuple(entry.operator_modules or ()),
        "operator_kinds": tuple(entry.operator_kinds or ()),
        "output_shapes": tuple(map(tuple, entry.output_shapes or ())),
        "micro_batch": np.array(entry.micro_batch or (), dtype=np.int64),
        "program_order": entry.program_order,
        "dimensionless": entry.dimensionless,
        "modules": None if entry.modules is None else entry.modules.tree(),
    }


def _indices(names: Sequence[str], index: dict[str, int], where: str, kind: str) -> list[int]:
    return [look_up(kind, name, index, where) for name in names]


def _aliases(tensors: Sequence[TensorEntry]) -> list[int]:
    index = {tensor.name: k for k, tensor in enumerate(tensors)}
    _indices([t.view_of for t in tensors if t.view_of], index, "tensors: view_of", "tensor")
    return [
        index[t.view_of] if t.view_of else OF_RESIDENT if t.view_of_resident else NO_VIEW
        for t in tensors
    ]


def _pins(names: Sequence[str | None], index: dict[str, int]) -> list[int]:
    given = [name for name in names if name is not None]
    _indices(given, index, "pinned", "device")
    return [-1 if name is None else index[name] for name in names]


def _infinities(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Nested lists as floats, ``None`` as infinity."""
    array = np.array(values, dtype=np.float64)
    return np.where(np.isnan(array), np.inf, array)


def problem_json(problem: OperatorProblem) -> dict[str, Any]:
    """A problem as JSON data that `read_problem` reads back equal; ``null`` is infinity."""
    p = problem
    operators = p.operator_names
    return {
        "schema_version": 1,
        "name": p.name,
        "objective": str(p.objective),
        "links": str(p.links),
        "overlap": str(p.overlap),
        "devices": list(p.device_names),
        "memory_bytes": _nulls(p.memory_bytes),
        "channels": list(p.channel_names),
        "channel": p.channel.tolist(),
        "latency_s": _nulls(p.latency_s),
        "seconds_per_byte": _nulls(p.seconds_per_byte),
        "operators": list(operators),
        "resident_bytes": p.resident_bytes.tolist(),
        "colocation": p.colocation.tolist(),
        "pinned": [p.device_names[d] if d >= 0 else None for d in p.pinned.tolist()],
        "compute_s": _nulls(p.compute_s),
        "tensors": [
            {
                "name": p.tensor_names[k],
                "producer": operators[p.tensor_producer[k]],
                "bytes": float(p.tensor_bytes[k]),
                "consumers": [operators[j] for j in p.readers(k)],
                **_view_json(p, k),
            }
            for k in range(p.t)
        ],
        "communication": str(p.communication),
        "host_seconds_per_byte": p.host_seconds_per_byte.tolist(),
        "contiguous": p.contiguous,
        "backward": [operators[i] for i in np.flatnonzero(p.is_backward)],
        "calls": p.calls,
        **({} if p.pipeline == PLAIN else {"pipeline": asdict(p.pipeline)}),
        **_known_json(p),
    }


def _known_json(p: OperatorProblem) -> dict[str, Any]:
    """Kinds, modules, output shapes and the like, where they are known or not the usual."""
    known: dict[str, Any] = {}
    for key in ("device_kinds", "operator_modules", "operator_kinds"):
        if getattr(p, key):
            known[key] = list(getattr(p, key))
    if p.output_shapes:
        known["output_shapes"] = [list(shape) for shape in p.output_shapes]
    if p.micro_batch.any():
        known["micro_batch"] = p.micro_batch.tolist()
    known |= {key: True for key in ("program_order", "dimensionless") if getattr(p, key)}
    return known if p.modules is None else known | {"modules": tree_json(p.modules)}


def _view_json(p: OperatorProblem, k: int) -> dict[str, Any]:
    """The base of tensor `k`, if it is a view."""
    base = int(p.alias_of[k])
    if base == OF_RESIDENT:
        return {"view_of_resident": True}
    return {} if base == NO_VIEW else {"view_of": p.tensor_names[base]}


def plan_json(
    problem: OperatorProblem,
    plan: OperatorPlan,
    judgement: OperatorJudgement,
    proposal: Proposal[OperatorPlan] | None = None,
) -> dict[str, Any]:
    """A plan, its schedule by the judge, and what its planner proved."""
    known = proposal or Proposal(plan)
    names, devices, moves = problem.operator_names, problem.device_names, judgement.transfers
    place = [devices[d] for d in plan.placement]
    ops = np.argsort(judgement.op_start_s, kind="stable").tolist()
    start, end = judgement.op_start_s.tolist(), judgement.op_end_s.tolist()
    return {
        "placement": dict(zip(names, place, strict=True)),
        "order": None if plan.order is None else [names[i] for i in plan.order],
        "dispatch": str(plan.dispatch),
        "call": None if plan.call is None else dict(zip(names, plan.call.tolist(), strict=True)),
        **_replica_json(problem, plan),
        "lower_bound_s": known.bound or 0.0,
        "resolution_s": known.resolution,
        "note": "interrupted" if known.interrupted else known.note,
        "devices": list(devices),
        **({"dimensionless": True} if problem.dimensionless else {}),
        "peak_bytes": dict(zip(devices, judgement.peak_bytes.tolist(), strict=True)),
        "schedule": [
            {"op": names[i], "device": place[i], "start_s": start[i], "end_s": end[i]} for i in ops
        ],
        "transfers": [
            {
                "tensor": problem.tensor_names[k],
                "source": end_name(problem, a),
                "target": end_name(problem, b),
                "start_s": from_s,
                "end_s": until_s,
            }
            for k, a, b, from_s, until_s in zip(
                moves.tensor.tolist(),
                moves.source.tolist(),
                moves.target.tolist(),
                moves.start_s.tolist(),
                moves.end_s.tolist(),
                strict=True,
            )
        ],
    }


def _replica_json(problem: OperatorProblem, plan: OperatorPlan) -> dict[str, Any]:
    """The copies by name, where there are any."""
    if plan.replica_of is None:
        return {}
    names, leader = problem.device_names, plan.replica_of.tolist()
    return {"replica_of": {names[d]: names[of] for d, of in enumerate(leader) if d != of}}


def _nulls(values: np.ndarray[Any, Any]) -> list[Any]:
    """Nested lists with ``None`` for infinity."""
    boxed = values.astype(object)
    boxed[~np.isfinite(values)] = None
    nested: list[Any] = boxed.tolist()
    return nested


problem_document = Document("problem", ("compute_s",), ProblemFile)
plan_document = Document("plan", ("plan.placement",), PlanFile)


formats = (
    Format("dag", "a task graph on heterogeneous nodes", read_dag),
    Format("dot", "a directed graph of Graphviz with seconds and bytes", read_dot),
    Format("stg", "a task graph of the Standard Task Graph Set", read_stg),
    Format("wfcommons", "a scientific workflow with measured times", read_wfcommons),
    Format("msr", "accelerators and CPUs around host memory", read_msr),
    Format("pipedream", "a profiled training graph", read_pipedream),
)


def read_problem(path: str | Path) -> OperatorProblem:
    """Read a problem file.

    Raises `InputError`, which names the file and the field that is wrong.
    """
    data, text = read_data(path)
    return problem_from(data, where=str(path), name=stem(path), text=text)


def problem_from(data: Any, *, where: str, name: str, text: str = "") -> OperatorProblem:
    """The problem of a file's data; `text`: its YAML source, to name lines in errors."""
    entry = validate(ProblemFile, data, where=where, text=text)
    with errors_in(where):
        return problem_of(entry)


def write_problem(problem: OperatorProblem, path: str | Path) -> Path:
    """Write a problem file that `read_problem` reads back equal."""
    return write_data(problem_json(problem), path)


def read_proposal(path: str | Path, problem: OperatorProblem) -> Proposal[OperatorPlan]:
    """Read a plan and what was proved about it, if that was for the very same problem.

    Names are what counts, not positions.
    Raises `UnknownNameError`: an operator, a device or a key that does not exist.
    Raises `InputError`: an operator without a device, or a plan that breaks a rule of the problem.
    Raises `InfeasibleError`: an operator on a device that cannot run it.
    """
    where = str(path)
    data, text = read_data(path)
    entry = validate(PlanFile, data, where=where, text=text)
    plan = plan_of(entry.plan, problem, where)
    with errors_in(where):
        check_plan(problem, plan)
    known = entry.plan
    if entry.problem_hash != problem.hash() or known.lower_bound_s <= 0:
        return Proposal(plan, note=known.note)
    return Proposal(plan, known.lower_bound_s, known.resolution_s, note=known.note)


def result_json(result: Result) -> dict[str, Any]:
    """A result as ``-f json`` prints it and `Result.save` writes it; infinity is ``null``."""
    plan = plan_json(result.problem, result.plan, result.judgement, result.proposal)
    summary = placement_summary(result.judgement, result.plan).as_json()
    return head_json(result) | {"where": summary, "plan": plan}
