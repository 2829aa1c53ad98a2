"""A problem as the data of its file."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.numerics.arrays import FloatArray
from placewright.samples.problem import SampleProblem

UNNAMED = ("samples",)
"""The class of samples that have none."""

FEW_NODES = 24
"""Up to here links are written one by one, for people; above, as a table."""


def problem_json(problem: SampleProblem) -> dict[str, Any]:
    """What `placewright.samples.files.read_problem` reads back equal.

    Numbers that come from no file, times that are no bytes divided by a bandwidth, may change in
    their last bit.

    Raises `InputError`: samples have no size: links cannot be written in bytes per second.
    """
    p = problem
    if not p.sample_bytes > 0:
        raise InputError(
            "samples have no size, so that links have no bandwidth",
            where=p.name,
            by=f"sample_bytes is {p.sample_bytes:g}",
            hint="problem.replace(sample_bytes=...) gives them one",
        )
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
    named = p.class_names != UNNAMED
    by_class = dict(zip(p.class_names, p.samples[i].tolist(), strict=True))
    node |= {"classes": by_class} if named else {"samples": int(p.held[i])}
    node["seconds_per_sample"] = float(p.seconds_per_sample[i])
    if p.fixed_s[i]:
        node["fixed_s"] = float(p.fixed_s[i])
    if np.isfinite(p.storage[i]):
        node["storage"] = int(p.storage[i])
    if p.keep[i].any():
        kept = p.keep[i].tolist()
        node["keep"] = dict(zip(p.class_names, kept, strict=True)) if named else kept[0]
    return node


def _links(p: SampleProblem) -> dict[str, Any]:
    send, receive = _bandwidth(p, p.send_s), _bandwidth(p, p.receive_s)
    linked = (send > 0) & (receive > 0)
    price = _price_per_byte(p)
    plain = len(np.unique(p.latency_s[linked])) < 2 and len(np.unique(price[linked])) < 2
    same = np.array_equal(send, receive)
    if not plain or (same and p.n <= FEW_NODES):
        return {"links": _one_by_one(p, send, receive, price)}
    table: dict[str, Any] = {"bandwidth": _rows(send)}
    if not same:
        table["receive_bandwidth"] = _rows(receive)
    if linked.any():
        table["latency"] = float(p.latency_s[linked].max())
        table["price_per_byte"] = float(price[linked].max())
    return table


def _one_by_one(
    p: SampleProblem, send: FloatArray, receive: FloatArray, price: FloatArray
) -> list[dict[str, Any]]:
    links = []
    for i, j in np.argwhere((send > 0) & (receive > 0)).tolist():
        both = all(t[i, j] == t[j, i] for t in (send, receive, p.latency_s, price))
        if both and j < i:
            continue
        most = float(max(send[i, j], receive[i, j]))
        link = {
            "from": p.node_names[i],
            "to": p.node_names[j],
            "bandwidth": _short(most),
            "latency": float(p.latency_s[i, j]),
        }
        link |= {"send_bandwidth": _short(float(send[i, j]))} if send[i, j] < most else {}
        link |= {"receive_bandwidth": _short(float(receive[i, j]))} if receive[i, j] < most else {}
        link |= {} if both else {"duplex": False}
        link |= {"price_per_byte": float(price[i, j])} if price[i, j] else {}
        links.append(link)
    return links


def _bandwidth(p: SampleProblem, port_s: FloatArray) -> FloatArray:
    """Bytes per second, whole where whole numbers say the same; 0 without a link."""
    with np.errstate(divide="ignore", over="ignore"):
        exact = p.sample_bytes / port_s
        found = exact
        for guess in (*_near(exact), np.rint(exact)):
            found = np.where(p.sample_bytes / guess == port_s, guess, found)
    result: FloatArray = np.where(np.isfinite(port_s), found, 0.0)
    return result


def _price_per_byte(p: SampleProblem) -> FloatArray:
    found = p.price_s / p.sample_bytes
    for guess in _near(found):
        found = np.where(guess * p.sample_bytes == p.price_s, guess, found)
    return found


def _near(exact: FloatArray) -> list[FloatArray]:
    """Neighbours, `exact` last: dividing twice may end a bit or two beside a file's number."""
    up, down = np.nextafter(exact, np.inf), np.nextafter(exact, 0.0)
    return [np.nextafter(up, np.inf), np.nextafter(down, 0.0), up, down, exact]


def _rows(table: FloatArray) -> list[list[float | int | None]]:
    return [[_short(x) for x in row] for row in table.tolist()]


def _short(value: float) -> float | int | None:
    """Whole numbers as such, and ``None`` for what nothing limits."""
    if np.isinf(value):
        return None
    return int(value) if value == int(value) else value
