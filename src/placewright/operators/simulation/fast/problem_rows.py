"""A problem in rows, for the judge's fast path (`placewright.operators.simulation.fast.state`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.simulation.fast.rows import EDGE, FACTS, PAIR, TENSOR, VIEW
from placewright.operators.structure.costs import Costs


def tensors_and_edges(costs: Costs) -> tuple[Any, Any]:
    """Tensors by producer and, by tensor, their edges."""
    tensors = np.zeros(len(costs.producer), dtype=TENSOR)
    k = costs.out_tensors
    length = np.diff(costs.offsets)[k]
    tensors["last"] = np.cumsum(length)
    tensors["first"] = tensors["last"] - length
    tensors["maker"] = costs.producer[k]
    tensors["home_bytes"], tensors["kept_bytes"] = costs.home_bytes[k], costs.kept_bytes[k]
    edges = np.zeros(len(costs.consumers), dtype=EDGE)
    at = np.repeat(costs.offsets[k] - tensors["first"], length) + np.arange(len(edges))
    edges["consumer"] = costs.consumers[at]
    edges["tensor"] = np.repeat(np.arange(len(k)) + 1, length)
    edges["bytes"] = np.repeat(costs.tensor_bytes[k], length)
    return tensors, edges


def facts_of(costs: Costs, tensors: Any) -> Any:
    """One row per operator, and one for none."""
    facts = np.zeros(len(costs.order) + 1, dtype=FACTS)
    ends = np.append(0, tensors["last"])[costs.out_offsets]
    facts["first"][:-1], facts["last"][:-1] = ends[:-1], ends[1:]
    facts["inputs"][:-1] = np.diff(costs.in_offsets)
    facts["alone"] = _apart(costs.channel)
    facts["alone"][:-1] &= np.diff(costs.out_offsets) <= 1
    return facts


def _apart(channel: IntArray) -> bool:
    """Whether every device sends to each other device over another channel."""
    linked = (np.sort(row[row >= 0]) for row in channel)
    return all((np.diff(row) > 0).all() for row in linked)


def pairs_of(costs: Costs, channels: int) -> Any:
    """From each device to each; within one no time, and a channel of its own."""
    m = len(costs.channel)
    off = ~np.eye(m, dtype=np.bool_)
    pairs = np.zeros(m * m, dtype=PAIR)
    lane = np.where(off, costs.channel, channels + np.arange(m)[:, None])
    pairs["latency_s"] = np.where(off, costs.latency_s, 0.0).ravel()
    pairs["seconds_per_byte"] = np.where(off, costs.seconds_per_byte, 0.0).ravel()
    pairs["lane"] = np.where(lane < 0, 0, lane).ravel()
    return pairs


def views_of(costs: Costs, tensors: Any, edges: Any) -> Any:
    """Each view, what it is a view of, and the edge over which its producer reads that."""
    at, n = np.empty(len(tensors), dtype=np.int64), len(costs.order)
    at[costs.out_tensors] = np.arange(len(at))
    views = np.zeros(len(costs.views), dtype=VIEW)
    views["tensor"], views["of"] = at[costs.views], at[costs.alias[costs.views]]
    uses = edges["tensor"].astype(np.int64) * n + edges["consumer"]
    by_use = np.argsort(uses, kind="stable")
    wanted = (views["of"].astype(np.int64) + 1) * n + tensors["maker"][views["tensor"]]
    views["edge"] = by_use[np.searchsorted(uses[by_use], wanted)]
    return views
