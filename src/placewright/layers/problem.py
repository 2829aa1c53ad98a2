"""The problem of wing 2: layers with their costs, heterogeneous workers, links, one training step.

The names that code outside the planners uses, and that stay: `LayerProblem`, `Training`,
`Objective`, `Refusal`, and `placewright.layers.workers.Link`. A profiler fills `forward_s` and
`backward_s`; the judge interpolates between the micro-batches that were measured.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from placewright.errors import InputError, UnsupportedError
from placewright.io.arguments import Range, checked
from placewright.layers.plan import LayerPlan, Stage, Strategy
from placewright.layers.workers import Link
from placewright.numerics.arrays import (
    FloatArray,
    IntArray,
    axes,
    check_axes,
    check_names,
    fill_in,
    freeze_arrays,
    table,
)
from placewright.planning.contract import Problem
from placewright.report.text import plain_table, size

if TYPE_CHECKING:
    from placewright.layers.judge import LayerJudgement


class Objective(StrEnum):
    """What is minimised: seconds of a training step, or of a sample in a full pipeline."""

    STEP = "step time"
    THROUGHPUT = "seconds per sample"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A strategy that a layer cannot have, and why (dropout, tied weights, odd head counts).

    A layer that cannot be DATA has to see the whole batch (batch norm): it is in a stage with a
    single replica, without micro-batches, and inside a replica of several workers not DATA.
    """

    layer: int
    strategy: Strategy
    reason: str


@checked
@dataclass(frozen=True, slots=True)
class Training:
    """What the training framework keeps and sends, and what it waits for.

    Attributes
    ----------
    weight_bytes, gradient_bytes, optimizer_bytes
        Kept per parameter element. ZeRO shards optimizer states (1), gradients (2), weights (3).
    buffer_bytes
        Kept per parameter element beside them (flat copies, communication buffers), never
        sharded.
    sync_bytes
        Bytes per parameter element that the gradient all-reduce sends.
    bucket_bytes
        Largest single all-reduce; ``inf`` for one.
    overlap_sync
        Gradients are all-reduced while the backward pass goes on: as soon as those of the last
        layers fill a bucket (PyTorch's DDP), or layer by layer where `bucket_bytes` is ``inf``.
    blocking_transfers
        A worker that sends activations or gradients computes nothing until they have arrived.
    activations_first
        Blocking schedules exchange activations before gradients between two passes (DeepSpeed up
        to 0.9), otherwise after them.
    eager_bytes
        Blocking messages up to this size do not block: they fit in the transport's buffers
        (NCCL: ``NCCL_BUFFSIZE``, 4 MiB).
    split_activations, split_gradients
        With tensor parallelism each worker sends its part of an activation, or of its gradient,
        that all of them hold; the receivers gather it (Megatron, DeepSpeed from 0.4). Otherwise
        every receiver is sent the whole.
    keeps_parts
        Who sends parts of an activation keeps only its own, and gathers the whole again before the
        backward pass (DeepSpeed).
    extra_bytes
        Sent with every activation of a micro-batch, whatever its size (an attention mask).
    gradients_apart
        The gradient of a weight is computed beside the sum of earlier micro-batches, or beside the
        buffer that replicas exchange (PyTorch): a layer's weights are needed once more.
    keeps_received
        A pipeline keeps the activations and gradients that it has received, and those of its
        inputs, of all micro-batches until the next step (``torch.distributed.pipelining``).
    heap_block_bytes
        Freed memory of values up to this size stays with the process, so that later and larger
        values come on top of it (glibc: 32 MiB); 0 for an allocator that gives it back.
    shards_wait
        Under ZeRO 2 and 3 workers hold their part of the weights, gather those of a layer before
        its passes and scatter its gradients after them, and do nothing else meanwhile (FSDP2 on
        CPUs); otherwise their exchange overlaps.
    """

    weight_bytes: float = 4.0
    gradient_bytes: float = 4.0
    optimizer_bytes: float = 8.0
    buffer_bytes: float = 0.0
    sync_bytes: float = 4.0
    bucket_bytes: Annotated[float, Range(0, math.inf, above=True)] = math.inf
    overlap_sync: bool = True
    blocking_transfers: bool = False
    activations_first: bool = False
    eager_bytes: float = 0.0
    split_activations: bool = True
    split_gradients: bool = True
    keeps_parts: bool = False
    extra_bytes: float = 0.0
    gradients_apart: bool = False
    keeps_received: bool = False
    heap_block_bytes: float = 0.0
    shards_wait: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Variants:
    """Layers with alternative costs, for throughput (Piper, NeurIPS 2021, arXiv 2106.11731).

    With n layers, the tensor degrees of the problem and v variants; ``inf`` where there is none:

    Attributes
    ----------
    names
        Of the variants (``vanilla``, ``activation recomp``).
    time_s
        Shape (n, degrees, v): forward and backward of one sample.
    parameter_bytes
        Shape (n, degrees, v): of which a data-parallel stage exchanges gradients.
    in_flight_bytes, fixed_bytes
        Shape (n, degrees, v): memory per sample in flight, and whatever that is.
    sync_in_bytes, sync_out_bytes
        Shape (edges, degrees, v): collectives of the edge's target, of its source, that a cut of
        the edge adds.
    bandwidth
        Bytes per second of every device to the outside.
    batch_samples
        Micro-batches of one sample in a batch: over these gradients are exchanged once.
    """

    names: tuple[str, ...]
    time_s: FloatArray = field(metadata=axes("ntv"))
    parameter_bytes: FloatArray = field(metadata=axes("ntv"))
    in_flight_bytes: FloatArray = field(metadata=axes("ntv"))
    fixed_bytes: FloatArray = field(metadata=axes("ntv"))
    sync_in_bytes: FloatArray = field(metadata=axes("etv"))
    sync_out_bytes: FloatArray = field(metadata=axes("etv"))
    bandwidth: float
    batch_samples: int

    def __post_init__(self) -> None:
        freeze_arrays(self)


