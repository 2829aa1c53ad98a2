"""What wing 1 is asked: operators with costs, tensors with sizes, devices with links."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.graph.modules import ModuleTree
from placewright.numerics.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    frozen_bool,
    frozen_float,
    frozen_int,
)
from placewright.operators.aliases import NO_VIEW, check_views
from placewright.operators.pipeline import PLAIN, Pipeline
from placewright.operators.topology import Topology, build_topology
from placewright.operators.whole_bytes import check_bytes, limits_that_bind


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


@dataclass(frozen=True, slots=True, eq=False)
class OperatorProblem:
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
    topology
        Derived: a topological order and the tensors into and out of each operator.
    """

    operator_names: tuple[str, ...]
    device_names: tuple[str, ...]
    compute_s: FloatArray
    tensor_names: tuple[str, ...]
    tensor_producer: IntArray
    tensor_bytes: FloatArray
    consumer_offsets: IntArray
    consumers: IntArray
    latency_s: FloatArray
    seconds_per_byte: FloatArray
    channel: IntArray
    channel_names: tuple[str, ...]
    resident_bytes: FloatArray
    memory_bytes: FloatArray
    colocation: IntArray
    pinned: IntArray
    objective: Objective = Objective.LATENCY
    links: Links = Links.CONTENDED
    overlap: Overlap = Overlap.PARALLEL
    name: str = "problem"
    communication: Communication = Communication.PAIRWISE
    host_seconds_per_byte: FloatArray = field(default_factory=lambda: _UNSAID)
    contiguous: bool = False
    is_backward: BoolArray = field(default_factory=lambda: _UNSAID.astype(np.bool_))
    calls: int = 1
    pipeline: Pipeline = PLAIN
    alias_of: IntArray = field(default_factory=lambda: _UNSAID.astype(np.int64))
    device_kinds: tuple[str, ...] = ()
    operator_modules: tuple[str, ...] = ()
    modules: ModuleTree | None = None
    topology: Topology = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _fill_in(self)
        for key in _FLOATS:
            object.__setattr__(self, key, frozen_float(getattr(self, key)))
        object.__setattr__(self, "memory_bytes", limits_that_bind(self.memory_bytes))
        for key in _INTS:
            object.__setattr__(self, key, frozen_int(getattr(self, key)))
        for key, kind in (("objective", Objective), ("links", Links), ("overlap", Overlap), _STAR):
            object.__setattr__(self, key, kind(getattr(self, key)))
        _check_shapes(self)
        _check_values(self)
        topology = build_topology(
            len(self.operator_names), self.tensor_producer, self.consumer_offsets, self.consumers
        )
        if len(topology.order) < len(self.operator_names):
            stuck = sorted(set(range(len(self.operator_names))) - set(topology.order.tolist()))
            raise InputError(
                f"the graph has a cycle through operator {self.operator_names[stuck[0]]!r}",
                where=self.name,
                by=f"{len(stuck)} operators in or behind cycles",
            )
        object.__setattr__(self, "topology", topology)

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

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Shape (n, m): whether the device can run the operator, its whole group and its pin."""
        own = np.isfinite(self.compute_s)
        pinned = self.pinned >= 0
        own[pinned] &= np.arange(self.m) == self.pinned[pinned, None]
        _, group = np.unique(self.colocation, return_inverse=True)
        whole = np.ones((int(group.max()) + 1, self.m), dtype=np.bool_)
        np.logical_and.at(whole, group, own)
        result: np.ndarray[Any, np.dtype[np.bool_]] = whole[group]
        return result

    def replace(self, **changes: Any) -> OperatorProblem:
        """The same problem with some fields replaced, for example ``links="free"``."""
        return replace(self, **changes)

    def hash(self) -> str:
        """SHA-256 over everything that can change a plan.

        Fields that came later count only where they say something, so that older problems
        keep their hash.
        """
        digest = hashlib.sha256()
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "topology" or (item.name in _LATER and _is_default(item.name, value)):
                continue
            data = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            digest.update(item.name.encode() + b"\0" + data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        from placewright.operators.text import problem_table

        return problem_table(self)


_FLOATS = (
    "compute_s",
    "tensor_bytes",
    "latency_s",
    "seconds_per_byte",
    "resident_bytes",
    "memory_bytes",
    "host_seconds_per_byte",
)
_INTS = (
    "tensor_producer",
    "consumer_offsets",
    "consumers",
    "channel",
    "colocation",
    "pinned",
    "alias_of",
)
_STAR = ("communication", Communication)
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
}
_UNSAID: FloatArray = np.zeros(0)


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
    """Zeros, and no views, where nothing was said."""
    if np.size(p.alias_of) == 0:
        object.__setattr__(p, "alias_of", np.full(p.t, NO_VIEW))
    if np.size(p.host_seconds_per_byte) == 0:
        object.__setattr__(p, "host_seconds_per_byte", np.zeros(p.m))
    backward = np.zeros(p.n) if np.size(p.is_backward) == 0 else p.is_backward
    object.__setattr__(p, "is_backward", frozen_bool(backward))
    object.__setattr__(p, "contiguous", bool(p.contiguous))
    for key in ("device_kinds", "operator_modules"):
        object.__setattr__(p, key, tuple(getattr(p, key)))


def _is_default(key: str, value: Any) -> bool:
    if value is None or isinstance(value, Pipeline | ModuleTree | tuple):
        return bool(value == _LATER[key])
    return bool(np.all(np.asarray(value) == _LATER[key]))


def _check_shapes(p: OperatorProblem) -> None:
    n, m, t = p.n, p.m, p.t
    if n == 0 or m == 0:
        raise InputError(
            "a problem needs operators and devices", where=p.name, by=f"{n} operators, {m} devices"
        )
    links = len(p.consumers)
    expected = {
        "compute_s": (n, m),
        "tensor_producer": (t,),
        "tensor_bytes": (t,),
        "consumer_offsets": (t + 1,),
        "consumers": (links,),
        "latency_s": (m, m),
        "seconds_per_byte": (m, m),
        "channel": (m, m),
        "resident_bytes": (n,),
        "memory_bytes": (m,),
        "colocation": (n,),
        "pinned": (n,),
        "host_seconds_per_byte": (m,),
        "is_backward": (n,),
        "alias_of": (t,),
    }
    for key, shape in expected.items():
        if getattr(p, key).shape != shape:
            raise InputError(
                f"{key} has the wrong shape",
                where=p.name,
                by=f"{getattr(p, key).shape}, expected {shape}",
            )
    if p.pipeline.cluster and len(p.pipeline.cluster) != m:
        raise InputError(
            "pipeline.cluster has the wrong length",
            where=p.name,
            by=f"{len(p.pipeline.cluster)} for {m} devices",
        )
    for key, size in (("device_kinds", m), ("operator_modules", n)):
        given = getattr(p, key)
        if given and len(given) != size:
            by = f"{len(given)}, expected {size}"
            raise InputError(f"{key} has the wrong length", where=p.name, by=by)
    for key, names in (("operator", p.operator_names), ("device", p.device_names)):
        if len(set(names)) < len(names):
            raise InputError(f"{key} names must differ from each other", where=p.name)


def _check_values(p: OperatorProblem) -> None:
    for key in _FLOATS:
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
            "no device can run it", where=f"{p.name}: {p.operator_names[unsupported[0]]!r}"
        )
    for key in ("tensor_bytes", "resident_bytes", "host_seconds_per_byte"):
        if not np.isfinite(getattr(p, key)).all():
            raise InputError(f"{key} must be finite", where=p.name)
    check_bytes(p)
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
    check_views(p)
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
