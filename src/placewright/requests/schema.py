"""The files of wing 4: a service with its requests, and plans."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from placewright.cluster.schema import Bandwidth, Bytes, Seconds
from placewright.io.boundary import FileModel
from placewright.planning.result_file import ResultFile

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[Seconds, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class VariantFileEntry(FileModel):
    """A variant of a family.

    `candidate`: not there yet: ``plan --target-success`` says what it would add, nothing else sees
    it.
    """

    name: str
    family: str
    accuracy: Share
    memory: Bytes = 0.0
    candidate: bool = False


class ServerFileEntry(FileModel):
    """A server.

    Attributes
    ----------
    latency
        Variant -> seconds of batches of 1, 2, ... requests; ``null``: cannot run this size. A
        variant that is missing cannot run here.
    load
        Variant -> seconds to load it; 0 where it is missing.
    memory
        For loaded variants; unlimited where absent.
    bandwidth, round_trip
        Access link; unlimited and 0 where absent.
    candidate
        Not there yet: ``plan --target-success`` says what it would add, nothing else sees it.
    """

    name: str
    latency: dict[str, list[Seconds | None]]
    load: dict[str, Seconds] = Field(default_factory=dict)
    memory: Bytes | None = None
    bandwidth: Annotated[Bandwidth, Field(gt=0)] | None = None
    round_trip: Seconds = 0.0
    candidate: bool = False


class ArrivalEntry(FileModel):
    """An arrival process of one family.

    Attributes
    ----------
    process
        ``poisson``; ``mmpp`` and ``gamma`` are burstier at the same mean; ``azure`` takes the
        times of a trace file, sped up to the rate.
    deadline
        Seconds after arrival; or uniform between two.
    min_accuracy
        One, or one of several at random.
    """

    family: str
    rate: Positive
    process: Literal["poisson", "mmpp", "gamma", "azure"] = "poisson"
    deadline: Seconds | tuple[Finite, Finite]
    min_accuracy: Share | list[Share] = 0.0
    time_sensitivity: Share = 0.5
    accuracy_sensitivity: Share = 0.5
    input_bytes: Bytes = 0.0
    burst: Annotated[float, Field(ge=1, le=100)] = 3.0
    variation: Annotated[float, Field(gt=0, le=20)] = 2.0
    file: str = ""


class RequestColumns(FileModel):
    """Requests one by one; lists of one length, seconds and bytes."""

    family: list[str]
    arrival_s: list[float]
    deadline_s: list[float]
    min_accuracy: list[float]
    time_sensitivity: list[float]
    accuracy_sensitivity: list[float]
    input_bytes: list[float]


class RequestFile(FileModel):
    """A problem of wing 4 as a file: servers, variants, and arrivals or requests.

    `noise`: relative standard deviation of service times.
    `seed`: of arrivals and of noise.
    """

    schema_version: Literal[1] = 1
    name: str = ""
    variants: Annotated[list[VariantFileEntry], Field(min_length=1)]
    servers: Annotated[list[ServerFileEntry], Field(min_length=1, max_length=10_000)]
    duration: Positive
    arrivals: list[ArrivalEntry] | None = None
    requests: RequestColumns | None = None
    noise: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0
    rates_per_s: list[Positive] = Field(default_factory=list)
    rate_variants: list[str] = Field(default_factory=list)


class RequestPlanEntry(FileModel):
    """A policy; everything but its name, parameters and seed is for people."""

    policy: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0
    summary: dict[str, Any] = Field(default_factory=dict)


class RequestPlanFile(ResultFile):
    """A plan with its result."""

    requests: int = 0
    success_rate: float = 0.0
    violation_rate: float = 0.0
    accuracy_of_successes: float = 0.0
    effective_accuracy: float = 0.0
    plan: RequestPlanEntry
