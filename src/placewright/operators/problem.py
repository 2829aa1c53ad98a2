"""Problem of wing 1: operators with costs, tensors with sizes, devices with links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import InputError, UnknownNameError
from placewright.graph.graph import ModuleTree
from placewright.io.arguments import checked
from placewright.numerics.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    axes,
    check_axes,
    check_names,
    digest_of,
    fill_in,
    freeze_arrays,
    table,
)
from placewright.numerics.njit import njit_cached
from placewright.operators.pipeline import PLAIN, Pipeline
from placewright.operators.sizes import NO_VIEW, OF_RESIDENT, UNLIMITED, limits_that_bind
from placewright.planning.contract import Problem

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster
    from placewright.operators.builder import ProblemBuilder
    from placewright.operators.judgement import OperatorJudgement
    from placewright.operators.plan import OperatorPlan


class Objective(StrEnum):
    """What is minimised, in seconds."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


class Links(StrEnum):
    """Whether transfers on one channel wait for each other."""

    CONTENDED = "contended"
    FREE = "free"


class Overlap(StrEnum):
    """Whether devices and channels work at the same time or one at a time."""

    PARALLEL = "parallel"
    SERIAL = "serial"


class Communication(StrEnum):
    """Who pays for a tensor that leaves its device.

    PAIRWISE: it goes over the link of two devices. STAR: it goes through host memory, and each
    accelerator pays on its own for what leaves and enters it.
    """

    PAIRWISE = "pairwise"
    STAR = "star"


