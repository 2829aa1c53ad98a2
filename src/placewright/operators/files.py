"""Problems and plans as JSON (``.json`` or ``.json.gz``)."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from placewright.boundary import parse_json, read_text, validate
from placewright.errors import InputError, UnknownNameError
from placewright.operators.judge import OperatorJudgement
from placewright.operators.judgement import end_name
from placewright.operators.pipeline import PLAIN
from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.problem import OperatorProblem
from placewright.operators.schema import PlanFile, ProblemFile, problem_fields
from placewright.operators.views import NO_VIEW, OF_RESIDENT
from placewright.result import Result, head_json

SCHEMA_VERSION = 1


def write_problem(problem: OperatorProblem, path: str | Path) -> Path:
    """Write a problem file that `read_problem` reads back equal."""
    return _write(problem_json(problem), path)


def read_problem(path: str | Path) -> OperatorProblem:
    """Read a problem file.

    Raises
    ------
    InputError
        Names the file and the field that is wrong.
    """
    where = str(path)
    entry = validate(ProblemFile, _read(path), where=where)
    try:
        return OperatorProblem(**problem_fields(entry))
    except InputError as error:
        _refuse(error, where)
    except ValueError as error:
        raise InputError("a table has rows of unlike length", where=where, by=str(error)) from None


def problem_json(problem: OperatorProblem) -> dict[str, Any]:
    """A problem as the data of its file; ``null`` stands for infinity."""
    p = problem
    operators = p.operator_names
    return {
        "schema_version": SCHEMA_VERSION,
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
                "consumers": [
                    operators[j]
                    for j in p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]]
                ],
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
    }


def _view_json(p: OperatorProblem, k: int) -> dict[str, Any]:
    """What tensor `k` is a view of, if it is one."""
    base = int(p.alias_of[k])
    if base == OF_RESIDENT:
        return {"view_of_resident": True}
    return {} if base == NO_VIEW else {"view_of": p.tensor_names[base]}


def write_plan(result: Result, path: str | Path) -> Path:
    """Write a result's plan, with all that it takes to check the claim again."""
    return _write(result_json(result), path)


def read_plan(path: str | Path, problem: OperatorProblem) -> OperatorPlan:
    """Read the plan of a plan file for `problem`; names are what counts, not positions.

    Raises
    ------
    UnknownNameError
        An operator, a device or a key that does not exist.
    InputError
        An operator without a device, or a plan that breaks a rule of the problem.
    """
    where = str(path)
    entry = validate(PlanFile, _read(path), where=where).plan
    operator = {name: i for i, name in enumerate(problem.operator_names)}
    device = {name: d for d, name in enumerate(problem.device_names)}
    place = np.full(problem.n, -1)
    for name, target in entry.placement.items():
        place[_index("operator", name, operator, f"{where}: plan.placement")] = _index(
            "device", target, device, f"{where}: plan.placement.{name}"
        )
    if place.min() < 0:
        missing = problem.operator_names[int(place.argmin())]
        raise InputError(
            f"operator {missing!r} has no device",
            where=f"{where}: plan.placement",
            by=f"{int((place < 0).sum())} of {problem.n} are missing",
        )
    order = None
    if entry.order is not None:
        at = f"{where}: plan.order"
        order = np.array([_index("operator", name, operator, at) for name in entry.order])
    call = _calls(entry.call, operator, f"{where}: plan.call")
    copies = _copies(entry.replica_of, device, f"{where}: plan.replica_of")
    plan = OperatorPlan(place, order, entry.dispatch, entry.lower_bound_s, entry.note, call, copies)
    check_plan(problem, plan)
    return plan


def result_json(result: Result) -> dict[str, Any]:
    """What ``-f json`` prints and `write_plan` writes; infinite numbers are ``null``."""
    plan = plan_json(result.problem, result.plan, result.judgement)
    return head_json(result) | {"plan": plan}


def plan_json(
    problem: OperatorProblem, plan: OperatorPlan, judgement: OperatorJudgement
) -> dict[str, Any]:
    """A plan and how the judge played it."""
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
        "lower_bound_s": plan.lower_bound_s,
        "note": plan.note,
        "devices": list(devices),
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


def _calls(
    entry: dict[str, int] | None, operator: dict[str, int], where: str
) -> np.ndarray[Any, Any] | None:
    """The call of every operator; those that are not named run in the first."""
    if entry is None:
        return None
    call = np.zeros(len(operator), dtype=np.int64)
    for name, number in entry.items():
        call[_index("operator", name, operator, where)] = number
    return call


def _copies(
    entry: dict[str, str] | None, device: dict[str, int], where: str
) -> np.ndarray[Any, Any] | None:
    """The leader of every device; those that are not named have no copies of anything."""
    if entry is None:
        return None
    leader = np.arange(len(device))
    for name, of in entry.items():
        leader[_index("device", name, device, where)] = _index("device", of, device, where)
    return leader


def _replica_json(problem: OperatorProblem, plan: OperatorPlan) -> dict[str, Any]:
    """The copies by name, where there are any."""
    if plan.replica_of is None:
        return {}
    names, leader = problem.device_names, plan.replica_of.tolist()
    return {"replica_of": {names[d]: names[of] for d, of in enumerate(leader) if d != of}}


def _index(kind: str, name: str, index: dict[str, int], where: str) -> int:
    if name not in index:
        raise UnknownNameError(kind, name, index, where=where)
    return index[name]


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _nulls(values: np.ndarray[Any, Any]) -> list[Any]:
    """Nested lists with ``None`` for infinity."""
    boxed = values.astype(object)
    boxed[~np.isfinite(values)] = None
    nested: list[Any] = boxed.tolist()
    return nested


def _write(data: dict[str, Any], path: str | Path) -> Path:
    target = Path(path)
    text = json.dumps(data, allow_nan=False).encode() + b"\n"
    # Without the time of writing, so that the same data is the same file.
    target.write_bytes(gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)
    return target


def _read(path: str | Path) -> Any:
    where = str(path)
    if Path(path).suffix != ".gz":
        return parse_json(read_text(path), where=where)
    try:
        text = gzip.decompress(Path(path).read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError("cannot be read as gzip", where=where, by=str(error)) from None
    return parse_json(text, where=where)


def _refuse(error: InputError, where: str) -> NoReturn:
    """The same error with the file in front of its place."""
    made = type(error).__new__(type(error))
    place = f"{where}: {error.where}" if error.where else where
    InputError.__init__(made, error.what, where=place, by=error.by, hint=error.hint)
    raise made from None