@checked
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LayerProblem(Problem["LayerPlan", "LayerJudgement"]):
    """All that a planner may know. Frozen, validated once, nothing of PyTorch in it.

    With n layers in topological order, W workers of K kinds on N nodes, tensor degrees T and
    micro-batch sizes B (samples on one worker):

    Attributes
    ----------
    layer_names, layer_kinds
        Unique names, and what they are (``linear``, ``attention``, ...).
    degrees
        Tensor degrees for which there are tables, ascending, the first is 1.
    parameters
        Shape (n, T): elements on one worker at that degree; ``inf`` where the layer cannot.
    output_bytes
        Shape (n, T): the layer's output on one worker, for one sample.
    activation_bytes
        Shape (n, T): kept on one worker from forward to backward, per sample; NaN: unknown.
    sizes
        Shape (B,): micro-batch sizes of the tables, ascending.
    forward_s, backward_s
        Shape (K, T, B, n): one micro-batch through one layer on one worker; NaN: not measured.
    working_bytes
        Shape (n, T): what a layer's backward pass needs on one worker beside what was kept, per
        sample: gradients of its largest intermediates.
    update_bytes
        Shape (n, T): what the optimizer needs beside its states while it updates the layer's
        largest parameter on one worker.
    tensor_bytes
        Shape (n, 2): bytes per sample that a tensor-parallel layer all-reduces in its forward and
        in its backward pass over the workers of a replica, and that are not in the tables yet.
    flops
        Shape (n,): forward FLOPs of one sample; NaN: unknown. The backward pass has about twice.
    edge_source, edge_target, edge_bytes
        Shape (edges,): tensors between layers, bytes per sample at degree 1.
    tied
        Pairs of layers that share weights: counted once in one stage, in two stages both hold a
        copy and all-reduce its gradient.
    worker_names, worker_kind, worker_node
        Names; shape (W,): index of the kind in `kind_names`, of the node in `node_names`.
    memory_bytes, framework_bytes
        Shape (W,): capacity, and what a process holds before any tensor; NaN: unknown.
    begin_s
        Shape (K,): seconds of every pass through a stage beside those of its layers.
    optimizer_s
        Shape (K,): seconds of an optimizer step per parameter element held.
    optimizer_fixed_s
        Shape (K,): seconds of an optimizer step whatever it holds.
    pack_s
        Shape (K,): seconds per parameter element to flatten, convert and unflatten gradients for
        their all-reduce.
    gather_s, scatter_s
        Shape (n,): seconds of gathering a layer's weights, and of scattering its gradients, beside
        their messages, where `Training.shards_wait`.
    alone
        A single worker's passes take so many times those of the tables, which hold while all
        workers compute: on one machine they share its caches and memory.
    send_s, receive_s, message_s
        Shape (K,): seconds that a worker computes less for each byte that it sends or receives, as
        both take its processor's time (sockets under a CPU quota); `message_s` for each message.
    link_index
        Shape (N, N): index into `links` from node to node; the diagonal is inside a node; -1
        where there is none.
    global_batch
        Samples of a step.
    micro_batches
        The only number of micro-batches, 0 if that is free.
    zero_stages, recompute
        What planners choose among: ZeRO stages, and whether activations may be computed again.
        The planner `sharded`, which ``auto`` tries too, is ZeRO 3 whatever is listed.
    refusals
        Strategies that layers cannot have.
    variants
        Costs for `Objective.THROUGHPUT`; the tables are then not used.
    """

    layer_names: tuple[str, ...]
    parameters: FloatArray = field(metadata=axes("nt"))
    output_bytes: FloatArray = field(metadata=axes("nt"))
    forward_s: FloatArray = field(metadata=axes("ktbn"))
    backward_s: FloatArray = field(metadata=axes("ktbn"))
    worker_names: tuple[str, ...]
    links: tuple[Link, ...]
    link_index: IntArray = field(metadata=axes("dd"))
    global_batch: int
    layer_kinds: tuple[str, ...] = ()
    degrees: tuple[int, ...] = (1,)
    sizes: FloatArray = field(default_factory=lambda: np.ones(1))
    activation_bytes: FloatArray = table("nt", math.nan)
    working_bytes: FloatArray = table("nt")
    update_bytes: FloatArray = table("nt")
    tensor_bytes: FloatArray = table("n2")
    flops: FloatArray = table("n", math.nan)
    edge_source: IntArray = table("e")
    edge_target: IntArray = table("e")
    edge_bytes: FloatArray = table("e")
    tied: tuple[tuple[int, int], ...] = ()
    kind_names: tuple[str, ...] = ("worker",)
    node_names: tuple[str, ...] = ("node",)
    worker_kind: IntArray = table("w")
    worker_node: IntArray = table("w")
    memory_bytes: FloatArray = table("w", math.inf)
    framework_bytes: FloatArray = table("w")
    begin_s: FloatArray = table("k")
    optimizer_s: FloatArray = table("k")
    optimizer_fixed_s: FloatArray = table("k")
    pack_s: FloatArray = table("k")
    gather_s: FloatArray = table("n")
    scatter_s: FloatArray = table("n")
    send_s: FloatArray = table("k")
    receive_s: FloatArray = table("k")
    message_s: FloatArray = table("k")
    alone: float = 1.0
    micro_batches: int = 0
    training: Training = field(default_factory=Training)
    zero_stages: tuple[int, ...] = (0,)
    recompute: bool = False
    refusals: tuple[Refusal, ...] = ()
    variants: Variants | None = None
    objective: Objective = Objective.STEP
    name: str = "layers"

    def __post_init__(self) -> None:
        if not self.layer_kinds:
            object.__setattr__(self, "layer_kinds", ("layer",) * self.n)
        if len(self.edge_source) == 0:
            self._make_chain()
        elif len(self.edge_bytes) == 0:
            raise InputError(
                "edges need their bytes",
                where="edge_bytes",
                by=f"got none for {len(self.edge_source)} edges",
                hint="give one number per edge, 0 for those that carry nothing",
            )
        fill_in(self, self.axis_sizes)
        freeze_arrays(self)
        object.__setattr__(self, "objective", Objective(self.objective))
        check_problem(self)

    def _make_chain(self) -> None:
        """Set tensors between layers that were left out: every layer feeds the next one."""
        chain = np.arange(max(self.n - 1, 0))
        made = np.array(self.output_bytes, dtype=np.float64)
        whole = made.ndim == 2 and made.size > 0  # else it is refused later, by its name
        sent = made[: self.n - 1, 0] if whole else chain
        edges = {"edge_source": chain, "edge_target": chain + 1, "edge_bytes": sent}
        for key, value in edges.items():
            if len(getattr(self, key)) == 0:
                object.__setattr__(self, key, value)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Sizes of the axes of the tables."""
        n, w, k, t = self.n, self.w, len(self.kind_names), len(self.degrees)
        edges, nodes = len(self.edge_source), len(self.node_names)
        return {"n": n, "w": w, "k": k, "t": t, "b": len(self.sizes), "e": edges, "d": nodes}

    @property
    def n(self) -> int:
        """Number of layers."""
        return len(self.layer_names)

    @property
    def w(self) -> int:
        """Number of workers."""
        return len(self.worker_names)

    @property
    def is_chain(self) -> bool:
        """Whether every layer feeds the next one only."""
        forward = self.edge_target == self.edge_source + 1
        return len(self.edge_source) == self.n - 1 and bool(forward.all())

    def degree_index(self, degree: int) -> int:
        """Position of a tensor degree in the tables.

        Raises `UnsupportedError`: there are no tables for it.
        """
        if degree not in self.degrees:
            known = ", ".join(map(str, self.degrees))
            raise UnsupportedError(
                f"no costs for tensor degree {degree}", where=self.name, hint=f"known: {known}"
            )
        return self.degrees.index(degree)

    def refusal(self, layer: int, strategy: Strategy, degree: int = 1) -> str:
        """Why a layer cannot have a strategy; empty if it can.

        DATA on one worker splits nothing and is never refused: see `whole_batch`.
        """
        if strategy is Strategy.DATA and degree == 1:
            return ""
        for entry in self.refusals:
            # What is sharded is given a part of the samples, too.
            split = strategy is Strategy.SHARDED and degree > 1 and entry.strategy is Strategy.DATA
            if entry.layer == layer and (entry.strategy is strategy or split):
                return entry.reason
        if strategy is Strategy.TENSOR and degree > 1:
            if degree not in self.degrees:
                return f"there are no costs for tensor degree {degree}"
            if not math.isfinite(self.parameters[layer, self.degree_index(degree)]):
                return f"it cannot be split over {degree} workers"
        return ""

    def whole_batch(self, stage: Stage, micro_batches: int) -> Refusal | None:
        """The first layer of a stage that would see a part of the batch only, and must not."""
        if len(stage.replicas) == 1 and micro_batches == 1:
            return None
        whole = (x for x in self.refusals if x.strategy is Strategy.DATA)
        return next((x for x in whole if x.layer in stage.layers), None)

    def demand(self, layer: int, strategy: Strategy, degree: int, where: str = "") -> None:
        """Raise if a layer cannot have a strategy.

        Raises `UnsupportedError`: names the layer, the strategy and the reason.
        """
        why = self.refusal(layer, strategy, degree)
        if why:
            raise UnsupportedError(
                f"layer {self.layer_names[layer]!r} cannot be {strategy}",
                where=where or self.name,
                by=why,
                hint="give the layer another strategy",
            )

    def link(self, source: int, target: int) -> Link | None:
        """The link between the nodes of two workers, ``None`` where there is none."""
        index = int(self.link_index[self.worker_node[source], self.worker_node[target]])
        return None if index < 0 else self.links[index]

    def replace(self, **changes: Any) -> LayerProblem:
        """The same problem with some fields replaced, for example ``global_batch=64``."""
        return replace(self, **changes)

    def hash(self) -> str:
        """SHA-256 over everything that can change a plan."""
        digest = hashlib.sha256()
        _digest(self, digest)
        return digest.hexdigest()

    def __repr__(self) -> str:
        return _table(self)


def _digest(value: Any, digest: Any) -> None:
    if is_dataclass(value):
        for item in fields(value):
            digest.update(item.name.encode() + b"\0")
            _digest(getattr(value, item.name), digest)
    elif isinstance(value, np.ndarray):
        digest.update(repr(value.shape).encode() + value.tobytes())
    elif isinstance(value, tuple):
        for entry in value:
            _digest(entry, digest)
            digest.update(b",")
    else:
        digest.update(repr(value).encode())


def _table(p: LayerProblem, most: int = 24) -> str:
    """Options, layers and workers."""
    total = float(np.where(np.isfinite(p.parameters[:, 0]), p.parameters[:, 0], 0).sum())
    head = (
        f"problem {p.name}: {p.n} layers, {total:.4g} parameters, {p.w} workers on "
        f"{len(p.node_names)} nodes, global batch {p.global_batch}, {p.objective}"
    )
    rows = [
        (
            p.layer_names[i],
            p.layer_kinds[i],
            f"{p.parameters[i, 0]:.4g}",
            size(p.output_bytes[i, 0]),
        )
        for i in range(min(p.n, most))
    ]
    more = f"\n... and {p.n - most} more layers" if p.n > most else ""
    return f"{head}\n{plain_table(('layer', 'kind', 'parameters', 'output'), rows, '  rr')}{more}"


MOST_SAMPLES = 10**12
"""Of a step: micro-batches are divisors of their number, which are looked for up to its root."""


def check_problem(p: LayerProblem) -> None:
    """Raise where the problem is none.

    Raises `InputError`, which names the field, the layer or the worker that is wrong.
    """
    if p.n == 0 or p.w == 0:
        raise InputError("a problem needs layers and workers", where=p.name)
    if not 1 <= p.global_batch <= MOST_SAMPLES:
        limit = "at least 1" if p.global_batch < 1 else f"at most {MOST_SAMPLES:.0e}"
        raise InputError(f"global_batch must be {limit}", where=p.name, by=f"{p.global_batch:.3g}")
    if not 0 < p.alone <= 1:
        raise InputError("alone must be in (0, 1]", where=p.name, by=f"{p.alone}")
    if not p.degrees or p.degrees[0] != 1 or list(p.degrees) != sorted(set(p.degrees)):
        by = f"got {p.degrees}"
        raise InputError("degrees must ascend from 1", where=p.name, by=by)
    check_names("layer", p.layer_names, p.name)
    check_names("worker", p.worker_names, p.name)
    _check_tables(p, p.axis_sizes, p.name)
    _check_values(p)
    _check_graph(p)
    _check_options(p)
    if (p.variants is not None) != (p.objective is Objective.THROUGHPUT):
        raise InputError(
            f"{Objective.THROUGHPUT} are the objective of layers with variants, and of no others",
            where=f"{p.name}: objective",
            by=f"{p.objective}, {'no ' if p.variants is None else ''}variants",
            hint="leave variants out to plan steps, or give them to plan a full pipeline",
        )
    if p.variants is not None:
        _check_variants(p, p.variants)


UNKNOWN = ("forward_s", "backward_s", "activation_bytes", "flops", "framework_bytes")
"""Tables that may hold NaN."""


def _check_tables(holder: object, sizes: Mapping[str, int], where: str) -> None:
    for key, values in check_axes(holder, sizes, where).items():
        known = values[~np.isnan(values)] if key in UNKNOWN else values
        if values.dtype == np.float64 and not (known >= 0).all():
            raise InputError(f"{key} must be numbers >= 0", where=where)


def _check_values(p: LayerProblem) -> None:
    if len(p.layer_kinds) != p.n:
        raise InputError("layer_kinds needs an entry per layer", where=p.name)
    for key in ("forward_s", "backward_s"):
        if np.isinf(getattr(p, key)).any():
            hint = "leave out times that were not measured: null in a file, NaN in Python"
            raise InputError(f"{key} must be finite", where=p.name, hint=hint)
    if not np.isfinite(p.parameters[:, 0]).all():
        i = int(np.flatnonzero(~np.isfinite(p.parameters[:, 0]))[0])
        raise InputError("parameters at degree 1 must be finite", where=p.layer_names[i])
    if not (p.sizes > 0).all() or (np.diff(p.sizes) <= 0).any():
        raise InputError("sizes must ascend from above 0", where=p.name)
    for key, top in (
        ("worker_kind", len(p.kind_names)),
        ("worker_node", len(p.node_names)),
        ("edge_source", p.n),
        ("edge_target", p.n),
    ):
        values = getattr(p, key)
        if len(values) and not (values.min() >= 0 and values.max() < top):
            raise InputError(f"{key} names something that does not exist", where=p.name)
    if (p.link_index >= len(p.links)).any():
        raise InputError("link_index names a link that does not exist", where=p.name)


def _check_graph(p: LayerProblem) -> None:
    if (p.edge_source >= p.edge_target).any():
        e = int(np.flatnonzero(p.edge_source >= p.edge_target)[0])
        a, b = p.layer_names[p.edge_source[e]], p.layer_names[p.edge_target[e]]
        raise InputError(
            "layers must be in topological order", where=p.name, by=f"edge from {a!r} to {b!r}"
        )
    for a, b in p.tied:
        if not (0 <= a < p.n and 0 <= b < p.n):
            raise InputError("tied names a layer that does not exist", where=p.name)
    for refusal in p.refusals:
        if not 0 <= refusal.layer < p.n:
            raise InputError("refusals name a layer that does not exist", where=p.name)


def _check_options(p: LayerProblem) -> None:
    if p.micro_batches < 0 or (p.micro_batches and p.global_batch % p.micro_batches):
        raise InputError(
            "micro_batches must divide the global batch",
            where=p.name,
            by=f"{p.micro_batches} micro-batches of {p.global_batch} samples",
            hint="0 leaves their number to the planner",
        )
    stages = set(p.zero_stages)
    if not stages or not stages <= {0, 1, 2, 3} or len(stages) < len(p.zero_stages):
        by = f"got {p.zero_stages!s:.100}"
        raise InputError(
            "zero_stages must be some of 0, 1, 2 and 3, each once", where=p.name, by=by
        )


def _check_variants(p: LayerProblem, v: Variants) -> None:
    where = f"{p.name}: variants"
    _check_tables(v, {**p.axis_sizes, "v": len(v.names)}, where)
    if not v.names or v.batch_samples < 1 or not v.bandwidth > 0:
        raise InputError(
            "needs names, batch_samples of at least 1 and a bandwidth above 0",
            where=where,
            by=f"{len(v.names)} names, {v.batch_samples} samples, {v.bandwidth:g} bytes/s",
        )
    if v.batch_samples != p.global_batch:
        by = f"{v.batch_samples} samples, global_batch {p.global_batch}"
        hint = "give both the same number"
        raise InputError("batch_samples are the global batch", where=where, by=by, hint=hint)
