"""Judge of wing 3: the only code that gives a plan its value.

Loads first: what every node sends, receives and holds; then the formulas of the overlap modes.
With ideal ports a node has sent after ``sum count * send_s`` and received after
``sum count * receive_s``: no order of transfers can end sooner. With queued ports the transfers
are simulated one after another, which is what the trace draws in both cases.

**Ends.** With t_i the end of node i's transfers and w_i the end of its training if that began at 0,
the training ends, before gradient exchange and the price of moving, at

- BARRIER    max t + max w
- STAGGERED  max (t + w); with equal batches, where every step needs all nodes, max t + max w
- HIDDEN     max (max t, max w)

**Queued ports.** A port serves one transfer at a time, which holds the ports at both ends. Whenever
a port is free, the first transfer in the plan's order starts whose other port is free too and
whose source holds samples. A relay that does not hold everything yet sends what it has, and the
rest when more has arrived.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.report.trace import Trace
from placewright.samples.plan import SamplePlan, check_plan, held_after
from placewright.samples.problem import Batches, Duplex, Overlap, Ports, SampleProblem

MOST_SPANS = 4000
"""Epochs of all nodes above which a node's epochs are one span."""


def port_seconds(node: IntArray, port_s: FloatArray, n: int) -> FloatArray:
    """Shape (n,): seconds by node; an empty bincount would be of whole numbers."""
    return np.bincount(node, port_s, minlength=n).astype(np.float64)


def transfer_s(problem: SampleProblem, out_s: FloatArray, in_s: FloatArray) -> FloatArray:
    """Shape (n,): when each node's transfers have ended, with ideal ports."""
    if problem.duplex is Duplex.HALF:
        return np.add(out_s, in_s)
    return np.maximum(out_s, in_s)


def training_s(problem: SampleProblem, held: IntArray | FloatArray) -> FloatArray:
    """Shape (n,): seconds from the start of training to each node's last step, all epochs."""
    fixed_s = problem.epochs * problem.fixed_s
    if problem.batches is Batches.PROPORTIONAL:
        own: FloatArray = problem.work_s * held + fixed_s
        return own
    equal: FloatArray = _equal_batches_s(problem.work_s, held) + fixed_s.max()
    return equal


def _equal_batches_s(work_s: FloatArray, held: IntArray | FloatArray) -> FloatArray:
    """A step takes as long as the slowest node that still has samples."""
    order = np.argsort(held, kind="stable")
    slowest = np.maximum.accumulate(work_s[order][::-1])[::-1]
    end = np.empty(len(order))
    end[order] = np.cumsum(np.diff(held[order], prepend=0) * slowest)
    return end


def waits_for_all(problem: SampleProblem) -> bool:
    """Whether no node can start before the last transfer."""
    equal = problem.batches is Batches.EQUAL and problem.overlap is Overlap.STAGGERED
    return equal or problem.overlap is Overlap.BARRIER


def node_end_s(problem: SampleProblem, moved_s: FloatArray, trained_s: FloatArray) -> FloatArray:
    """Shape (n,): when each node ends, without gradient exchange."""
    if problem.overlap is Overlap.HIDDEN:
        return np.maximum(moved_s, trained_s)
    start_s = moved_s.max() if waits_for_all(problem) else moved_s
    end: FloatArray = start_s + trained_s
    return end


@dataclass(frozen=True, slots=True, eq=False)
class PortTimes:
    """Spans of the transfers, in the order of their start.

    Attributes
    ----------
    move, count, start_s, end_s
        One entry per span: index of the move, samples, seconds.
    stuck
        Samples that could never leave, because their source never held them.
    """

    move: IntArray
    count: IntArray
    start_s: FloatArray
    end_s: FloatArray
    stuck: int

    def node_s(self, problem: SampleProblem, plan: SamplePlan) -> FloatArray:
        """Shape (n,): end of each node's last transfer."""
        last = np.zeros(problem.n)
        np.maximum.at(last, plan.source[self.move], self.end_s)
        np.maximum.at(last, plan.target[self.move], self.end_s)
        return last


