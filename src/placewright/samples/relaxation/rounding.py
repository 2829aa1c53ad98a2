"""Fractional moves become whole ones, and no limit is broken by that.

Rounding down breaks little: a node that passes samples on may now send more than reaches it, and
one whose storage is full may receive more than leaves it. Both are mended one node at a time by
moving less, so that it ends; only a node that was too full from the start must send more.
"""

from __future__ import annotations

import numpy as np

from placewright.arrays import IntArray
from placewright.samples.problem import SampleProblem
from placewright.samples.relaxation.columns import Relaxation

NEARLY_WHOLE = 1e-6
MOST_STEPS = 100
"""Per node; nobody has been seen to need more than a few."""


def whole_flow(relaxed: Relaxation) -> IntArray:
    """Shape (n, n): whole samples of one kind from i to j."""
    p = relaxed.problem
    flow = np.zeros((p.n, p.n), dtype=np.int64)
    down = np.floor(relaxed.flow + NEARLY_WHOLE).astype(np.int64)
    flow[relaxed.moves.source, relaxed.moves.target] = down
    for _ in range(MOST_STEPS * p.n):
        if not (_send_less(p, flow) or _receive_less(p, flow) or _send_more(p, flow)):
            break
    return flow


def _send_less(p: SampleProblem, flow: IntArray) -> bool:
    """The node that sends most beyond what it may sends less; whether there was one."""
    arriving = flow.sum(axis=0) if p.relay else 0
    over = flow.sum(axis=1) - arriving - (p.held - p.keep.sum(axis=1))
    i = int(over.argmax())
    if over[i] <= 0:
        return False
    j = int(flow[i].argmax())
    flow[i, j] -= min(int(over[i]), int(flow[i, j]))
    return True


def _receive_less(p: SampleProblem, flow: IntArray) -> bool:
    """A node that is too full and receives receives less."""
    over = np.where(flow.sum(axis=0) > 0, _too_many(p, flow), 0)
    j = int(over.argmax())
    if over[j] <= 0:
        return False
    i = int(flow[:, j].argmax())
    flow[i, j] -= min(int(over[j]), int(flow[i, j]))
    return True


def _send_more(p: SampleProblem, flow: IntArray) -> bool:
    """A node that is too full and receives nothing sends where there is room, the cheapest way."""
    too_many = _too_many(p, flow)
    i = int(too_many.argmax())
    if too_many[i] <= 0:
        return False
    port_s = np.where(too_many < 0, p.send_s[i] + p.receive_s[i], np.inf)
    j = int(port_s.argmin())
    if not np.isfinite(port_s[j]):
        return False
    flow[i, j] += min(int(too_many[i]), -int(max(too_many[j], -p.held.sum())))
    return True


def _too_many(p: SampleProblem, flow: IntArray) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Shape (n,): samples beyond the storage, below 0 where there is room."""
    held = p.held + flow.sum(axis=0) - flow.sum(axis=1)
    over: np.ndarray[tuple[int], np.dtype[np.float64]] = held - np.floor(p.storage)
    return over
