"""The files of wing 1, problems and plans, as models that forbid what they do not know."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from placewright.graph.files import ModuleTreeEntry
from placewright.io.boundary import FileModel
from placewright.operators.plan import Dispatch
from placewright.operators.problem import Communication, Links, Objective, Overlap
from placewright.planning.result_file import ResultFile

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
