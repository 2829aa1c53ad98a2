"""Judge of wing 3: the only code that gives a plan its value.

Loads first: what every node sends, receives and holds; then the formulas of the overlap modes.
With ideal ports a node has sent after ``sum count * send_s`` and received after
``sum count * receive_s``: no order of transfers can end sooner. With queued ports the transfers
are simulated one after another, which is what the trace draws in both cases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.report.trace import Trace
from placewright.samples.plan import SamplePlan, check_plan, held_after
from placewright.samples.problem import Ports, SampleProblem
from placewright.samples.simulation import (
    PortTimes,
    node_end_s,
    port_seconds,
    simulate_transfers,
    timeline,
    training_s,
    transfer_s,
)

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
