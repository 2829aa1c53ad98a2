"""Data of the files of problems and of judged plans."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from placewright.graph.files import tree_json
from placewright.operators.judgement import OperatorJudgement, end_name
from placewright.operators.pipeline import PLAIN
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.sizes import NO_VIEW, OF_RESIDENT
from placewright.planning.contract import Proposal


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