@checked
@dataclass(frozen=True, slots=True, eq=False)
class OperatorProblem(Problem["OperatorPlan", "OperatorJudgement"]):
    """All that a planner may know. Frozen, validated once, nothing of PyTorch in it.

    With n operators, m devices, t tensors:

    Attributes
    ----------
    compute_s
        Shape (n, m), seconds; ``inf`` where a device cannot run an operator.
    tensor_producer, tensor_bytes
        Shape (t,).
    consumer_offsets, consumers
        CSR: tensor k is consumed by operators
        ``consumers[consumer_offsets[k]:consumer_offsets[k + 1]]``.
    latency_s, seconds_per_byte
        Shape (m, m); zero on the diagonal, ``inf`` where there is no link.
    channel
        Shape (m, m); index of the channel that a transfer holds, -1 where none.
    resident_bytes
        Shape (n,); bytes that live where the operator lives, always.
    memory_bytes
        Shape (m,); ``inf`` where unlimited, which 2^62 and more are taken for.
    colocation
        Shape (n,); operators with equal entries share a device.
    pinned
        Shape (n,); the only device allowed, -1 for any.
    communication
        Over links, or through host memory.
    host_seconds_per_byte
        Shape (m,); STAR: what device d pays per byte of a tensor that leaves it for another
        device or enters it, once each way. Zero for a CPU, which works in host memory.
    contiguous
        Whether only contiguous plans count: devices in a chain of nested ideals of the
        forward graph.
    is_backward
        Shape (n,); operators of the backward pass.
    calls
        STAR latency: how many times an accelerator may be called per sample.
    pipeline
        Throughput: replicated stages, clusters of accelerators, passes that do not mix.
    alias_of
        Shape (t,); the tensor that a view shares memory with where it is made, -1 for a tensor
        with memory of its own, -2 for a view of what is always there (a weight, an input).
    device_kinds
        Shape (m,), ``gpu``, ``cpu``, ...; empty where they are not known.
    operator_modules
        Shape (n,), the path of the module that an operator belongs to, ``""`` for none; empty
        where they are not known.
    modules
        The model's modules with what they hold, ``None`` where they are not known.
    operator_kinds
        Shape (n,), what each operator computes, such as ``aten.addmm.default``; empty where the
        kinds are not known. A node feature: the judge and the planners that do not learn never
        read it.
    output_shapes
        Length n, the shape of each operator's first output, ``()`` for a scalar or none; empty
        where the shapes are not known. A node feature as well.
    micro_batch
        Shape (n,), the micro-batch of a training step that an operator works on, from 1; 0 for all
        of the batch.
    program_order
        Whether a plan without an order runs operators in the order of the problem, which is that
        of the program. So it is where weights are computed in the step (dequantised, say): by
        upward rank those of parallel layers would all be computed before the first is used.
    dimensionless
        Whether costs and sizes have no unit, as in published task graphs: they are shown without.
    topology
        Derived: a topological order and the tensors into and out of each operator.
    """

    operator_names: tuple[str, ...]
    device_names: tuple[str, ...]
    compute_s: FloatArray = field(metadata=axes("nm"))
    tensor_names: tuple[str, ...]
    tensor_producer: IntArray = field(metadata=axes("t"))
    tensor_bytes: FloatArray = field(metadata=axes("t"))
    consumer_offsets: IntArray = field(metadata=axes("o"))
    consumers: IntArray = field(metadata=axes("c"))
    latency_s: FloatArray = field(metadata=axes("mm"))
    seconds_per_byte: FloatArray = field(metadata=axes("mm"))
    channel: IntArray = field(metadata=axes("mm"))
    channel_names: tuple[str, ...]
    resident_bytes: FloatArray = field(metadata=axes("n"))
    memory_bytes: FloatArray = field(metadata=axes("m"))
    colocation: IntArray = field(metadata=axes("n"))
    pinned: IntArray = field(metadata=axes("n"))
    objective: Objective = Objective.LATENCY
    links: Links = Links.CONTENDED
    overlap: Overlap = Overlap.PARALLEL
    name: str = "problem"
    communication: Communication = Communication.PAIRWISE
    host_seconds_per_byte: FloatArray = table("m")
    contiguous: bool = False
    is_backward: BoolArray = table("n")
    calls: int = 1
    pipeline: Pipeline = PLAIN
    alias_of: IntArray = table("t", NO_VIEW)
    device_kinds: tuple[str, ...] = ()
    operator_modules: tuple[str, ...] = ()
    modules: ModuleTree | None = None
    operator_kinds: tuple[str, ...] = ()
    output_shapes: tuple[tuple[int, ...], ...] = ()
    micro_batch: IntArray = table("n")
    program_order: bool = False
    dimensionless: bool = False
    topology: Topology = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _fill_in(self)
        freeze_arrays(self)
        object.__setattr__(self, "memory_bytes", limits_that_bind(self.memory_bytes))
        for key, kind in _CHOICES.items():
            try:
                object.__setattr__(self, key, kind(getattr(self, key)))
            except ValueError as error:
                given = str(getattr(self, key))
                raise UnknownNameError(key, given, kind, where=self.name) from error
        check_problem(self)
        topology = build_topology(
            len(self.operator_names), self.tensor_producer, self.consumer_offsets, self.consumers
        )
        if len(topology.order) < len(self.operator_names):
            cycle = cycle_of(topology, self.tensor_producer, self.n)
            names = [self.operator_names[i] for i in cycle]
            more = ["..."] * (len(names) > MOST_SHOWN)
            raise InputError(
                f"the graph has a cycle through operator {names[0]!r}",
                where=self.name,
                by=" -> ".join([*names[:MOST_SHOWN], *more, names[0]]),
                hint="leave out a tensor of the cycle",
            )
        object.__setattr__(self, "topology", topology)

    @staticmethod
    def builder(
        devices: Cluster | Mapping[str, float] | Sequence[str], name: str = "problem"
    ) -> ProblemBuilder:
        """Start a problem that is described by name, one operator, tensor and link after another.

        Parameters
        ----------
        devices
            A `Cluster`, with its links, memory and kinds. Or the names of devices, or their memory
            in bytes by name: `ProblemBuilder.add_link` links them.
        """
        from placewright.operators.builder import ProblemBuilder

        return ProblemBuilder(OperatorProblem, devices, name)

    @property
    def n(self) -> int:
        """Number of operators."""
        return len(self.operator_names)

    @property
    def m(self) -> int:
        """Number of devices."""
        return len(self.device_names)

    @property
    def t(self) -> int:
        """Number of tensors."""
        return len(self.tensor_names)

    @property
    def consumed(self) -> IntArray:
        """The tensor that each entry of `consumers` reads."""
        return np.repeat(np.arange(self.t), np.diff(self.consumer_offsets))

    @property
    def consumed_from(self) -> IntArray:
        """The producer of what each entry of `consumers` reads."""
        return self.tensor_producer[self.consumed]

    def readers(self, tensor: int) -> IntArray:
        """Operators that read a tensor."""
        return self.consumers[self.consumer_offsets[tensor] : self.consumer_offsets[tensor + 1]]

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Shape (n, m): whether the device can run the operator, its whole group and its pin."""
        _, group = np.unique(self.colocation, return_inverse=True)
        result: np.ndarray[Any, np.dtype[np.bool_]] = self.allowed_groups(group)[group]
        return result

    def allowed_groups(self, group: IntArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Shape (groups, m): as `allowed`, by the group of every operator."""
        own = np.isfinite(self.compute_s)
        pinned = self.pinned >= 0
        own[pinned] &= np.arange(self.m) == self.pinned[pinned, None]
        _, first = np.unique(group, return_index=True)
        whole: np.ndarray[Any, np.dtype[np.bool_]] = own[first]
        others = np.ones(self.n, dtype=np.bool_)
        others[first] = False
        np.logical_and.at(whole, group[others], own[others])
        return whole

    def replace(self, **changes: Any) -> OperatorProblem:
        """The same problem with some fields replaced, for example ``links="free"``."""
        return replace(self, **changes)

    def hash(self) -> str:
        """SHA-256 over everything that can change a plan.

        Fields that were added later count only where they differ from their default, so that older
        problems keep their hash.
        """
        usual = [key for key in _LATER if _is_default(key, getattr(self, key))]
        return digest_of(self, leave_out=(*_NO_INPUT, *usual))

    def __repr__(self) -> str:
        from placewright.operators.text import problem_table

        return problem_table(self)


