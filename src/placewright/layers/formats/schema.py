"""The files of wing 2: problems, and plans with their results."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from placewright.io.boundary import FileModel
from placewright.layers.plan import Schedule, Strategy
from placewright.layers.problem import Objective
from placewright.planning.result_file import ResultFile

Number = float | Literal["inf"] | None
"""``"inf"`` where nothing limits it, ``null`` where it is not known."""

Row = list[Number]
Matrix = list[Row]
Tables = list[list[Matrix]]


class LinkEntry(FileModel):
    """Times of messages by pairs of workers that send at once and by size."""

    pairs: list[int]
    message_bytes: Row
    message_s: Matrix


class TrainingEntry(FileModel):
    """What the framework keeps, sends and waits for: see `placewright.layers.problem.Training`."""

    weight_bytes: float = 4.0
    gradient_bytes: float = 4.0
    optimizer_bytes: float = 8.0
    buffer_bytes: float = 0.0
    sync_bytes: float = 4.0
    bucket_bytes: Number = "inf"
    overlap_sync: bool = True
    blocking_transfers: bool = False
    activations_first: bool = False
    eager_bytes: float = 0.0
    split_activations: bool = False
    extra_bytes: float = 0.0
    gradients_apart: bool = False
    keeps_received: bool = False
    heap_block_bytes: float = 0.0
    shards_wait: bool = False


class RefusalEntry(FileModel):
    """A strategy that a layer cannot have."""

    layer: int
    strategy: Strategy
    reason: str


class VariantsEntry(FileModel):
    """Costs of layers by degree and variant, for throughput."""

    names: list[str]
    time_s: list[Matrix]
    parameter_bytes: list[Matrix]
    in_flight_bytes: list[Matrix]
    fixed_bytes: list[Matrix]
    sync_in_bytes: list[Matrix]
    sync_out_bytes: list[Matrix]
    bandwidth: float
    batch_samples: int


class LayerFile(FileModel):
    """A problem of wing 2 as a file: the fields of `placewright.layers.problem.LayerProblem`."""

    schema_version: Literal[1] = 1
    name: str = "layers"
    objective: Objective = Objective.STEP
    layer_names: list[str]
    layer_kinds: list[str] = Field(default_factory=list)
    degrees: list[int] = Field(default_factory=lambda: [1])
    parameters: Matrix
    output_bytes: Matrix
    activation_bytes: Matrix = Field(default_factory=list)
    working_bytes: Matrix = Field(default_factory=list)
    update_bytes: Matrix = Field(default_factory=list)
    sizes: Row
    forward_s: Tables
    backward_s: Tables
    tensor_bytes: Matrix = Field(default_factory=list)
    flops: Row = Field(default_factory=list)
    edge_source: list[int] = Field(default_factory=list)
    edge_target: list[int] = Field(default_factory=list)
    edge_bytes: Row = Field(default_factory=list)
    tied: list[tuple[int, int]] = Field(default_factory=list)
    worker_names: list[str]
    worker_kind: list[int] = Field(default_factory=list)
    worker_node: list[int] = Field(default_factory=list)
    kind_names: list[str] = Field(default_factory=lambda: ["worker"])
    node_names: list[str] = Field(default_factory=lambda: ["node"])
    memory_bytes: Row = Field(default_factory=list)
    framework_bytes: Row = Field(default_factory=list)
    optimizer_s: Row = Field(default_factory=list)
    optimizer_fixed_s: Row = Field(default_factory=list)
    begin_s: Row = Field(default_factory=list)
    pack_s: Row = Field(default_factory=list)
    gather_s: Row = Field(default_factory=list)
    scatter_s: Row = Field(default_factory=list)
    alone: float = 1.0
    send_s: Row = Field(default_factory=list)
    receive_s: Row = Field(default_factory=list)
    message_s: Row = Field(default_factory=list)
    links: list[LinkEntry]
    link_index: list[list[int]]
    global_batch: int
    micro_batches: int = 0
    training: TrainingEntry = Field(default_factory=TrainingEntry)
    zero_stages: list[int] = Field(default_factory=lambda: [0])
    recompute: bool = False
    refusals: list[RefusalEntry] = Field(default_factory=list)
    variants: VariantsEntry | None = None


class ReplicaEntry(FileModel):
    """Workers that hold one copy of a stage, and their samples of every micro-batch."""

    workers: list[str]
    share: int


class StageEntry(FileModel):
    """Layers of a stage by name, inclusive; the last two fields are for people."""

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
