"""State of the full simulator: a problem and one simulation of it, in two flat arrays.

Every whole number stands in one int64 array ``w``, every real number in one float64 array ``x``,
one part after the other, and `StateLayout` says where each part begins::

    w  | producer | offsets | ... | memory_bytes | second_pass | waiting | ready_queue | ... |
         ^ 0        ^ t                                          ^ o.waiting
         <------------- the problem, read only -------------->   <---- one simulation ------>
    x  | compute_s | tensor_bytes | latency_s | seconds_per_byte | priority | start_s | ... |
         <------------- the problem, read only --------------->   <---- one simulation --->

``w[o.waiting + j]`` is how many inputs operator j waits for. Compiled functions that hand this
state to each other pay for two references instead of forty, which makes the event loop a hundred
times faster than tuples of arrays.

Before a simulation come priorities, the transfers of the placement, and empty queues; compiled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_inline, njit_internal
from placewright.operators.costs import Costs
from placewright.operators.queues import push
from placewright.operators.simulation.inputs import DONE, NO_KERNEL, NO_LINK, Mode


@by_reference
class StateLayout(NamedTuple):
    """Sizes, then where each part of ``w`` and ``x`` begins; the length of each is in brackets.

    A *transfer* brings one tensor to one other device. Transfers are numbered by tensor: those of
    tensor k are ``w[o.first_transfer + k]`` to ``w[o.first_transfer + k + 1]``, and at most T can
    exist under any placement. An *event* is a device (its operator ends) or m + a transfer (it
    arrives); its time is ``x[o.event_s + event]``. E is the number of tensor uses, C of channels.
    """

    n: int  # operators
    m: int  # devices
    t: int  # tensors
    channels: int
    shared: int  # tensors that are views of tensors
    passes: int  # 2 where forward and backward passes do not mix (rule L4), else 1
    # w, the problem: as `Costs` has it
    producer: int  # [t]
    offsets: int  # [t + 1] CSR of consumers, by tensor
    consumers: int  # [E]
    channel: int  # [m * m] -1 without a link
    order: int  # [n] topological
    in_offsets: int  # [n + 1] CSR of in_tensors, by operator
    in_tensors: int  # [E]
    out_offsets: int  # [n + 1] CSR of out_tensors, by operator
    out_tensors: int  # [t]
    alias: int  # [t] the base of a view, negative for other tensors
    views: int  # [shared] views of tensors, each before its base
    home_bytes: int  # [t] on the device where it is made: 0 for a view
    kept_bytes: int  # [t] on a device that receives it
    resident_bytes: int  # [n]
    memory_bytes: int  # [m]
    second_pass: int  # [n] 1 for operators of the second of two passes
    # w, the simulation: operators and devices
    waiting: int  # [n] inputs that have not come
    ready_queue: int  # [n] heaps of ready operators by device; in order, each device's sequence
    ready_base: int  # [m + 1] where each device's part of ready_queue begins
    ready_count: int  # [m] size of its heap; in order, how many it has started
    running: int  # [m] operator, -1 if idle
    # w, the simulation: transfers and channels
    first_transfer: int  # [t + 1]
    transfer_tensor: int  # [T]
    transfer_target: int  # [T]
    best_reader: int  # [T] its consumer on the target that comes first in the order
    copy_readers: int  # [T] consumers (and views) on the target that have not ended
    request_queue: int  # [T] heaps of requests by channel; links free: requests of this instant
    request_base: int  # [C + 1] where each channel's part of request_queue begins
    request_count: int  # [C]
    channel_busy: int  # [C] 0 or 1
    touched_channels: int  # [C] those that have to choose at this instant
    is_touched: int  # [C] 0 or 1
    # w, the simulation: events and memory
    event_queue: int  # [m + T] heap
    home_readers: int  # [t] its producer, readers and transfers where it is made, until they end
    held: int  # [m] bytes now
    peak: int  # [m] most bytes at any time so far
    last_transfer: int  # [m] scratch: the last transfer (or tensor) found for each device
    transfer_count: int  # [1]
    event_count: int  # [1]
    touched_count: int  # [1]
    finished: int  # [1] operators that have ended
    failed_item: int  # [1] the transfer or operator that made a simulation fail
    # x, the problem
    compute_s: int  # [n * m]
    tensor_bytes: int  # [t]
    latency_s: int  # [m * m]
    seconds_per_byte: int  # [m * m]
    # x, the simulation
    priority: int  # [n] the least comes first
    start_s: int  # [n]
    end_s: int  # [n]
    requested_s: int  # [T] when each transfer was requested
    sent_s: int  # [T] when it started
    event_s: int  # [m + T]
    changed_s: int  # [m] since when a device holds what it holds


class SimulatorState(NamedTuple):
    """Whole numbers, reals, and where each part of them begins."""

    w: IntArray
    x: FloatArray
    o: StateLayout


def make_state(costs: Costs, channels: int, second_pass: BoolArray | None = None) -> SimulatorState:
    """A problem with room for the simulation of any placement.

    `second_pass`: Shape (n,), the operators of the second pass, where passes do not mix.
    """
    (n, m), t = costs.compute_s.shape, len(costs.producer)
    # A tensor goes to no more devices than it has readers, nor than there are others.
    transfers = int(np.minimum(np.diff(costs.offsets), m - 1).sum())
    # Names of `Costs` are those of `StateLayout`, so that parts need no list of their own.
    given = {name: array.ravel() for name, array in costs._asdict().items()}
    given["second_pass"] = np.zeros(n, np.int64) if second_pass is None else second_pass + 0
    own_whole, own_real = _own_sizes(n, m, t, channels, transfers)
    whole = {name: len(a) for name, a in given.items() if a.dtype == np.int64} | own_whole
    real = {name: len(a) for name, a in given.items() if a.dtype == np.float64} | own_real
    begin = _begins(whole) | _begins(real)
    w, x = np.zeros(sum(whole.values()), dtype=np.int64), np.zeros(sum(real.values()))
    for name, array in given.items():
        part = w if name in whole else x
        part[begin[name] : begin[name] + len(array)] = array
    passes = 1 if second_pass is None else 2
    return SimulatorState(w, x, StateLayout(n, m, t, channels, len(costs.views), passes, **begin))


def copy_state(state: SimulatorState) -> SimulatorState:
    """A state of its own for another thread."""
    return SimulatorState(state.w.copy(), state.x.copy(), state.o)


def _own_sizes(
    n: int, m: int, t: int, channels: int, transfers: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Lengths of what a simulation writes, whole and real, in the order of `StateLayout`."""
    whole = {"waiting": n, "ready_queue": n, "ready_base": m + 1, "ready_count": m, "running": m}
    whole |= {"first_transfer": t + 1, "transfer_tensor": transfers, "transfer_target": transfers}
    whole |= {"best_reader": transfers, "copy_readers": transfers, "request_queue": transfers}
    whole |= {"request_base": channels + 1, "request_count": channels, "channel_busy": channels}
    whole |= {"touched_channels": channels, "is_touched": channels}
    whole |= {"event_queue": m + transfers, "home_readers": t, "held": m, "peak": m}
    whole |= {"last_transfer": m, "transfer_count": 1, "event_count": 1, "touched_count": 1}
    whole |= {"finished": 1, "failed_item": 1}
    real = {"priority": n, "start_s": n, "end_s": n, "requested_s": transfers, "sent_s": transfers}
    return whole, real | {"event_s": m + transfers, "changed_s": m}


