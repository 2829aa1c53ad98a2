"""Throughput over links as a mixed-integer program.

x[v, d]: node v is on device d. Tensor k, made by a and read by R, is read on device d where
read[k, d] >= x[r, d] for r in R, and must then come from somewhere:

    sum over s of send[k, s, d] >= read[k, d] - x[a, d],     send[k, s, d] <= x[a, s].

Where all links of a tensor take the same time, what goes in and what goes out are enough:

    into[k, d] >= x[r, d] - x[a, d],  sum of out[k, .] = sum of into[k, .],
    out[k, d] <= min(m - 1, |R|) x[a, d],  out[k, d] >= x[a, d] - x[r, d].

In whole x these are the transfers of the judge. Where passes do not mix, each has loads of its own
and a largest one, and their sum is minimised. Symmetric devices are ordered
by pivots: the i-th pivot node may use the first i of them only; the heaviest nodes of the start's
devices are pivots. Where plans must be contiguous, position s of the chain is a device (pos[s, d]),
node v is at position s (at[v, s]), and for an edge (u, v) and every j

    sum over s <= j of at[v, s]  <=  sum over s <= j of at[u, s],
    at[v, s] + pos[s, d] <= 1 + x[v, d].

Devices that could change places come in their own order then, instead of by pivots.
"""

from __future__ import annotations

import time

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.planners.pipelines.links.contraction import Pairs
from placewright.operators.planners.pipelines.slots.program import (
    TOLERANCE,
    UNITS,
    WHOLE,
    chosen,
    in_seconds,
    limit_memory,
    sorted_out,
)
from placewright.planning.contract import Progress, silent
from placewright.solvers.programs import LinearProgram

MOST_SENDS = 60_000
"""Variables for transfers; larger models are left to others."""


def too_large(c: Pairs) -> bool:
    """Whether the program would have too many variables to be of use."""
    links = c.devices if _level(c) else c.devices**2
    return len(c.readers) * links > MOST_SENDS or c.nodes * c.devices > MOST_SENDS


def best_pairs(
    c: Pairs,
    start: IntArray | None,
    *,
    seed: int,
    deadline_s: float,
    progress: Progress = silent,
) -> tuple[IntArray | None, float, bool]:
    """Devices of the nodes, shape (N,), or ``None``; a lower bound in seconds; was it interrupted.

    `start`: a plan that fits, devices of the nodes.
    """
    value_s = c.most_s if start is None else c.value_s(start)
    if value_s <= 0.0 or time.perf_counter() >= deadline_s:
        return None, 0.0, False
    program = _build(c, start, value_s, seed)
    found = program.solve(deadline_s, progress=in_seconds(progress, value_s))
    bound = max(0.0, found.bound - 10 * TOLERANCE) * value_s / UNITS
    return chosen(found), bound, found.interrupted


def _level(c: Pairs) -> bool:
    """Whether each tensor takes the same time over every link."""
    off = c.send_s[:, ~np.eye(c.devices, dtype=np.bool_)]
    return bool(np.isfinite(off).all() and (off == off[:, :1]).all())


def _build(c: Pairs, start: IntArray | None, value_s: float, seed: int) -> LinearProgram:
    """The program; block ``x`` has a column for every node and device."""
    program, scale = LinearProgram(seed=seed, tolerance=WHOLE), UNITS / value_s
    largest = program.columns(c.passes, high=UNITS * (1 + 1e-6), cost=1.0)
    # What alone takes longer than the start is in no better plan.
    allowed = c.work_s <= value_s * (1 + 1e-9)
    if start is not None and len(c.edges):
        # One way of breaking the symmetry of like devices, never both: the start must stay a
        # solution.
        start = ascending(c, start)
    elif start is not None:
        start, later = sorted_out(c.work_s, c.alike, start)
        allowed &= ~later
    x = program.columns(allowed.shape, high=1.0, whole=True, where=allowed, name="x")
    program.enter(program.rows(c.nodes, 1.0, 1.0)[:, None], x, 1.0)
    load = program.rows((c.passes, c.devices), high=0.0)
    program.enter(load, largest[:, None], -1.0)
    work, backward = (np.where(allowed, all_s, 0.0) * scale for all_s in (c.work_s, c.backward_s))
    program.enter(load[0], x, work - backward)
    program.enter(load[-1], x, backward)
    send = _send_level if _level(c) else _send
    send(c, program, load[c.backward.astype(np.int64)], x, scale)
    limit_memory(program, x, c.resident_bytes, c.memory_bytes)
    if start is not None:
        program.start(x, start[:, None] == np.arange(c.devices))
    if len(c.edges):
        _chain(c, program, x, start)
    return program


def _readers(c: Pairs) -> tuple[IntArray, IntArray]:
    """Tensor and reader of every pair of them."""
    counts = [len(some) for some in c.readers]
    flat = [r for some in c.readers for r in some]
    return np.repeat(np.arange(len(counts)), counts), np.array(flat, dtype=np.int64)


