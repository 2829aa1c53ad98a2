"""A checked file becomes a problem or a plan: names become indices, ``null`` infinity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.operators.formats.schema import PlanEntry, ProblemFile, TensorEntry
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import OperatorPlan, known_index
from placewright.operators.problem import OperatorProblem
from placewright.operators.sizes import NO_VIEW, OF_RESIDENT


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
        call[known_index("operator", name, operator, where)] = number
    return call


def _copies(
    entry: dict[str, str] | None, device: dict[str, int], where: str
) -> np.ndarray[Any, Any] | None:
    """The leader of every device; those that are not named have no copies of anything."""
    if entry is None:
        return None
    leader = np.arange(len(device))
    for name, of in entry.items():
        copy = known_index("device", name, device, where)
        leader[copy] = known_index("device", of, device, where)
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
    return [known_index(kind, name, index, where) for name in names]


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
