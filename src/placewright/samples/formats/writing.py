"""A problem as the data of its file."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.arrays import FloatArray
from placewright.samples.problem import SampleProblem

FEW_NODES = 24
"""Up to here links are written one by one, for people; above, as a table."""


def problem_json(problem: SampleProblem) -> dict[str, Any]:
    """What `placewright.samples.files.read_problem` reads back equal."""
    p = problem
    data: dict[str, Any] = {
        "schema_version": 1,
        "name": p.name,
        "nodes": [_node(p, i) for i in range(p.n)],
        "sample_bytes": _short(p.sample_bytes),
        "epochs": p.epochs,
        "overlap": str(p.overlap),
        "relay": p.relay,
        "duplex": str(p.duplex),
        "sync_s": p.sync_s,
        "batches": str(p.batches),
        "ports": str(p.ports),
    }
    if np.isfinite(p.label_mix):
        data["label_mix"] = p.label_mix
    return data | _links(p)


def _node(p: SampleProblem, i: int) -> dict[str, Any]:
    node: dict[str, Any] = {"name": p.node_names[i]}
    by_class = dict(zip(p.class_names, p.samples[i].tolist(), strict=True))
    node |= {"classes": by_class} if p.k > 1 else {"samples": int(p.held[i])}
    node["seconds_per_sample"] = float(p.seconds_per_sample[i])
    if p.fixed_s[i]:
        node["fixed_s"] = float(p.fixed_s[i])
    if np.isfinite(p.storage[i]):
        node["storage"] = int(p.storage[i])
    if p.keep[i].any():
        kept = p.keep[i].tolist()
        node["keep"] = dict(zip(p.class_names, kept, strict=True)) if p.k > 1 else kept[0]
    return node


def _links(p: SampleProblem) -> dict[str, Any]:
    send, receive = _bandwidth(p, p.send_s), _bandwidth(p, p.receive_s)
    linked = (send > 0) & (receive > 0)
    price = p.price_s / p.sample_bytes if p.sample_bytes else np.zeros_like(p.price_s)
    plain = len(np.unique(p.latency_s[linked])) < 2 and len(np.unique(price[linked])) < 2
    same = np.array_equal(send, receive)
    if same and (p.n <= FEW_NODES or not plain):
        return {"links": _one_by_one(p, send, price)}
    table: dict[str, Any] = {"bandwidth": _rows(send)}
    if not same:
        table["receive_bandwidth"] = _rows(receive)
    if linked.any():
        table["latency"] = float(p.latency_s[linked].max())
        table["price_per_byte"] = float(price[linked].max())
    return table


def _one_by_one(p: SampleProblem, send: FloatArray, price: FloatArray) -> list[dict[str, Any]]:
    links = []
    for i, j in np.argwhere(send > 0).tolist():
        both = all(t[i, j] == t[j, i] for t in (send, p.latency_s, price))
        if both and j < i:
            continue
        link = {
            "from": p.node_names[i],
            "to": p.node_names[j],
            "bandwidth": _short(float(send[i, j])),
            "latency": float(p.latency_s[i, j]),
        }
        link |= {} if both else {"duplex": False}
        link |= {"price_per_byte": float(price[i, j])} if price[i, j] else {}
        links.append(link)
    return links


def _bandwidth(p: SampleProblem, port_s: FloatArray) -> FloatArray:
    """Bytes per second, whole where whole numbers say the same; 0 without a link."""
    with np.errstate(divide="ignore"):
        exact = p.sample_bytes / port_s
        whole = np.rint(exact)
        same = (whole > 0) & (p.sample_bytes / whole == port_s)
    result: FloatArray = np.where(np.isfinite(port_s), np.where(same, whole, exact), 0.0)
    return result


def _rows(table: FloatArray) -> list[list[float | int]]:
    return [[_short(x) for x in row] for row in table.tolist()]


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else value