_CHOICES: dict[str, type[StrEnum]] = {
    "objective": Objective,
    "links": Links,
    "overlap": Overlap,
    "communication": Communication,
}
_LATER: dict[str, Any] = {
    "communication": Communication.PAIRWISE,
    "host_seconds_per_byte": 0.0,
    "contiguous": False,
    "is_backward": False,
    "calls": 1,
    "pipeline": PLAIN,
    "alias_of": NO_VIEW,
    "device_kinds": (),
    "operator_modules": (),
    "modules": None,
    "operator_kinds": (),
    "output_shapes": (),
    "micro_batch": 0,
    "program_order": False,
}
_NO_INPUT = ("topology", "dimensionless")
"""Fields that change no plan: what is derived, and how numbers are shown."""
MOST_SHOWN = 12
"""Operators of a cycle that an error lists."""


def pairwise_only(problem: OperatorProblem) -> str | None:
    """Why a planner that knows links alone cannot take the problem, ``None`` if it can."""
    star = problem.communication is Communication.STAR
    return "transfers go through host memory (star)" if star else None


def star_throughput_only(problem: OperatorProblem) -> str | None:
    """Why a planner of pipelines around host memory cannot take the problem, or ``None``."""
    if problem.communication is not Communication.STAR:
        return "transfers go over links (pairwise)"
    if problem.objective is not Objective.THROUGHPUT:
        return f"plans for throughput, not for {problem.objective}"
    return None


def _fill_in(p: OperatorProblem) -> None:
    """Set fields that were left out: zeros, and no views."""
    fill_in(p, {"n": p.n, "m": p.m, "t": p.t})
    object.__setattr__(p, "contiguous", bool(p.contiguous))
    for key in ("program_order", "dimensionless"):
        object.__setattr__(p, key, bool(getattr(p, key)))
    for key in ("device_kinds", "operator_modules", "operator_kinds"):
        object.__setattr__(p, key, tuple(getattr(p, key)))
    shapes = tuple(tuple(int(size) for size in shape) for shape in p.output_shapes)
    object.__setattr__(p, "output_shapes", shapes)


def _is_default(key: str, value: Any) -> bool:
    if value is None or isinstance(value, Pipeline | ModuleTree | tuple):
        return bool(value == _LATER[key])
    return bool(np.all(np.asarray(value) == _LATER[key]))


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """Derived structure of a problem.

    Attributes
    ----------
    order
        Operators, producers first; first in, first out from the operators in input order.
        Shorter than n if the graph has a cycle.
    in_offsets, in_tensors
        CSR: tensors read by each operator (each tensor once).
    out_offsets, out_tensors
        CSR: tensors made by each operator.
    """

    order: IntArray
    in_offsets: IntArray
    in_tensors: IntArray
    out_offsets: IntArray
    out_tensors: IntArray

    @property
    def position(self) -> IntArray:
        """Shape (n,): place of each operator in `order`."""
        found = np.empty(len(self.order), dtype=np.int64)
        found[self.order] = np.arange(len(self.order))
        return found

    def read_by(self, operator: int) -> IntArray:
        """Tensors that an operator reads."""
        return self.in_tensors[self.in_offsets[operator] : self.in_offsets[operator + 1]]

    def made_by(self, operator: int) -> IntArray:
        """Tensors that an operator makes."""
        return self.out_tensors[self.out_offsets[operator] : self.out_offsets[operator + 1]]


