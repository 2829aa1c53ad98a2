"""A problem's arrays as compiled planners read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray, thawed
from placewright.numerics.njit import njit_cached
from placewright.operators.problem import OperatorProblem
from placewright.operators.sizes import home_bytes, room_bytes, views, whole_bytes


class Costs(NamedTuple):
    """Arrays of a problem and of its topology, bytes in whole ones.

    A tensor takes `home_bytes` where it is made, nothing if it is a view, and `kept_bytes` where
    it is received. `views` are those of tensors, each before what it is a view of. `channel` is -1
    wherever there is no link.

    For loops that run once per plan. A tuple of arrays costs a reference count per use: the
    judge, which runs millions of times, has `placewright.operators.simulation.full.state` instead.
    """

    compute_s: FloatArray
    producer: IntArray
    tensor_bytes: FloatArray
    offsets: IntArray
    consumers: IntArray
    latency_s: FloatArray
    seconds_per_byte: FloatArray
    channel: IntArray
    order: IntArray
    in_offsets: IntArray
    in_tensors: IntArray
    out_offsets: IntArray
    out_tensors: IntArray
    alias: IntArray
    views: IntArray
    home_bytes: IntArray
    kept_bytes: IntArray
    resident_bytes: IntArray
    memory_bytes: IntArray


def kernel_costs(problem: OperatorProblem) -> Costs:
    """A problem's arrays as the kernels take them; none is written to."""
    topology = problem.topology
    costs = Costs(
        compute_s=problem.compute_s,
        producer=problem.tensor_producer,
        tensor_bytes=problem.tensor_bytes,
        offsets=problem.consumer_offsets,
        consumers=problem.consumers,
        latency_s=problem.latency_s,
        seconds_per_byte=problem.seconds_per_byte,
        # One test for all kernels: a channel without finite latency and rate is no link.
        channel=np.where(linked(problem), problem.channel, -1),
        order=topology.order,
        in_offsets=topology.in_offsets,
        in_tensors=topology.in_tensors,
        out_offsets=topology.out_offsets,
        out_tensors=topology.out_tensors,
        alias=problem.alias_of,
        views=views(problem),
        home_bytes=whole_bytes(home_bytes(problem)),
        kept_bytes=whole_bytes(problem.tensor_bytes),
        resident_bytes=whole_bytes(problem.resident_bytes),
        memory_bytes=room_bytes(problem),
    )
    return Costs(*(thawed(part) for part in costs))


@njit_cached
def move_time(c: Costs, k: int, source: int, target: int) -> float:
    """Seconds of tensor `k` from `source` to `target`: zero on one device, ``inf`` unlinked."""
    if source == target:
        return 0.0
    if c.channel[source, target] < 0:
        return np.inf
    return c.latency_s[source, target] + c.tensor_bytes[k] * c.seconds_per_byte[source, target]  # type: ignore[no-any-return]


def linked(problem: OperatorProblem) -> BoolArray:
    """Shape (m, m): whether a tensor can go from one device to another; False on the diagonal."""
    p = problem
    pairs: BoolArray = (p.channel >= 0) & np.isfinite(p.latency_s + p.seconds_per_byte)
    return pairs & ~np.eye(p.m, dtype=np.bool_)