def simulate_transfers(problem: SampleProblem, plan: SamplePlan) -> PortTimes:
    """Times of the transfers of `plan` with queued ports."""
    ports = _Ports(problem, plan)
    ports.start(range(len(plan.source)))
    while ports.running:
        ports.end_next()
    return ports.times()


class _Ports:
    """State of the simulation: busy ports, samples of each node, transfers that are left."""

    def __init__(self, problem: SampleProblem, plan: SamplePlan) -> None:
        self.source, self.target = plan.source.tolist(), plan.target.tolist()
        self.kind, self.left = plan.sample_class.tolist(), plan.count.tolist()
        at = (plan.source, plan.target)
        self.sample_s = np.maximum(problem.send_s[at], problem.receive_s[at]).tolist()
        self.latency_s = problem.latency_s[at].tolist()
        self.held = problem.samples.tolist()
        self.n = problem.n
        self.busy = [False] * (2 * problem.n)
        self.receive_port = problem.n if problem.duplex is Duplex.FULL else 0
        self.of_node: list[list[int]] = [[] for _ in range(problem.n)]
        for m, (i, j) in enumerate(zip(self.source, self.target, strict=True)):
            self.of_node[i].append(m)
            self.of_node[j].append(m)
        self.now_s = 0.0
        self.running: list[tuple[float, int, int]] = []
        self.spans: list[tuple[int, int, float, float]] = []

    def start(self, moves: range | list[int]) -> None:
        """Start what can start, in the order given."""
        for m in moves:
            i, into = self.source[m], self.target[m] + self.receive_port
            count = min(self.left[m], self.held[i][self.kind[m]])
            if count < 1 or self.busy[i] or self.busy[into]:
                continue
            end_s = self.now_s + self.latency_s[m] + count * self.sample_s[m]
            self.busy[i] = self.busy[into] = True
            self.left[m] -= count
            self.held[i][self.kind[m]] -= count
            self.spans.append((m, count, self.now_s, end_s))
            heapq.heappush(self.running, (end_s, m, count))

    def end_next(self) -> None:
        """End the next transfer, and start what can start at its two nodes."""
        self.now_s, m, count = heapq.heappop(self.running)
        i, j = self.source[m], self.target[m]
        self.busy[i] = self.busy[j + self.receive_port] = False
        self.held[j][self.kind[m]] += count
        for node in (i, j):
            self.of_node[node] = [x for x in self.of_node[node] if self.left[x] > 0]
        self.start(sorted({*self.of_node[i], *self.of_node[j]}))

    def times(self) -> PortTimes:
        """Spans of all transfers."""
        move, count, start_s, end_s = zip(*self.spans, strict=True) if self.spans else [()] * 4
        return PortTimes(
            np.array(move, dtype=np.int64),
            np.array(count, dtype=np.int64),
            np.array(start_s, dtype=np.float64),
            np.array(end_s, dtype=np.float64),
            sum(self.left),
        )