def build_topology(
    n: int, producer: IntArray, consumer_offsets: IntArray, consumers: IntArray
) -> Topology:
    """Invert the tensor lists and sort topologically in O(n + edges)."""
    tensor_of = np.repeat(np.arange(len(producer)), np.diff(consumer_offsets))
    # Stable sorts: an operator's tensors are by index, which sums of rules N1 and L3 rely on.
    by_consumer = np.argsort(consumers, kind="stable")
    in_offsets = np.searchsorted(consumers[by_consumer], np.arange(n + 1))
    in_tensors = tensor_of[by_consumer]
    out_tensors = np.argsort(producer, kind="stable")
    out_offsets = np.searchsorted(producer[out_tensors], np.arange(n + 1))
    arrays = [
        np.ascontiguousarray(a, dtype=np.int64)
        for a in (in_offsets, in_tensors, out_offsets, out_tensors)
    ]
    order = _topological_order(n, consumer_offsets, consumers, arrays[2], arrays[3])
    for array in (order, *arrays):
        array.setflags(write=False)
    return Topology(order, *arrays)


def cycle_of(topology: Topology, producer: IntArray, n: int) -> list[int]:
    """Operators of a cycle, each before one that reads what it makes; there is no full order."""
    stuck = set(range(n)) - set(topology.order.tolist())
    way = [min(stuck)]
    while way[-1] not in way[:-1]:  # whoever is stuck waits for another who is
        before = producer[topology.read_by(way[-1])].tolist()
        way.append(next(i for i in before if i in stuck))
    cycle = way[way.index(way[-1]) : -1][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


@njit_cached
def _topological_order(
    n: int,
    consumer_offsets: IntArray,
    consumers: IntArray,
    out_offsets: IntArray,
    out_tensors: IntArray,
) -> IntArray:
    waiting = np.zeros(n, dtype=np.int64)
    for c in consumers:
        waiting[c] += 1
    order = np.empty(n, dtype=np.int64)
    tail = 0
    for i in range(n):
        if waiting[i] == 0:
            order[tail] = i
            tail += 1
    head = 0
    # Kahn's algorithm; `order` is its own queue.
    while head < tail:
        i = order[head]
        head += 1
        for a in range(out_offsets[i], out_offsets[i + 1]):
            k = out_tensors[a]
            for b in range(consumer_offsets[k], consumer_offsets[k + 1]):
                c = consumers[b]
                waiting[c] -= 1
                if waiting[c] == 0:
                    order[tail] = c
                    tail += 1
    return order[:tail].copy()


FLOATS = (
    "compute_s",
    "tensor_bytes",
    "latency_s",
    "seconds_per_byte",
    "resident_bytes",
    "memory_bytes",
    "host_seconds_per_byte",
)
"""Fields of a problem that are arrays of numbers >= 0."""


def check_problem(p: OperatorProblem) -> None:
    """Raise `InputError` where a field has a shape or a value that makes no sense."""
    _check_shapes(p)
    _check_values(p)


def _check_shapes(p: OperatorProblem) -> None:
    n, m, t = p.n, p.m, p.t
    if n == 0 or m == 0:
        raise InputError(
            "a problem needs operators and devices", where=p.name, by=f"{n} operators, {m} devices"
        )
    check_axes(p, {"n": n, "m": m, "t": t, "o": t + 1, "c": len(p.consumers)}, p.name)
    if p.pipeline.cluster and len(p.pipeline.cluster) != m:
        raise InputError(
            "pipeline.cluster has the wrong length",
            where=p.name,
            by=f"{len(p.pipeline.cluster)} for {m} devices",
        )
    lengths = {"device_kinds": m, "operator_modules": n, "operator_kinds": n, "output_shapes": n}
    for key, size in lengths.items():
        given = getattr(p, key)
        if given and len(given) != size:
            by = f"{len(given)}, expected {size}"
            raise InputError(f"{key} has the wrong length", where=p.name, by=by)
    for name, output in zip(p.operator_names, p.output_shapes, strict=False):
        if any(size < 0 for size in output):
            where = f"{p.name}: output_shapes[{name!r}]"
            raise InputError("a size must not be negative", where=where, by=f"got {output}")
    check_names("operator", p.operator_names, p.name)
    check_names("device", p.device_names, p.name)


def _check_values(p: OperatorProblem) -> None:
    for key in FLOATS:
        bad = np.argwhere(~(getattr(p, key) >= 0))
        if len(bad):
            at = tuple(int(x) for x in bad[0])
            raise InputError(
                f"{key} must be a number >= 0",
                where=f"{p.name}: {_named(p, key, at)}",
                by=f"got {getattr(p, key)[at]}",
            )
    unsupported = np.flatnonzero(~np.isfinite(p.compute_s).any(axis=1))
    if len(unsupported):
        raise InputError(
            "no device can run it",
            where=f"{p.name}: {p.operator_names[unsupported[0]]!r}",
            hint="give it seconds on one of them",
        )
    for key in ("tensor_bytes", "resident_bytes", "host_seconds_per_byte"):
        if not np.isfinite(getattr(p, key)).all():
            raise InputError(f"{key} must be finite", where=p.name)
    _check_bytes(p)
    for key, array, top in (
        ("tensor_producer", p.tensor_producer, p.n),
        ("consumers", p.consumers, p.n),
    ):
        if len(array) and not (array.min() >= 0 and array.max() < top):
            raise InputError(f"{key} names an operator that does not exist", where=p.name)
    offsets = p.consumer_offsets
    if offsets[0] != 0 or offsets[-1] != len(p.consumers) or (np.diff(offsets) < 0).any():
        raise InputError(
            "consumer_offsets must rise from 0 to the number of consumers", where=p.name
        )
    if p.channel.max(initial=-1) >= len(p.channel_names):
        raise InputError("channel names a channel that does not exist", where=p.name)
    missing = np.isfinite(p.seconds_per_byte) & (p.channel < 0) & ~np.eye(p.m, dtype=np.bool_)
    if missing.any():
        raise InputError("a pair of devices with a bandwidth has no channel", where=p.name)
    if p.pinned.min() < -1 or p.pinned.max() >= p.m:
        raise InputError("pinned names a device that does not exist", where=p.name)
    _check_views(p)
    if p.modules is not None:
        p.modules.check_operators(set(p.operator_names), p.name)
    if p.calls < 1:
        raise InputError("calls must be at least 1", where=p.name, by=f"got {p.calls}")


def _named(p: OperatorProblem, key: str, at: tuple[int, ...]) -> str:
    """The name of the entry `at` of the field `key`."""
    rows = {
        "compute_s": p.operator_names,
        "resident_bytes": p.operator_names,
        "tensor_bytes": p.tensor_names,
    }.get(key, p.device_names)
    column = f", {p.device_names[at[1]]!r}" if len(at) > 1 else ""
    return f"{key}[{rows[at[0]]!r}{column}]"


def _check_views(p: OperatorProblem) -> None:
    """Raise where a view is of no tensor, or of one that its producer does not read."""
    alias = p.alias_of
    if len(alias) and (alias.min() < OF_RESIDENT or alias.max() >= p.t):
        raise InputError("alias_of names a tensor that does not exist", where=p.name)
    for k in np.flatnonzero(alias >= 0).tolist():
        base = int(alias[k])
        readers = p.readers(base)
        if p.tensor_producer[k] not in readers:
            raise InputError(
                "a view must be made by an operator that reads what it is a view of",
                where=f"{p.name}: tensor {p.tensor_names[k]!r}",
                by=f"{p.operator_names[p.tensor_producer[k]]!r} does not read "
                f"{p.tensor_names[base]!r}",
            )


def _check_bytes(p: OperatorProblem) -> None:
    """Raise where 64 bits might not count what a plan holds, every tensor on every device."""
    with np.errstate(over="ignore"):  # infinity is refused as any other large number
        most = float(np.ceil(p.resident_bytes).sum() + p.m * np.ceil(p.tensor_bytes).sum())
    if not most < UNLIMITED:
        raise InputError(
            "more bytes than can be counted",
            where=p.name,
            by=f"up to {most:.3g} resident and in tensors, must be below 2^62",
            hint="give resident_bytes and tensor_bytes in bytes",
        )
