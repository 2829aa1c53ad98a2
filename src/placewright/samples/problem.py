"""The problem of wing 3: nodes with samples and speeds, links for moving samples, epochs.

`generate` makes edge clouds at random, in four regimes: how uneven the nodes are, how slow the
links. Samples per node are log-normal; seconds per sample and bandwidths are log-uniform over their
spread. Each node has an access bandwidth; the link of two nodes is as fast as the slower of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import InfeasibleError, InputError, check_known
from placewright.io.arguments import checked
from placewright.numerics.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    axes,
    check_axes,
    check_names,
    digest_of,
    freeze_arrays,
    frozen_float,
)
from placewright.planning.contract import Problem
from placewright.report.text import plain_table, seconds

if TYPE_CHECKING:
    from placewright.samples.judge import SampleJudgement
    from placewright.samples.plan import SamplePlan


class Overlap(StrEnum):
    """How moving and training share the time.

    BARRIER (``A``): all nodes train once the last transfer has ended. STAGGERED (``B``): each
    node trains once its own transfers have ended. HIDDEN (``C``): nodes train while samples move.
    """

    BARRIER = "A"
    STAGGERED = "B"
    HIDDEN = "C"


class Duplex(StrEnum):
    """Whether a node sends and receives at the same time."""

    FULL = "full"
    HALF = "half"


class Batches(StrEnum):
    """How a synchronous step is shared.

    PROPORTIONAL: node i's batch is its share of the samples, its gradient is weighted with that
    share, and every node ends the epoch at the same step; the result is that of one node on the
    union of the batches. EQUAL: each node's batch has the same size, nodes with few samples run
    out, and every step takes as long as the slowest node that still takes part.
    """

    PROPORTIONAL = "proportional"
    EQUAL = "equal"


class Ports(StrEnum):
    """What a node's network port can do at a time.

    IDEAL: a node has sent after the sum of its transfers, to any node: the model of
    the bounds. QUEUED: transfers are simulated one after another, and wait for the port at the
    other end.
    """

    IDEAL = "ideal"
    QUEUED = "queued"


@checked
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SampleProblem(Problem["SamplePlan", "SampleJudgement"]):
    """All that a planner may know. Frozen, validated once, nothing of PyTorch in it.

    With n nodes and k classes of samples (one where classes do not matter):

    Attributes
    ----------
    samples
        Shape (n, k): what each node holds at the start.
    seconds_per_sample
        Shape (n,): to train on one sample once.
    fixed_s
        Shape (n,): what an epoch costs a node whatever it holds.
    send_s, receive_s
        Shape (n, n): seconds that one sample from i to j holds i's port, and j's port;
        ``inf`` where there is no link. They differ where the access links differ.
    latency_s
        Shape (n, n): seconds before a transfer's first byte; counts with queued ports only.
    storage
        Shape (n,): samples that fit; ``inf`` where unlimited.
    keep
        Shape (n, k): samples of its own that a node must keep.
    price_s
        Shape (n, n): seconds that the plan's value rises by for each sample that moves.
    epochs
        How often the training visits every sample.
    sync_s
        Seconds per epoch for exchanging gradients.
    relay
        Whether samples may travel through a third node.
    label_mix
        Largest distance of a class's share on a node from its share in all samples.
    sample_bytes
        Bytes of one sample; no plan depends on them.
    """

    node_names: tuple[str, ...]
    samples: IntArray = field(metadata=axes("nk"))
    seconds_per_sample: FloatArray = field(metadata=axes("n"))
    send_s: FloatArray = field(metadata=axes("nn"))
    receive_s: FloatArray = field(metadata=axes("nn"))
    latency_s: FloatArray = field(metadata=axes("nn"))
    storage: FloatArray = field(metadata=axes("n"))
    keep: IntArray = field(metadata=axes("nk"))
    price_s: FloatArray = field(metadata=axes("nn"))
    fixed_s: FloatArray = field(metadata=axes("n"))
    class_names: tuple[str, ...] = ("samples",)
    epochs: int = 1
    sync_s: float = 0.0
    overlap: Overlap = Overlap.STAGGERED
    duplex: Duplex = Duplex.FULL
    batches: Batches = Batches.PROPORTIONAL
    ports: Ports = Ports.IDEAL
    relay: bool = False
    label_mix: float = float("inf")
    sample_bytes: float = 0.0
    name: str = "samples"

    def __post_init__(self) -> None:
        freeze_arrays(self)
        for key, kind in ENUMS.items():
            object.__setattr__(self, key, kind(getattr(self, key)))
        check_problem(self)
        linked = np.isfinite(self.send_s) & np.isfinite(self.receive_s)
        for key in ("latency_s", "price_s"):
            object.__setattr__(self, key, frozen_float(np.where(linked, getattr(self, key), 0.0)))

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.node_names)

    @property
    def k(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def held(self) -> IntArray:
        """Shape (n,): samples of each node at the start, all classes together."""
        total: IntArray = self.samples.sum(axis=1)
        return total

    @property
    def work_s(self) -> FloatArray:
        """Shape (n,): what one sample on a node costs until the training ends."""
        work: FloatArray = self.epochs * self.seconds_per_sample
        return work

    @property
    def objective(self) -> str:
        """What is minimised, in words."""
        return "training time"

    def replace(self, **changes: Any) -> SampleProblem:
        """The same problem with some fields replaced, for example ``overlap="C"``."""
        return replace(self, **changes)

    def hash(self) -> str:
        """SHA-256 over everything that can change a plan."""
        return digest_of(self)

    def __repr__(self) -> str:
        return _problem_table(self)


ENUMS: dict[str, Any] = {
    "overlap": Overlap,
    "duplex": Duplex,
    "batches": Batches,
    "ports": Ports,
}


def _problem_table(problem: SampleProblem) -> str:
    """Options, and each node with its training time on the samples it holds."""
    head = (
        f"problem {problem.name}: {int(problem.held.sum())} samples on {problem.n} nodes, "
        f"{problem.epochs} epochs, overlap {problem.overlap}, duplex {problem.duplex}, "
        f"batches {problem.batches}" + (", relays" if problem.relay else "")
    )
    rows = [
        (
            problem.node_names[i],
            str(int(problem.held[i])),
            seconds(float(problem.seconds_per_sample[i])),
            seconds(float(problem.work_s[i] * problem.held[i])),
            f"{problem.storage[i]:g}" if math.isfinite(problem.storage[i]) else "-",
        )
        for i in range(min(problem.n, 16))
    ]
    more = f"\n... and {problem.n - 16} more nodes" if problem.n > 16 else ""
    header = ("node", "samples", "per sample", "trains for", "storage")
    return f"{head}\n{plain_table(header, rows, ' rrrr')}{more}"


MOST_NODES = 10_000
"""Every pair of them is a number in several tables: some GiB."""


MOST_SAMPLES = 10**18
"""Of all nodes together: sums of twice as many are still 64-bit numbers."""

LONGEST_S = 1e15
"""Solvers take larger numbers for infinity."""


def check_size(nodes: int, where: str) -> None:
    """Raise before tables are made that no memory holds.

    Raises `InputError`: too many nodes.
    """
    if nodes > MOST_NODES:
        raise InputError(
            f"{nodes} nodes are too many: {nodes**2:.2g} pairs of them",
            where=where,
            by=f"at most {MOST_NODES}",
            hint="split the cloud, or plan for groups of nodes",
        )


def check_problem(p: SampleProblem) -> None:
    """Raise where the problem is none.

    Raises `InputError`: shapes, negative numbers, a node that no link reaches, contradictory
    protections.
    Raises `InfeasibleError`: the samples do not fit all nodes together; says by how many.
    """
    _check_shapes(p)
    _check_values(p)
    _check_reach(p)
    _check_protection(p)
    _check_room(p)


def _check_shapes(p: SampleProblem) -> None:
    n, k = p.n, p.k
    if n == 0 or k == 0:
        raise InputError("a problem needs nodes and samples", where=p.name)
    check_axes(p, {"n": n, "k": k}, p.name)
    check_names("node", p.node_names, p.name)
    check_names("class", p.class_names, p.name)


def _check_values(p: SampleProblem) -> None:
    for key in ("samples", "keep", "seconds_per_sample", "fixed_s", "storage"):
        _refuse_negative(p, key)
    for key in ("send_s", "receive_s", "latency_s", "price_s"):
        if not (getattr(p, key) >= 0).all():
            raise InputError(f"{key} must be a number >= 0", where=p.name)
    for key in ("seconds_per_sample", "fixed_s", "price_s"):
        if not np.isfinite(getattr(p, key)).all():
            raise InputError(f"{key} must be finite", where=p.name)
    if p.epochs < 1:
        raise InputError("epochs must be at least 1", where=p.name, by=f"got {p.epochs}")
    if not 0 <= p.sync_s < np.inf or not p.label_mix >= 0:
        raise InputError("sync_s and label_mix must be numbers >= 0", where=p.name)
    total = float(p.samples.sum(dtype=np.float64))  # whole numbers might overflow
    if total == 0:
        raise InputError("there are no samples", where=p.name)
    if total > MOST_SAMPLES:
        by = f"{total:.3g} of all nodes together, at most {MOST_SAMPLES:.0e}"
        raise InputError("there are too many samples", where=p.name, by=by)
    with np.errstate(over="ignore"):
        alone_s = p.epochs * (p.seconds_per_sample * total + p.fixed_s + p.sync_s)
    if not alone_s.max() <= LONGEST_S:
        raise InputError(
            "training on this node alone takes too long for the solvers' numbers",
            where=f"{p.name}: node {p.node_names[int(alone_s.argmax())]!r}",
            by=f"{alone_s.max():.3g} s, at most {LONGEST_S:.0e} s",
            hint="check the unit of seconds_per_sample, fixed_s and sync_s",
        )


def _refuse_negative(p: SampleProblem, key: str) -> None:
    values = getattr(p, key)
    bad = np.argwhere(~(values >= 0))
    if len(bad):
        raise InputError(
            f"{key} must be a number >= 0",
            where=f"{p.name}: node {p.node_names[int(bad[0][0])]!r}",
            by=f"got {values[tuple(bad[0])]}",
        )


def _check_reach(p: SampleProblem) -> None:
    """Training is synchronous: every node must be reachable, at least one way."""
    linked = np.isfinite(p.send_s) & np.isfinite(p.receive_s)
    reached = _reached(linked | linked.T)
    cut_off = np.flatnonzero(~reached)
    if len(cut_off):
        raise InputError(
            f"node {p.node_names[int(cut_off[0])]!r} cannot be reached",
            where=p.name,
            by=f"{len(cut_off)} of {p.n} nodes have no path to {p.node_names[0]!r}",
            hint="add a link, or leave the node out",
        )


def _reached(linked: BoolArray) -> BoolArray:
    """Nodes with a path to the first."""
    reached = np.zeros(len(linked), dtype=np.bool_)
    reached[0] = True
    front = reached.copy()
    while front.any():
        front = linked[front].any(axis=0) & ~reached
        reached |= front
    return reached


def _check_protection(p: SampleProblem) -> None:
    more = np.argwhere(p.keep > p.samples)
    if len(more):
        i, c = more[0].tolist()
        what = f" of class {p.class_names[c]!r}" if p.k > 1 else ""
        raise InputError(
            f"node {p.node_names[i]!r} must keep more samples{what} than it has",
            where=p.name,
            by=f"keeps {p.keep[i, c]} of {p.samples[i, c]}",
        )
    full = np.flatnonzero(p.keep.sum(axis=1) > p.storage)
    if len(full):
        i = int(full[0])
        raise InputError(
            f"node {p.node_names[i]!r} must keep more samples than it may store",
            where=p.name,
            by=f"keep {p.keep[i].sum()}, storage {p.storage[i]:g}",
            hint="lower its keep, or raise its storage",
        )


def _check_room(p: SampleProblem) -> None:
    short = int(p.samples.sum()) - float(np.floor(p.storage).sum())
    if short > 0:
        raise InfeasibleError(
            "the samples do not fit all nodes together",
            where=p.name,
            by=f"{short:.0f} samples too many: {p.samples.sum()} for {p.storage.sum():g}",
            hint="raise a node's storage, or add a node",
        )


MEDIAN_SAMPLES = 1000.0
FASTEST_S_PER_SAMPLE = 0.005
SLOWEST_BYTES_PER_S = 4e6
LATENCY_S = 1e-3


@dataclass(frozen=True, slots=True)
class Regime:
    """One kind of edge cloud.

    `data_sigma`: of the logarithm of the samples per node.
    `compute_spread`, `bandwidth_spread`: largest divided by smallest.
    """

    name: str
    data_sigma: float
    compute_spread: float
    bandwidth_spread: float
    sample_bytes: int
    epochs: int


REGIMES = {
    regime.name: regime
    for regime in (
        Regime("mild", 0.5, 2.0, 4.0, 20_000, 10),
        Regime("moderate", 0.8, 4.0, 10.0, 60_000, 10),
        Regime("heavy", 1.2, 8.0, 20.0, 150_000, 20),
        Regime("network-bound", 1.0, 4.0, 20.0, 150_000, 1),
    )
}


@checked
def generate(regime: str, nodes: int, seed: int = 0) -> SampleProblem:
    """A problem of the regime; the same seed gives the same problem.

    Raises `UnknownNameError`: no regime of this name.
    Raises `InputError`: more nodes than fit in memory, pair by pair.
    """
    check_size(nodes, where=f"{regime} cloud")
    check_known("regime", regime, REGIMES)
    chosen = REGIMES[regime]
    rng = np.random.default_rng(seed)
    samples = np.maximum(1, rng.lognormal(np.log(MEDIAN_SAMPLES), chosen.data_sigma, nodes))
    seconds = FASTEST_S_PER_SAMPLE * chosen.compute_spread ** rng.random(nodes)
    access = np.rint(SLOWEST_BYTES_PER_S * chosen.bandwidth_spread ** rng.random(nodes))
    sample_s = chosen.sample_bytes / np.minimum(access[:, None], access[None, :])
    np.fill_diagonal(sample_s, np.inf)
    whole = samples.round().astype(np.int64)[:, None]
    return SampleProblem(
        node_names=tuple(f"n{i}" for i in range(nodes)),
        samples=whole,
        seconds_per_sample=seconds,
        send_s=sample_s,
        receive_s=sample_s,
        latency_s=np.full((nodes, nodes), LATENCY_S),
        storage=np.full(nodes, np.inf),
        keep=np.zeros_like(whole),
        price_s=np.zeros((nodes, nodes)),
        fixed_s=np.zeros(nodes),
        epochs=chosen.epochs,
        sample_bytes=float(chosen.sample_bytes),
        name=f"{regime}-{nodes}-{seed}",
    )