def timeline(
    problem: SampleProblem, plan: SamplePlan, times: PortTimes, trained_s: FloatArray
) -> Trace:
    """Trace of a plan; `trained_s` is each node's training time."""
    moved_s = times.node_s(problem, plan)
    begin_s = _begin_s(problem, moved_s)
    epochs = problem.epochs if problem.n * problem.epochs <= MOST_SPANS else 1
    end_s = float(np.maximum(begin_s + trained_s, moved_s).max())
    sync_s = problem.epochs * problem.sync_s
    pairs = list(dict.fromkeys(zip(plan.source.tolist(), plan.target.tolist(), strict=True)))
    track_of = {pair: problem.n + k for k, pair in enumerate(pairs)}
    name = problem.node_names
    epoch_labels = [
        f"epoch {e + 1}" if epochs > 1 else f"{problem.epochs} epochs" for e in range(epochs)
    ]
    labels = [*epoch_labels, "gradient exchange", *(f"{c} samples" for c in times.count.tolist())]
    step_s = trained_s / epochs
    first_s = begin_s[:, None] + step_s[:, None] * np.arange(epochs)
    nodes = np.arange(problem.n)
    synced = nodes if sync_s > 0 else nodes[:0]
    moves = times.move
    return Trace(
        tracks=(*name, *(f"{name[i]}->{name[j]}" for i, j in pairs)),
        devices=problem.n,
        labels=tuple(labels),
        track=np.concatenate([np.repeat(nodes, epochs), synced, _tracks(plan, times, track_of)]),
        label=np.concatenate(
            [
                np.tile(np.arange(epochs), problem.n),
                np.full(len(synced), epochs),
                epochs + 1 + np.arange(len(moves)),
            ]
        ),
        start_s=np.concatenate([first_s.ravel(), np.full(len(synced), end_s), times.start_s]),
        end_s=np.concatenate(
            [
                (first_s + step_s[:, None]).ravel(),
                np.full(len(synced), end_s + sync_s),
                times.end_s,
            ]
        ),
        title=problem.name,
    )


def _begin_s(problem: SampleProblem, moved_s: FloatArray) -> FloatArray:
    if problem.overlap is Overlap.HIDDEN:
        return np.zeros(problem.n)
    return np.full(problem.n, moved_s.max()) if waits_for_all(problem) else moved_s