def _begins(lengths: dict[str, int]) -> dict[str, int]:
    ends = np.cumsum(list(lengths.values())).tolist()
    return {name: end - size for (name, size), end in zip(lengths.items(), ends, strict=True)}


@njit_inline
def transfer_s(x: FloatArray, o: StateLayout, k: int, source: int, target: int) -> float:
    """Seconds that tensor `k` holds the channel from `source` to `target` (rule C2)."""
    pair = source * o.m + target
    return x[o.latency_s + pair] + x[o.tensor_bytes + k] * x[o.seconds_per_byte + pair]  # type: ignore[no-any-return]


@njit_inline
def channel_of(w: IntArray, o: StateLayout, place: IntArray, e: int) -> int:
    """The channel of transfer `e`."""
    source = place[w[o.producer + w[o.transfer_tensor + e]]]
    return w[o.channel + source * o.m + w[o.transfer_target + e]]  # type: ignore[no-any-return]


@njit_internal
def rank_upward(w: IntArray, x: FloatArray, o: StateLayout, place: IntArray) -> None:
    """Set the priorities of rule O2: minus the upward rank, so that the least comes first."""
    for at in range(o.n - 1, -1, -1):
        i = w[o.order + at]
        here = place[i]
        # Operators against the topological order: ranks of all readers are there.
        tail = 0.0
        for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
            k = w[o.out_tensors + a]
            for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
                j = w[o.consumers + b]
                path = -x[o.priority + j]
                if place[j] != here:
                    path += transfer_s(x, o, k, here, place[j])
                tail = max(tail, path)
        x[o.priority + i] = -(x[o.compute_s + i * o.m + here] + tail)


