"""Validation of a sample problem: shapes, signs, storage for all samples, connected nodes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import InfeasibleError, InputError
from placewright.numerics.arrays import BoolArray

if TYPE_CHECKING:
    from placewright.samples.problem import SampleProblem


MOST_NODES = 10_000
"""Every pair of them is a number in several tables: some GiB."""


MOST_SAMPLES = 10**18
"""Of all nodes together: sums of twice as many are still 64-bit numbers."""

LONGEST_S = 1e15
"""Solvers take larger numbers for infinity."""


def check_size(nodes: int, where: str) -> None:
    """Raise before tables are made that no memory holds.

    Raises `InputError`: too many nodes.
    """
    if nodes > MOST_NODES:
        raise InputError(
            f"{nodes} nodes are too many: {nodes**2:.2g} pairs of them",
            where=where,
            by=f"at most {MOST_NODES}",
            hint="split the cloud, or plan for groups of nodes",
        )


def check_problem(p: SampleProblem) -> None:
    """Raise where the problem is none.

    Raises `InputError`: shapes, negative numbers, a node that no link reaches, contradictory
    protections.
    Raises `InfeasibleError`: the samples do not fit all nodes together; says by how many.
    """
    _check_shapes(p)
    _check_values(p)
    _check_reach(p)
    _check_protection(p)
    _check_room(p)


def _check_shapes(p: SampleProblem) -> None:
    n, k = p.n, p.k
    if n == 0 or k == 0:
        raise InputError("a problem needs nodes and samples", where=p.name)
    pair, node = (n, n), (n,)
    shapes = {
        "samples": (n, k),
        "keep": (n, k),
        "seconds_per_sample": node,
        "fixed_s": node,
        "storage": node,
        "send_s": pair,
        "receive_s": pair,
        "latency_s": pair,
        "price_s": pair,
    }
    for key, shape in shapes.items():
        if getattr(p, key).shape != shape:
            raise InputError(
                f"{key} has the wrong shape",
                where=p.name,
                by=f"{getattr(p, key).shape}, expected {shape}",
            )
    for kind, names in (("node", p.node_names), ("class", p.class_names)):
        twice, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise InputError(f"the {kind} {twice!r} is there twice", where=p.name)


def _check_values(p: SampleProblem) -> None:
    for key in ("samples", "keep", "seconds_per_sample", "fixed_s", "storage"):
        _refuse_negative(p, key)
    for key in ("send_s", "receive_s", "latency_s", "price_s"):
        if not (getattr(p, key) >= 0).all():
            raise InputError(f"{key} must be a number >= 0", where=p.name)
    for key in ("seconds_per_sample", "fixed_s", "price_s"):
        if not np.isfinite(getattr(p, key)).all():
            raise InputError(f"{key} must be finite", where=p.name)
    if p.epochs < 1:
        raise InputError("epochs must be at least 1", where=p.name, by=f"got {p.epochs}")
    if not 0 <= p.sync_s < np.inf or not p.label_mix >= 0:
        raise InputError("sync_s and label_mix must be numbers >= 0", where=p.name)
    total = float(p.samples.sum(dtype=np.float64))  # whole numbers might overflow
    if total == 0:
        raise InputError("there are no samples", where=p.name)
    if total > MOST_SAMPLES:
        by = f"{total:.3g} of all nodes together, at most {MOST_SAMPLES:.0e}"
        raise InputError("there are too many samples", where=p.name, by=by)
    with np.errstate(over="ignore"):
        alone_s = p.epochs * (p.seconds_per_sample * total + p.fixed_s + p.sync_s)
    if not alone_s.max() <= LONGEST_S:
        raise InputError(
            "training on this node alone takes too long for the solvers' numbers",
            where=f"{p.name}: node {p.node_names[int(alone_s.argmax())]!r}",
            by=f"{alone_s.max():.3g} s, at most {LONGEST_S:.0e} s",
            hint="check the unit of seconds_per_sample, fixed_s and sync_s",
        )


def _refuse_negative(p: SampleProblem, key: str) -> None:
    values = getattr(p, key)
    bad = np.argwhere(~(values >= 0))
    if len(bad):
        raise InputError(
            f"{key} must be a number >= 0",
            where=f"{p.name}: node {p.node_names[int(bad[0][0])]!r}",
            by=f"got {values[tuple(bad[0])]}",
        )


def _check_reach(p: SampleProblem) -> None:
    """Training is synchronous: every node must be reachable, at least one way."""
    linked = np.isfinite(p.send_s) & np.isfinite(p.receive_s)
    reached = _reached(linked | linked.T)
    cut_off = np.flatnonzero(~reached)
    if len(cut_off):
        raise InputError(
            f"node {p.node_names[int(cut_off[0])]!r} cannot be reached",
            where=p.name,
            by=f"{len(cut_off)} of {p.n} nodes have no path to {p.node_names[0]!r}",
            hint="add a link, or leave the node out",
        )


def _reached(linked: BoolArray) -> BoolArray:
    """Nodes with a path to the first."""
    reached = np.zeros(len(linked), dtype=np.bool_)
    reached[0] = True
    front = reached.copy()
    while front.any():
        front = linked[front].any(axis=0) & ~reached
        reached |= front
    return reached


def _check_protection(p: SampleProblem) -> None:
    more = np.argwhere(p.keep > p.samples)
    if len(more):
        i, c = more[0].tolist()
        what = f" of class {p.class_names[c]!r}" if p.k > 1 else ""
        raise InputError(
            f"node {p.node_names[i]!r} must keep more samples{what} than it has",
            where=p.name,
            by=f"keeps {p.keep[i, c]} of {p.samples[i, c]}",
        )
    full = np.flatnonzero(p.keep.sum(axis=1) > p.storage)
    if len(full):
        i = int(full[0])
        raise InputError(
            f"node {p.node_names[i]!r} must keep more samples than it may store",
            where=p.name,
            by=f"keep {p.keep[i].sum()}, storage {p.storage[i]:g}",
            hint="lower its keep, or raise its storage",
        )


def _check_room(p: SampleProblem) -> None:
    short = int(p.samples.sum()) - float(np.floor(p.storage).sum())
    if short > 0:
        raise InfeasibleError(
            "the samples do not fit all nodes together",
            where=p.name,
            by=f"{short:.0f} samples too many: {p.samples.sum()} for {p.storage.sum():g}",
            hint="raise a node's storage, or add a node",
        )