def _send(c: Pairs, program: LinearProgram, load: IntArray, x: IntArray, scale: float) -> None:
    """Transfers of every tensor from device to device."""
    (k, r), home, m = _readers(c), x[c.producer], c.devices
    on, only = np.zeros(home.shape, dtype=np.int64), np.full(home.shape, -1)
    np.add.at(on, k, x[r] >= 0)
    np.maximum.at(only, k, x[r])
    # A column no less than those of all readers; one reader's own says whether it reads there.
    read = program.columns(home.shape, high=1.0, where=on > 1)
    rows = program.rows(x[r].shape, low=0.0, where=(x[r] >= 0) & (read[k] >= 0))
    program.enter(rows, read[k], 1.0)
    program.enter(rows, x[r], -1.0)
    read = np.where(read >= 0, read, only)
    # What alone takes longer than the start is in no better plan.
    there = (c.send_s * scale <= UNITS * (1 + 1e-9)) & ~np.eye(m, dtype=np.bool_)
    there &= (home >= 0)[:, :, None] & (read >= 0)[:, None, :]
    send = program.columns(there.shape, high=1.0, where=there)
    rows = program.rows(there.shape, high=0.0, where=there)
    program.enter(rows, send, 1.0)
    program.enter(rows, home[:, :, None], -1.0)
    price = np.where(there, c.send_s, 0.0) * scale
    program.enter(load[:, :, None], send, price)
    program.enter(load[:, None, :], send, price)
    arrives = program.rows(home.shape, low=0.0, where=read >= 0)
    program.enter(arrives[:, None, :], send, 1.0)
    program.enter(arrives, home, 1.0)
    program.enter(arrives, read, -1.0)


def _send_level(
    c: Pairs, program: LinearProgram, load: IntArray, x: IntArray, scale: float
) -> None:
    """Transfers of tensors into and out of every device; all links take the same time."""
    if c.devices < 2:
        return
    (k, r), home, price = _readers(c), x[c.producer], c.send_s[:, 0, 1] * scale
    costs = (price > 0)[:, None]
    most = np.minimum(c.devices - 1, [len(some) for some in c.readers])[:, None].astype(np.float64)
    # What alone takes longer than the start is in no better plan.
    sent = (price <= UNITS * (1 + 1e-9))[:, None]
    price = np.where(sent[:, 0], price, 0.0)
    on = np.zeros(home.shape, dtype=np.bool_)
    np.logical_or.at(on, k, x[r] >= 0)
    into = program.columns(home.shape, high=1.0 * sent, where=costs & on)
    rows = program.rows(x[r].shape, low=0.0, where=costs[k] & (x[r] >= 0))
    program.enter(rows, into[k], 1.0)
    program.enter(rows, x[r], -1.0)
    program.enter(rows, home[k], 1.0)
    out = program.columns(home.shape, high=most * sent, where=costs & (home >= 0))
    rows = program.rows(home.shape, high=0.0, where=out >= 0)
    program.enter(rows, out, 1.0)
    program.enter(rows, home, -most)
    rows = program.rows(x[r].shape, low=0.0, where=out[k] >= 0)
    program.enter(rows, out[k], 1.0)
    program.enter(rows, home[k], -1.0)
    program.enter(rows, x[r], 1.0)
    balance = program.rows((len(price), 1), 0.0, 0.0, where=costs)
    for column, sign in ((into, -1.0), (out, 1.0)):
        program.enter(load, column, price[:, None])
        program.enter(balance, column, sign)


def _chain(c: Pairs, program: LinearProgram, x: IntArray, start: IntArray | None) -> None:
    """Positions in the chain, and which device is where."""
    m = c.devices
    at = program.columns((c.nodes, m), high=1.0, whole=True)
    held = program.columns((m, m), high=1.0, whole=True)  # by position, then by device
    for each in (at, held, held.T):
        program.enter(program.rows(len(each), 1.0, 1.0)[:, None], each, 1.0)
    # Sums over positions up to j rather than one row per pair: the relaxation is tighter.
    early = np.arange(m) <= np.arange(m - 1)[:, None]
    rows = program.rows((len(c.edges), m - 1, 1), high=0.0)
    for nodes, sign in zip(c.edges.T, (-1.0, 1.0), strict=True):
        program.enter(rows, at[nodes][:, None, :], sign * early)
    rows = program.rows((c.nodes, m, m), high=1.0)
    program.enter(rows, at[:, :, None], 1.0)
    program.enter(rows, held, 1.0)
    program.enter(rows, x[:, None, :], -1.0)
    for d in range(m):
        before = np.flatnonzero(c.alike[:d] == c.alike[d])
        if len(before):
            rows = program.rows((m - 1, 1), low=0.0)
            program.enter(rows, held[:, before[-1]], early)
            program.enter(rows, held[:, d], -1.0 * early)
    if start is not None:
        order = chain_of(c, start)
        program.start(held, order[:, None] == np.arange(m))
        program.start(at, np.argsort(order)[start][:, None] == np.arange(m))


def chain_of(c: Pairs, device: IntArray) -> IntArray:
    """Shape (m,), the devices of a contiguous plan in the order of their chain.

    Of those that are free to be next, the first in input order; like devices are not sorted.
    """
    ahead = np.zeros((c.devices, c.devices), dtype=np.bool_)
    source, target = device[c.edges[:, 0]], device[c.edges[:, 1]]
    ahead[source[source != target], target[source != target]] = True
    left, order = list(range(c.devices)), list[int]()
    while left:
        free = [d for d in left if not ahead[left, d].any()]
        order.append((free or left)[0])
        left.remove(order[-1])
    return np.array(order, dtype=np.int64)


def ascending(c: Pairs, device: IntArray) -> IntArray:
    """The same contiguous plan with like devices in their own order along the chain."""
    new = np.arange(c.devices)
    order = chain_of(c, device)
    for kind in np.unique(c.alike).tolist():
        along = [d for d in order.tolist() if c.alike[d] == kind]
        new[along] = sorted(along)
    return new[device]