@njit_inline
def _comes_before(x: FloatArray, o: StateLayout, i: int, j: int) -> bool:
    """Whether operator `i` comes before `j` in the order (rule O3)."""
    a, b = x[o.priority + i], x[o.priority + j]
    return a < b or (a == b and i < j)


@njit_internal
def list_transfers(w: IntArray, x: FloatArray, o: StateLayout, place: IntArray) -> int:
    """Number the transfers: each tensor once per other device that reads it (rule C1).

    Also finds the best reader of each (rule C4), and counts the readers of every copy (rule M2).
    """
    for d in range(o.m):
        w[o.last_transfer + d] = -1
    count = 0
    for k in range(o.t):
        source = place[w[o.producer + k]]
        first = count
        home_readers = 1  # the producer itself
        w[o.first_transfer + k] = first
        for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
            j = w[o.consumers + b]
            target = place[j]
            if target == source:
                home_readers += 1
                continue
            e = w[o.last_transfer + target]
            # Transfers of earlier tensors have lower numbers: `last_transfer` need not be cleared.
            if e >= first:  # this tensor goes to `target` already
                w[o.copy_readers + e] += 1
                if _comes_before(x, o, j, w[o.best_reader + e]):
                    w[o.best_reader + e] = j
                continue
            w[o.last_transfer + target] = count
            w[o.transfer_tensor + count], w[o.transfer_target + count] = k, target
            w[o.best_reader + count], w[o.copy_readers + count] = j, 1
            if w[o.channel + source * o.m + target] < 0:
                w[o.failed_item] = count
                return NO_LINK
            home_readers += 1  # the transfer reads the tensor where it is made
            count += 1
        w[o.home_readers + k] = home_readers
    w[o.first_transfer + o.t] = count
    w[o.transfer_count] = count
    return DONE


@njit_inline
def _fill(w: IntArray, begin: int, size: int, value: int) -> None:
    for at in range(begin, begin + size):
        w[at] = value


@njit_inline
def reset(w: IntArray, x: FloatArray, o: StateLayout, place: IntArray) -> int:
    """Empty the device queues, sized for this placement; hold resident bytes (rule M1)."""
    _fill(w, o.ready_base, o.m + 1, 0)
    _fill(w, o.ready_count, o.m, 0)
    _fill(w, o.held, o.m, 0)
    for i in range(o.n):
        d = place[i]
        if not np.isfinite(x[o.compute_s + i * o.m + d]):
            w[o.failed_item] = i
            return NO_KERNEL
        # Counts by device, one place later, become begins below.
        w[o.ready_base + d + 1] += 1
        w[o.held + d] += w[o.resident_bytes + i]
        w[o.waiting + i] = w[o.in_offsets + i + 1] - w[o.in_offsets + i]
    for d in range(o.m):
        w[o.ready_base + d + 1] += w[o.ready_base + d]
        w[o.peak + d] = w[o.held + d]
        w[o.running + d] = -1
        x[o.changed_s + d] = 0.0
    w[o.event_count] = w[o.touched_count] = w[o.finished] = 0
    return DONE


@njit_inline
def reset_channels(w: IntArray, o: StateLayout, place: IntArray) -> None:
    """Empty the channel queues, sized for this placement's transfers."""
    _fill(w, o.request_base, o.channels + 1, 0)
    _fill(w, o.request_count, o.channels, 0)
    _fill(w, o.channel_busy, o.channels, 0)
    _fill(w, o.is_touched, o.channels, 0)
    for e in range(w[o.transfer_count]):
        w[o.request_base + channel_of(w, o, place, e) + 1] += 1
    for channel in range(o.channels):
        w[o.request_base + channel + 1] += w[o.request_base + channel]


@njit_inline
def push_ready(w: IntArray, x: FloatArray, o: StateLayout, d: int, i: int) -> None:
    """Operator `i` is ready on device `d`."""
    push(w, o.ready_queue + w[o.ready_base + d], w[o.ready_count + d], x, o.priority, i)
    w[o.ready_count + d] += 1


@njit_inline
def fill_queues(
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, place: IntArray, order: IntArray
) -> None:
    """Queue what has no inputs; in order, the whole sequence of every device."""
    for at in range(o.n):
        i = order[at] if mode.in_order else at
        d = place[i]
        if mode.in_order:
            w[o.ready_queue + w[o.ready_base + d] + w[o.ready_count + d]] = i
            w[o.ready_count + d] += 1
        elif w[o.waiting + i] == 0:
            push_ready(w, x, o, d, i)
    if mode.in_order:
        _fill(w, o.ready_count, o.m, 0)  # from now on: how many have started
