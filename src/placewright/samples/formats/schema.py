"""The files of wing 3: nodes and links, and plans."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from placewright.cluster.schema import Bandwidth, Bytes, Seconds
from placewright.errors import InputError
from placewright.io.boundary import FileModel, RefusedError
from placewright.planning.result_file import ResultFile
from placewright.samples.problem import Batches, Duplex, Overlap, Ports

MOST = 10**15
"""Of anything that is counted: what adds such numbers up stays far from the end of 64 bits."""


def _whole(value: object) -> int:
    """A whole number of samples, with a plain error for anything else."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not (0 <= number <= MOST and number == int(number)):
        error = InputError(
            f"samples are counted in whole numbers >= 0, up to {MOST:.0e}",
            by=f"got {value!r}",
            hint="give a number such as 1200",
        )
        raise RefusedError(error)
    return int(number)


Count = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int)]
Latency = Annotated[Seconds, Field(allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1, le=MOST)]
Matrix = list[list[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None]]


class NodeEntry(FileModel):
    """One node.

    Attributes
    ----------
    samples, classes
        What it holds: all together, or by class.
    seconds_per_sample, seconds_per_batch, fixed_s
        To train on one sample once; for every step on top; for every epoch on top.
    storage
        Samples that fit; unlimited where absent.
    keep
        Samples that must stay, or how many of which class; ``all`` stands for everything.
    uplink, downlink
        What all its transfers share.
    """

    name: str
    samples: Count | None = None
    classes: dict[str, Count] | None = None
    seconds_per_sample: Seconds
    seconds_per_batch: Seconds = 0.0
    fixed_s: Seconds = 0.0
    storage: Count | None = None
    keep: Count | Literal["all"] | dict[str, Count] = 0
    uplink: Bandwidth | None = None
    downlink: Bandwidth | None = None


class LinkEntry(FileModel):
    """One link, both ways unless ``duplex: false``.

    Attributes
    ----------
    bandwidth
        ``null`` where nothing limits it.
    send_bandwidth, receive_bandwidth
        What the sender's port, the receiver's port manages, where that is less.
    """

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    bandwidth: Bandwidth | None
    send_bandwidth: Bandwidth | None = None
    receive_bandwidth: Bandwidth | None = None
    latency: Latency = 0.0
    duplex: bool = True
    price_per_byte: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class PairEntry(FileModel):
    """Samples of one node that may not go to another."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")


class SampleFile(FileModel):
    """A problem of wing 3 as a file.

    Attributes
    ----------
    links, bandwidth
        Links one by one, or a table of bytes per second from row to column, 0 where there is no
        link and ``null`` where nothing limits it; with neither, nodes reach each other by their
        `uplink` and `downlink`.
    receive_bandwidth
        The table as the receivers see it, where that differs.
    latency, price_per_byte
        Of the links that do not say.
    sync_s
        Gradient exchange per epoch.
    gradient_bytes, batch
        Or its size per step, with the samples of a step: a ring all-reduce over the slowest link.
    protected
        Classes of which no sample moves.
    """

    schema_version: Literal[1] = 1
    name: str = ""
    nodes: Annotated[list[NodeEntry], Field(min_length=1)]
    links: list[LinkEntry] | None = None
    bandwidth: Matrix | None = None
    receive_bandwidth: Matrix | None = None
    latency: Latency = 0.0
    price_per_byte: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    sample_bytes: Bytes
    epochs: Positive = 1
    overlap: Overlap = Overlap.STAGGERED
    duplex: Duplex = Duplex.FULL
    batches: Batches = Batches.PROPORTIONAL
    ports: Ports = Ports.IDEAL
    relay: bool = False
    sync_s: Seconds = 0.0
    gradient_bytes: Bytes = 0.0
    batch: Positive | None = None
    label_mix: Annotated[float, Field(ge=0, le=1)] | None = None
    protected: list[str] = Field(default_factory=list)
    forbid: list[PairEntry] = Field(default_factory=list)


class MoveEntry(FileModel):
    """Samples from one node to another."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    samples: Count
    sample_class: str | None = Field(default=None, alias="class")


class PlanEntry(FileModel):
    """What a planner answered; everything but the moves is for people."""

    moves: list[MoveEntry]
    lower_bound_s: float = 0.0
    note: str = ""
    nodes: list[dict[str, Any]] = Field(default_factory=list)
    transfers: list[dict[str, Any]] = Field(default_factory=list)
    moved_samples: int = 0
    moved_bytes: float = 0.0
    played_s: float | None = None
    speed_up: float | None = None
    price_s: float = 0.0


class SamplePlanFile(ResultFile):
    """A plan with its result."""

    plan: PlanEntry
