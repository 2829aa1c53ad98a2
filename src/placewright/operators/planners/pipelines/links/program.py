"""Throughput over links as a mixed-integer program, by SCIP.

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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.planners.pipelines.links.contraction import Pairs
from placewright.operators.planners.pipelines.slots.program import (
    TOLERANCE,
    UNITS,
    chosen,
    limit_memory,
)
from placewright.solvers.answer import Answer
from placewright.solvers.linear import BackEnd, LinearProgram, Term
from placewright.solvers.scip import run_scip

MOST_SENDS = 60_000
"""Variables for transfers; larger models are left to others."""


@dataclass(frozen=True, slots=True, eq=False)
class _Model:
    """The program; the column x[v][d] is ``None`` where a node may not be.

    `load` collects terms by pass and device, `largest` has a column for each pass.
    """

    program: LinearProgram
    x: list[list[int | None]]
    largest: list[int]
    load: list[list[list[Term]]]


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
    solve: BackEnd | None = None,
) -> tuple[IntArray | None, float, Answer]:
    """Devices of the nodes, shape (N,), or ``None``; a lower bound in seconds; SCIP's answer.

    `start`: a plan that fits, devices of the nodes.
    """
    value_s = c.most_s if start is None else c.value_s(start)
    if value_s <= 0.0:
        return None, 0.0, Answer(None, 0.0)
    m = _build(c, start, value_s, deadline_s)
    if m is None:
        return None, 0.0, Answer(None, 0.0)
    answer = (solve or run_scip)(m.program, seed=seed, deadline_s=deadline_s, tolerance=TOLERANCE)
    bound = max(0.0, answer.bound - 10 * TOLERANCE) * value_s / UNITS
    return chosen(m.x, answer), bound, answer


def _level(c: Pairs) -> bool:
    """Whether each tensor takes the same time over every link."""
    off = c.send_s[:, ~np.eye(c.devices, dtype=np.bool_)]
    return bool(np.isfinite(off).all() and (off == off[:, :1]).all())


def _build(c: Pairs, start: IntArray | None, value_s: float, deadline_s: float) -> _Model | None:
    """The program; ``None`` where the deadline comes before it is whole."""
    program = LinearProgram()
    largest = [program.column(0.0, UNITS * (1 + 1e-6), cost=1.0) for _ in range(c.passes)]
    m = _Model(program, [], largest, [[[] for _ in range(c.devices)] for _ in largest])
    scale = UNITS / value_s
    last: dict[int, tuple[int, int]] = {}
    if start is not None:
        # One way of breaking the symmetry of like devices, never both: the start must stay a
        # solution.
        start, last = (ascending(c, start), last) if len(c.edges) else _sorted_out(c, start)
    for v in range(c.nodes):
        if time.perf_counter() >= deadline_s:
            return None
        row: list[int | None] = [None] * c.devices
        for d in range(c.devices):
            # What alone takes longer than the start is in no better plan.
            if c.work_s[v, d] <= value_s * (1 + 1e-9) and _may(c, last, v, d):
                row[d] = x = program.binary()
                if start is not None:
                    program.start[x] = float(start[v] == d)
                _add_work(c, m, v, d, x, scale)
        m.x.append(row)
        program.row(*((1.0, x) for x in row), low=1.0, high=1.0)
    send = _send_level if _level(c) else _send
    for k in range(len(c.readers)):
        if time.perf_counter() >= deadline_s:
            return None
        send(c, m, k, scale)
    for d in range(c.devices):
        for load, top in zip(m.load, largest, strict=True):
            program.row(*load[d], (-1.0, top), high=0.0)
        held = [row[d] for row in m.x]
        limit_memory(program, held, c.resident_bytes, float(c.memory_bytes[d]))
    if len(c.edges):
        _chain(c, m, start)
    return m


def _add_work(c: Pairs, m: _Model, v: int, d: int, x: int, scale: float) -> None:
    """What node v computes on device d in each pass."""
    backward = c.backward_s[v, d]
    m.load[0][d].append((float((c.work_s[v, d] - backward) * scale), x))
    if backward > 0:
        m.load[-1][d].append((float(backward * scale), x))


def _sorted_out(c: Pairs, start: IntArray) -> tuple[IntArray, dict[int, tuple[int, int]]]:
    """The start with like devices renamed; for each pivot its kind and the last device it may use.

    The i-th device of a kind in the start holds the i-th pivot.
    """
    renamed, last = np.array(start), dict[int, tuple[int, int]]()
    for kind in np.unique(c.alike).tolist():
        devices = np.flatnonzero(c.alike == kind).tolist()
        used = [d for d in devices if (start == d).any()]
        rest = [d for d in devices if d not in used]
        for new, old in zip(devices, used + rest, strict=True):
            renamed[start == old] = new
            nodes = np.flatnonzero(start == old)
            if len(nodes):
                last[int(nodes[c.work_s[nodes, kind].argmax()])] = (kind, new)
    return renamed, last


def _may(c: Pairs, last: dict[int, tuple[int, int]], v: int, d: int) -> bool:
    kind, until = last.get(v, (-1, 0))
    return kind != c.alike[d] or d <= until


def _send(c: Pairs, m: _Model, k: int, scale: float) -> None:
    """Transfers of tensor k from device to device."""
    home, load = m.x[int(c.producer[k])], m.load[int(c.backward[k])]
    for d in range(c.devices):
        read = _any(m.program, [m.x[r][d] for r in c.readers[k]])
        if read is None:
            continue
        sent: list[Term] = []
        for s in range(c.devices):
            if s == d or home[s] is None or not np.isfinite(c.send_s[k, s, d]):
                continue
            send = m.program.column()
            m.program.row((1.0, send), (-1.0, home[s]), high=0.0)
            price = float(c.send_s[k, s, d] * scale)
            load[s].append((price, send))
            load[d].append((price, send))
            sent.append((1.0, send))
        m.program.row(*sent, (1.0, home[d]), (-1.0, read), low=0.0)


def _any(program: LinearProgram, on: Sequence[int | None]) -> int | None:
    """A column that is no less than each of these."""
    some = [x for x in on if x is not None]
    # One reader: its own column says whether it reads there.
    if len(some) < 2:
        return some[0] if some else None
    read = program.column()
    for x in some:
        program.row((1.0, read), (-1.0, x), low=0.0)
    return read


def _send_level(c: Pairs, m: _Model, k: int, scale: float) -> None:
    """Transfers of tensor k into and out of every device; all links take the same time."""
    home, readers, program = m.x[int(c.producer[k])], c.readers[k], m.program
    if c.devices < 2 or c.send_s[k, 0, 1] <= 0:
        return
    price, most = float(c.send_s[k, 0, 1] * scale), float(min(c.devices - 1, len(readers)))
    load, balance = m.load[int(c.backward[k])], list[Term]()
    for d in range(c.devices):
        some = [m.x[r][d] for r in readers]
        read = [x for x in some if x is not None]
        if read:
            into = program.column()
            for x in read:
                program.row((1.0, into), (-1.0, x), (1.0, home[d]), low=0.0)
            load[d].append((price, into))
            balance.append((-1.0, into))
        if home[d] is not None:
            out = program.column(0.0, most)
            program.row((1.0, out), (-most, home[d]), high=0.0)
            for there in some:
                program.row((1.0, out), (-1.0, home[d]), (1.0, there), low=0.0)
            load[d].append((price, out))
            balance.append((1.0, out))
    program.row(*balance, low=0.0, high=0.0)


def _chain(c: Pairs, m: _Model, start: IntArray | None) -> None:
    """Positions in the chain, and which device is where."""
    order, program = None if start is None else chain_of(c, start), m.program
    at = _positions(c, program)
    held = [[program.binary() for _ in range(c.devices)] for _ in range(c.devices)]
    for s, row in enumerate(held):
        program.row(*((1.0, x) for x in row), low=1.0, high=1.0)
        program.row(*((1.0, other[s]) for other in held), low=1.0, high=1.0)
        for d, x in enumerate(row):
            if order is not None:
                program.start[x] = float(order[s] == d)
            for v in range(c.nodes):
                program.row((1.0, at[v][s]), (1.0, x), (-1.0, m.x[v][d]), high=1.0)
    if order is not None and start is not None:
        position = np.argsort(order)[start]
        program.start |= {
            x: float(s == position[v]) for v, row in enumerate(at) for s, x in enumerate(row)
        }
    for d in range(c.devices):
        before = [b for b in range(d) if c.alike[b] == c.alike[d]]
        for j in range(c.devices - 1 if before else 0):
            first = [(1.0, held[s][before[-1]]) for s in range(j + 1)]
            then = [(-1.0, held[s][d]) for s in range(j + 1)]
            program.row(*first, *then, low=0.0)


def _positions(c: Pairs, program: LinearProgram) -> list[list[int]]:
    """at[v][s], with forward edges in the direction of the chain."""
    at = [[program.binary() for _ in range(c.devices)] for _ in range(c.nodes)]
    for row in at:
        program.row(*((1.0, x) for x in row), low=1.0, high=1.0)
    for u, v in c.edges.tolist():
        for j in range(c.devices - 1):
            # Sums over positions up to j rather than one row per pair: the relaxation is tighter.
            later = [(1.0, x) for x in at[v][: j + 1]]
            program.row(*later, *((-1.0, x) for x in at[u][: j + 1]), high=0.0)
    return at


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
