"""Throughput over links as a mixed-integer program, by SCIP.

x[v, d]: node v is on device d. Tensor k, made by a and read by R, is read on device d where
read[k, d] >= x[r, d] for r in R, and must then come from somewhere:

    sum over s of send[k, s, d] >= read[k, d] - x[a, d],     send[k, s, d] <= x[a, s].

Where all links of a tensor take the same time, what goes in and what goes out are enough:

    into[k, d] >= x[r, d] - x[a, d],  sum of out[k, .] = sum of into[k, .],
    out[k, d] <= min(m - 1, |R|) x[a, d],  out[k, d] >= x[a, d] - x[r, d].

In whole x these are the transfers of the judge. Where passes do not mix, each has loads of its own
and a largest one, and their sum is minimised. Devices that could change places are told apart
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
from typing import Any

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.planners.pipelines.links.contraction import Pairs
from placewright.operators.planners.pipelines.solver import run_scip
from placewright.solvers.cp_sat import Answer

UNITS = 100.0
"""What the start's value is called: SCIP cuts and branches by absolute numbers."""
TOLERANCE = 1e-6
"""Of SCIP, on loads in these units; the bound is lowered by ten times as much."""
MOST_SENDS = 60_000
"""Variables for transfers; larger models are left to others."""


@dataclass(frozen=True, slots=True, eq=False)
class _Model:
    """The program; x[v][d] is ``None`` where a node may not be.

    `load` collects terms by pass and device, `largest` has a variable for each pass.
    """

    model: Any
    x: list[list[Any]]
    largest: list[Any]
    load: list[list[list[Any]]]
    hint: dict[Any, float]


def too_large(c: Pairs) -> bool:
    """Whether the program would have too many variables to be of use."""
    links = c.devices if _level(c) else c.devices**2
    return len(c.readers) * links > MOST_SENDS or c.nodes * c.devices > MOST_SENDS


def best_pairs(
    c: Pairs, start: IntArray | None, *, seed: int, deadline_s: float
) -> tuple[IntArray | None, float, Answer]:
    """Devices of the nodes, shape (N,), or ``None``; a lower bound in seconds; what SCIP said.

    Parameters
    ----------
    start
        A plan that fits, devices of the nodes.
    """
    value_s = c.most_s if start is None else c.value_s(start)
    if value_s <= 0.0:
        return None, 0.0, Answer(None, 0.0)
    m = _build(c, start, value_s, deadline_s)
    if m is None:
        return None, 0.0, Answer(None, 0.0)
    answer = run_scip(m.model, m.hint, seed=seed, deadline_s=deadline_s, tolerance=TOLERANCE)
    bound = max(0.0, answer.bound - 10 * TOLERANCE) * value_s / UNITS
    if answer.values is None:
        return None, bound, answer
    chosen = [
        max((answer.values(x), -d) for d, x in enumerate(row) if x is not None) for row in m.x
    ]
    return np.array([-d for _, d in chosen]), bound, answer


def _level(c: Pairs) -> bool:
    """Whether each tensor takes the same time over every link."""
    off = c.send_s[:, ~np.eye(c.devices, dtype=np.bool_)]
    return bool(np.isfinite(off).all() and (off == off[:, :1]).all())


def _build(c: Pairs, start: IntArray | None, value_s: float, deadline_s: float) -> _Model | None:
    """The program; ``None`` where the deadline comes before it is whole."""
    from ortools.math_opt.python import mathopt

    model = mathopt.Model()
    largest = [model.add_variable(lb=0.0, ub=UNITS * (1 + 1e-6)) for _ in range(c.passes)]
    m = _Model(model, [], largest, [[[] for _ in range(c.devices)] for _ in largest], {})
    scale = UNITS / value_s
    last: dict[int, tuple[int, int]] = {}
    if start is not None:
        start, last = (ascending(c, start), last) if len(c.edges) else _sorted_out(c, start)
    for v in range(c.nodes):
        if time.perf_counter() >= deadline_s:
            return None
        row: list[Any] = [None] * c.devices
        for d in range(c.devices):
            if c.work_s[v, d] <= value_s * (1 + 1e-9) and _may(c, last, v, d):
                row[d] = model.add_binary_variable()
                if start is not None:
                    m.hint[row[d]] = float(start[v] == d)
                _add_work(c, m, v, d, row[d], scale)
        m.x.append(row)
        model.add_linear_constraint(mathopt.fast_sum(x for x in row if x is not None) == 1)
    send = _send_level if _level(c) else _send
    for k in range(len(c.readers)):
        if time.perf_counter() >= deadline_s:
            return None
        send(c, m, k, scale)
    for d in range(c.devices):
        for load, top in zip(m.load, largest, strict=True):
            model.add_linear_constraint(mathopt.fast_sum(load[d]) <= top)
        _memory(c, m, d)
    if len(c.edges):
        _chain(c, m, start)
    model.minimize(mathopt.fast_sum(largest))
    return m