def _tracks(
    plan: SamplePlan, times: PortTimes, track_of: dict[tuple[int, int], int]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    source, target = plan.source[times.move].tolist(), plan.target[times.move].tolist()
    tracks = [track_of[i, j] for i, j in zip(source, target, strict=True)]
    return np.array(tracks, dtype=np.int64)


ONE_SAMPLE = 1.0
"""Samples are whole: a label mix may be missed by one."""

Violation = tuple[str, float]
"""A broken limit in words, and how many samples it is broken by."""

KEPT: Violation = ("", 0.0)
"""No limit is broken."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleJudgement:
    """Judgement of a plan.

    Attributes
    ----------
    value
        Seconds until the training ends, gradient exchange and price included.
    violation, violation_size
        The first limit that is broken, in words and in samples; empty and zero if none is.
    out_s, in_s
        Shape (n,): seconds that each node's port sends, and receives.
    moved_s
        Shape (n,): when each node's transfers have ended.
    held
        Shape (n, k): samples after the move.
    trained_s
        Shape (n,): seconds of training after the start of training.
    end_s
        Shape (n,): when each node ends, without gradient exchange.
    price_s
        What moving costs beside time.
    """

    problem: SampleProblem
    plan: SamplePlan
    value: float
    violation: str
    violation_size: float
    out_s: FloatArray
    in_s: FloatArray
    moved_s: FloatArray
    held: IntArray
    trained_s: FloatArray
    end_s: FloatArray
    price_s: float

    @property
    def feasible(self) -> bool:
        """Whether every limit is kept."""
        return not self.violation

    @property
    def metrics(self) -> dict[str, tuple[float, str]]:
        """What moving takes, and costs."""
        moved = float(self.plan.count.sum())
        return {
            "moved samples": (moved, "samples"),
            "moved bytes": (moved * self.problem.sample_bytes, "bytes"),
            "last transfer": (float(self.moved_s.max()), "s"),
            "price": (self.price_s, "s"),
        }

    def transfers(self) -> PortTimes:
        """The transfers, one after another at every port."""
        return simulate_transfers(self.problem, self.plan)

    def queued_value(self) -> float:
        """The value if ports queue: transfers wait for each other."""
        moved_s = self.transfers().node_s(self.problem, self.plan)
        end_s = node_end_s(self.problem, moved_s, self.trained_s)
        return _value(self.problem, end_s, self.price_s)

    def trace(self) -> Trace:
        """Transfers, epochs and gradient exchange, with queued ports."""
        return timeline(self.problem, self.plan, self.transfers(), self.trained_s)


def judge(problem: SampleProblem, plan: SamplePlan) -> SampleJudgement:
    """Seconds that a plan takes, and what it breaks.

    Raises `InputError`: a move over a link that does not exist (see `check_plan`).
    """
    check_plan(problem, plan)
    at = (plan.source, plan.target)
    out_s = port_seconds(plan.source, plan.count * problem.send_s[at], problem.n)
    in_s = port_seconds(plan.target, plan.count * problem.receive_s[at], problem.n)
    held = held_after(problem, plan)
    moved_s, stuck = transfer_s(problem, out_s, in_s), 0
    if problem.ports is Ports.QUEUED or problem.relay:
        times = simulate_transfers(problem, plan)
        stuck = times.stuck
        moved_s = times.node_s(problem, plan) if problem.ports is Ports.QUEUED else moved_s
    broken, size = _stuck(stuck) if stuck else violation(problem, plan, held)
    trained_s = training_s(problem, held.sum(axis=1))
    price_s = float((plan.count * problem.price_s[at]).sum())
    end_s = node_end_s(problem, moved_s, trained_s)
    return SampleJudgement(
        problem=problem,
        plan=plan,
        value=_value(problem, end_s, price_s),
        violation=broken,
        violation_size=float(size),
        out_s=out_s,
        in_s=in_s,
        moved_s=moved_s,
        held=held,
        trained_s=trained_s,
        end_s=end_s,
        price_s=price_s,
    )


def violation(problem: SampleProblem, plan: SamplePlan, held: IntArray) -> Violation:
    """The first limit that is broken, in words and in samples; empty and zero if none is."""
    for check in (_over_sent(problem, plan, held), _over_stored(problem, held)):
        if check[1] > 0:
            return check
    return _mix_missed(problem, held)


def _value(problem: SampleProblem, end_s: FloatArray, price_s: float) -> float:
    return float(end_s.max()) + problem.epochs * problem.sync_s + price_s


def _stuck(count: int) -> Violation:
    return f"{count} samples are sent on by nodes that never hold them", count


def _over_sent(p: SampleProblem, plan: SamplePlan, held: IntArray) -> Violation:
    """Without relays a node sends only what it held; what it must keep, it keeps."""
    if p.relay:
        left = held - p.keep
    else:
        left = p.samples - p.keep
        np.subtract.at(left, (plan.source, plan.sample_class), plan.count)
    if left.min() >= 0:
        return KEPT
    i, c = np.unravel_index(int(left.argmin()), left.shape)
    what = f" of class {p.class_names[c]}" if p.k > 1 else ""
    return f"{p.node_names[i]} sends {-left[i, c]} samples{what} more than it may", -left[i, c]


def _over_stored(p: SampleProblem, held: IntArray) -> Violation:
    over = held.sum(axis=1) - p.storage
    i = int(over.argmax())
    if over[i] <= 0:
        return KEPT
    return f"{p.node_names[i]} stores {over[i]:.0f} samples too many", over[i]


def _mix_missed(p: SampleProblem, held: IntArray) -> Violation:
    if not np.isfinite(p.label_mix):
        return KEPT
    share = p.samples.sum(axis=0) / p.samples.sum()
    total = held.sum(axis=1, keepdims=True)
    over = np.abs(held - share * total) - (p.label_mix * total + ONE_SAMPLE)
    i, c = np.unravel_index(int(over.argmax()), over.shape)
    if over[i, c] <= 0:
        return KEPT
    missed = f"misses the mix of class {p.class_names[c]} by {over[i, c]:.1f} samples"
    return f"{p.node_names[i]} {missed}", over[i, c]
