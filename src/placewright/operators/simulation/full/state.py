"""State of the full simulator: a problem and one simulation of it, in two flat arrays.

Every whole number stands in one int64 array ``w``, every real number in one float64 array ``x``,
one part after the other, and `Layout` says where each part begins::

    w  | producer | offsets | ... | memory_bytes | second_pass | waiting | ready_queue | ... |
         ^ 0        ^ t                                          ^ o.waiting
         <------------- the problem, read only -------------->   <---- one simulation ------>
    x  | compute_s | tensor_bytes | latency_s | seconds_per_byte | priority | start_s | ... |
         <------------- the problem, read only --------------->   <---- one simulation --->

``w[o.waiting + j]`` is how many inputs operator j waits for. Compiled functions that hand this
state to each other pay for two references instead of forty, which makes the event loop a hundred
times faster than tuples of arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.structure.costs import Costs


class Layout(NamedTuple):
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
    o: Layout


def make_state(costs: Costs, channels: int, second_pass: BoolArray | None = None) -> SimulatorState:
    """A problem with room for the simulation of any placement.

    `second_pass`: Shape (n,), the operators of the second pass, where passes do not mix.
    """
    (n, m), t = costs.compute_s.shape, len(costs.producer)
    # A tensor goes to no more devices than it has readers, nor than there are others.
    transfers = int(np.minimum(np.diff(costs.offsets), m - 1).sum())
    # Names of `Costs` are those of `Layout`, so that parts need no list of their own.
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
    return SimulatorState(w, x, Layout(n, m, t, channels, len(costs.views), passes, **begin))


def copy_state(state: SimulatorState) -> SimulatorState:
    """A state of its own for another thread."""
    return SimulatorState(state.w.copy(), state.x.copy(), state.o)


def _own_sizes(
    n: int, m: int, t: int, channels: int, transfers: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Lengths of what a simulation writes, whole and real, in the order of `Layout`."""
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