def _add_work(c: Pairs, m: _Model, v: int, d: int, x: Any, scale: float) -> None:
    """What node v computes on device d in each pass."""
    late = c.refined_s[v, d]
    m.load[0][d].append(float((c.work_s[v, d] - late) * scale) * x)
    if late > 0:
        m.load[-1][d].append(float(late * scale) * x)


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
    from ortools.math_opt.python import mathopt

    home = m.x[int(c.maker[k])]
    for d in range(c.devices):
        read = _any(m.model, [m.x[r][d] for r in c.readers[k]])
        if read is None:
            continue
        sent = []
        for s in range(c.devices):
            if s == d or home[s] is None or not np.isfinite(c.send_s[k, s, d]):
                continue
            send = m.model.add_variable(lb=0.0, ub=1.0)
            m.model.add_linear_constraint(send <= home[s])
            price, load = float(c.send_s[k, s, d] * scale), m.load[int(c.late[k])]
            load[s].append(price * send)
            load[d].append(price * send)
            sent.append(send)
        here = 0.0 if home[d] is None else home[d]
        m.model.add_linear_constraint(mathopt.fast_sum(sent) + here >= read)


def _any(model: Any, on: Sequence[Any]) -> Any:
    """A variable that is no less than each of these."""
    some = [x for x in on if x is not None]
    if len(some) < 2:
        return some[0] if some else None
    read = model.add_variable(lb=0.0, ub=1.0)
    for x in some:
        model.add_linear_constraint(read >= x)
    return read


def _send_level(c: Pairs, m: _Model, k: int, scale: float) -> None:
    """Transfers of tensor k into and out of every device; all links take the same time."""
    from ortools.math_opt.python import mathopt

    home, readers = m.x[int(c.maker[k])], c.readers[k]
    if c.devices < 2 or c.send_s[k, 0, 1] <= 0:
        return
    price, most = float(c.send_s[k, 0, 1] * scale), min(c.devices - 1, len(readers))
    went, came, load = [], [], m.load[int(c.late[k])]
    for d in range(c.devices):
        some = [m.x[r][d] for r in readers]
        read = [x for x in some if x is not None]
        if read:
            into = m.model.add_variable(lb=0.0, ub=1.0)
            for x in read:
                here = 0.0 if home[d] is None else home[d]
                m.model.add_linear_constraint(into >= x - here)
            load[d].append(price * into)
            came.append(into)
        if home[d] is not None:
            out = m.model.add_variable(lb=0.0, ub=float(most))
            m.model.add_linear_constraint(out <= most * home[d])
            for x in some:
                m.model.add_linear_constraint(out >= (home[d] if x is None else home[d] - x))
            load[d].append(price * out)
            went.append(out)
    m.model.add_linear_constraint(mathopt.fast_sum(went) == mathopt.fast_sum(came))


def _memory(c: Pairs, m: _Model, d: int) -> None:
    from ortools.math_opt.python import mathopt

    limit = float(c.memory_bytes[d])
    if c.resident_bytes.sum() <= limit:
        return
    share = c.resident_bytes / max(limit, 1.0)
    held = [float(share[v]) * row[d] for v, row in enumerate(m.x) if row[d] is not None]
    m.model.add_linear_constraint(mathopt.fast_sum(held) <= limit / max(limit, 1.0))


def _chain(c: Pairs, m: _Model, start: IntArray | None) -> None:
    """Positions in the chain, and which device is where."""
    from ortools.math_opt.python import mathopt

    order = None if start is None else chain_of(c, start)
    at = _positions(c, m)
    held = [[m.model.add_binary_variable() for _ in range(c.devices)] for _ in range(c.devices)]
    for s, row in enumerate(held):
        m.model.add_linear_constraint(mathopt.fast_sum(row) == 1)
        m.model.add_linear_constraint(mathopt.fast_sum(other[s] for other in held) == 1)
        for d, x in enumerate(row):
            if order is not None:
                m.hint[x] = float(order[s] == d)
            for v in range(c.nodes):
                there = 0.0 if m.x[v][d] is None else m.x[v][d]
                m.model.add_linear_constraint(at[v][s] + x <= 1 + there)
    if order is not None and start is not None:
        position = np.argsort(order)[start]
        m.hint.update(
            (x, float(s == position[v])) for v, row in enumerate(at) for s, x in enumerate(row)
        )
    for d in range(c.devices):
        before = [b for b in range(d) if c.alike[b] == c.alike[d]]
        for j in range(c.devices - 1 if before else 0):
            first, then = (
                mathopt.fast_sum(held[s][b] for s in range(j + 1)) for b in (before[-1], d)
            )
            m.model.add_linear_constraint(first >= then)


def _positions(c: Pairs, m: _Model) -> list[list[Any]]:
    """at[v][s], with forward edges in the direction of the chain."""
    from ortools.math_opt.python import mathopt

    at = [[m.model.add_binary_variable() for _ in range(c.devices)] for _ in range(c.nodes)]
    for row in at:
        m.model.add_linear_constraint(mathopt.fast_sum(row) == 1)
    for u, v in c.edges.tolist():
        for j in range(c.devices - 1):
            m.model.add_linear_constraint(
                mathopt.fast_sum(at[v][: j + 1]) <= mathopt.fast_sum(at[u][: j + 1])
            )
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
