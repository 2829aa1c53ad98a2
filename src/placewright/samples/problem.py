"""The problem of wing 3: nodes with samples and speeds, links for moving samples, epochs."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np

from placewright.io.arguments import checked
from placewright.numerics.arrays import FloatArray, IntArray, freeze_arrays, frozen_float
from placewright.report.text import plain_table, seconds
from placewright.samples.checks import check_problem


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
class SampleProblem:
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
    samples: IntArray
    seconds_per_sample: FloatArray
    send_s: FloatArray
    receive_s: FloatArray
    latency_s: FloatArray
    storage: FloatArray
    keep: IntArray
    price_s: FloatArray
    fixed_s: FloatArray
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
        digest = hashlib.sha256()
        for item in fields(self):
            value = getattr(self, item.name)
            data = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            digest.update(item.name.encode() + b"\0" + data)
        return digest.hexdigest()

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
