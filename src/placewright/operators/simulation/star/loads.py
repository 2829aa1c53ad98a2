"""Throughput of a plan whose transfers go through host memory (star).

The load of device d is its compute plus, for every tensor that some operators on d and some
elsewhere touch (make or read), bytes * host_seconds_per_byte[d], once: a tensor that leaves d
leaves once, one that enters enters once, and none does both. Sums run over operators, then over
tensors, in input order. Resident bytes are what a device must hold.

**Clusters.** Where all devices that touch a tensor are in one cluster, it costs device d bytes *
cluster_seconds_per_byte[d] instead, where that is less; a tensor that anything outside the cluster
touches goes through host memory for all.

**Copies.** A stage on r devices: each copy has 1/r of the load, and 2 (r - 1) / r *
sync_seconds_per_byte * resident bytes for a ring of all copies that averages what they learned
(PipeDream, doi 10.1145/3341301.3359646).

**Passes.** Where forward and backward passes do not mix (diffmaxima), a pass has the compute of
its operators and the transfers of the tensors that they make; synchronisation is backward. The
value is the largest forward load plus the largest backward load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem


@dataclass(frozen=True, slots=True, eq=False)
class StarLoads:
    """Seconds per sample on each device, shape (m,); incoming and outgoing tensors, (t, m)."""

    compute_s: FloatArray
    transfer_s: FloatArray
    sync_s: FloatArray
    entering: BoolArray
    leaving: BoolArray

    @property
    def load_s(self) -> FloatArray:
        """Compute, transfers and synchronisation."""
        return self.compute_s + self.transfer_s + self.sync_s


def star_value(problem: OperatorProblem, plan: OperatorPlan) -> float:
    """What a plan is worth: the largest load, or the sum of the largest of each pass."""
    if not problem.pipeline.diffmaxima:
        return float(star_loads(problem, plan).load_s.max())
    passes = (star_loads(problem, plan, late=late) for late in (False, True))
    return float(sum(part.load_s.max() for part in passes))


def star_loads(
    problem: OperatorProblem, plan: OperatorPlan, *, late: bool | None = None
) -> StarLoads:
    """What each device has to do per sample; of the backward pass (`late`) or the other alone."""
    p, place = problem, plan.placement
    entering, leaving = _crossings(p, place)
    took = p.compute_s[np.arange(p.n), place]
    tensor, device = np.nonzero(entering | leaving)
    paid = p.tensor_bytes[tensor] * host_rates(p, place)[tensor, device]
    if late is not None:
        took = np.where(p.is_backward == late, took, 0.0)
        paid = np.where(p.is_backward[p.tensor_producer[tensor]] == late, paid, 0.0)
    leader, copies = stages(p, plan)
    compute = np.bincount(place, took, minlength=p.m).astype(np.float64)
    transfer = np.bincount(device, paid, minlength=p.m).astype(np.float64)
    return StarLoads(
        compute_s=(compute / copies)[leader],
        transfer_s=(transfer / copies)[leader],
        sync_s=np.zeros(p.m) if late is False else sync_s(p, plan),
        entering=entering,
        leaving=leaving,
    )


def stages(problem: OperatorProblem, plan: OperatorPlan) -> tuple[IntArray, IntArray]:
    """Shape (m,) each: the device that each has copies of, and how many devices do."""
    own = np.arange(problem.m)
    leader = own if plan.replica_of is None else plan.replica_of
    copies = np.bincount(leader, minlength=problem.m)[leader]
    return leader, copies


def sync_s(problem: OperatorProblem, plan: OperatorPlan) -> FloatArray:
    """Shape (m,): seconds per sample for keeping copies equal."""
    leader, copies = stages(problem, plan)
    held = np.bincount(plan.placement, np.ceil(problem.resident_bytes), problem.m)[leader]
    ring: FloatArray = 2.0 * (copies - 1) / copies
    return ring * problem.pipeline.sync_seconds_per_byte * held


def host_rates(p: OperatorProblem, place: IntArray) -> FloatArray:
    """Shape (t, m): seconds per byte of each tensor on each device."""
    host = np.broadcast_to(p.host_seconds_per_byte, (p.t, p.m))
    if not p.pipeline.cluster:
        return host
    cluster = np.array(p.pipeline.cluster)
    touched = np.zeros((p.t, p.m), dtype=np.bool_)
    tensor = np.repeat(np.arange(p.t), np.diff(p.consumer_offsets))
    touched[tensor, place[p.consumers]] = True
    touched[np.arange(p.t), place[p.tensor_producer]] = True
    same = (cluster[:, None] == cluster) & (cluster >= 0)
    inside = touched.astype(np.int64) @ same
    within = (inside == touched.sum(axis=1)[:, None]) & (cluster >= 0)
    return np.where(within, cluster_rates(p), host)


def cluster_rates(problem: OperatorProblem) -> FloatArray:
    """Shape (m,): seconds per byte of what stays in a device's cluster, if it is in one."""
    p, asked = problem, problem.pipeline
    if not asked.cluster:
        return p.host_seconds_per_byte
    within = np.minimum(np.array(asked.cluster_seconds_per_byte), p.host_seconds_per_byte)
    return np.where(np.array(asked.cluster) < 0, p.host_seconds_per_byte, within)


def _crossings(p: OperatorProblem, placement: IntArray) -> tuple[BoolArray, BoolArray]:
    """Shape (t, m) each: which tensors enter and which leave a device."""
    tensor = np.repeat(np.arange(p.t), np.diff(p.consumer_offsets))
    home, reader = placement[p.tensor_producer], placement[p.consumers]
    away = reader != home[tensor]
    entering = np.zeros((p.t, p.m), dtype=np.bool_)
    entering[tensor[away], reader[away]] = True
    leaving = np.zeros((p.t, p.m), dtype=np.bool_)
    leaving[tensor[away], home[tensor[away]]] = True
    return entering, leaving
