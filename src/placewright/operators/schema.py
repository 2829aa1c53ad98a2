"""The file formats of problems and plans, as models that forbid what they do not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from placewright.boundary import FileModel
from placewright.errors import UnknownNameError
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import Dispatch
from placewright.operators.problem import Communication, Links, Objective, Overlap
from placewright.operators.views import NO_VIEW, OF_RESIDENT
from placewright.result_file import ResultFile

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Maybe = Amount | None


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
    sync_seconds_per_byte: Amount = 0.0
    cluster: list[Annotated[int, Field(ge=-1)]] = Field(default_factory=list)
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
    channel: list[list[int]]
    latency_s: list[list[Maybe]]
    seconds_per_byte: list[list[Maybe]]
    operators: list[str]
    resident_bytes: list[Amount] | None = None
    colocation: list[int] | None = None
    pinned: list[str | None] | None = None
    compute_s: list[list[Maybe]]
    tensors: list[TensorEntry]
    communication: Communication = Communication.PAIRWISE
    host_seconds_per_byte: list[Amount] | None = None
    contiguous: bool = False
    backward: list[str] = Field(default_factory=list)
    calls: Annotated[int, Field(ge=1)] = 1
    pipeline: PipelineEntry = Field(default_factory=PipelineEntry)


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
    """A plan by names; schedule and transfers are the judge's word, not input."""

    placement: dict[str, str]
    order: list[str] | None = None
    dispatch: Dispatch = Dispatch.READY
    call: dict[str, int] | None = None
    replica_of: dict[str, str] | None = None
    lower_bound_s: Amount = 0.0
    note: str = ""
    devices: tuple[str, ...] = ()
    peak_bytes: dict[str, int] = Field(default_factory=dict)
    schedule: tuple[SpanEntry, ...] = ()
    transfers: tuple[TransferEntry, ...] = ()


class PlanFile(ResultFile):
    """A plan file; only `plan` is needed to read it back."""

    plan: PlanEntry


def problem_fields(entry: ProblemFile) -> dict[str, Any]:
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
        "compute_s": _infinities(entry.compute_s).reshape(n, -1),
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
    }


def _indices(names: Sequence[str], index: dict[str, int], where: str, kind: str) -> list[int]:
    for name in names:
        if name not in index:
            raise UnknownNameError(kind, name, index, where=where)
    return [index[name] for name in names]


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
