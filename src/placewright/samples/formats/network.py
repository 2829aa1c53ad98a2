"""Who reaches whom how fast: links, tables, access links and what is forbidden, as arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from placewright.errors import InputError, UnknownNameError
from placewright.numerics.arrays import BoolArray, FloatArray
from placewright.samples.formats.schema import SampleFile


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Shape (n, n) each: bytes per second at the sender and at the receiver, latency, price."""

    send: FloatArray
    receive: FloatArray
    latency_s: FloatArray
    price_per_byte: FloatArray


def network_of(entry: SampleFile, index: dict[str, int]) -> Network:
    """The network of a file; `index` is the nodes' by name.

    Raises `InputError`, which names the link or the field that is wrong.
    """
    return _limited(entry, _network(entry, index), index)


def ring_s(gradient_bytes: float, network: Network) -> float:
    """A ring all-reduce of the gradients over the slowest link (Patarasuk and Yuan, 2009)."""
    n = len(network.send)
    rate = np.minimum(network.send, network.receive)
    linked = rate > 0
    if n < 2 or gradient_bytes == 0 or not linked.any():
        return 0.0
    latency_s = float(network.latency_s[linked].max())
    moved = 2 * (n - 1) / n * gradient_bytes / float(rate[linked].min())
    return moved + 2 * (n - 1) * latency_s


def _network(entry: SampleFile, index: dict[str, int]) -> Network:
    n = len(index)
    if entry.links is not None and entry.bandwidth is not None:
        raise InputError("give links or bandwidth, not both", where="links")
    if entry.receive_bandwidth is not None and entry.bandwidth is None:
        raise InputError("needs bandwidth, the senders' table", where="receive_bandwidth")
    price = np.full((n, n), entry.price_per_byte)
    latency = np.full((n, n), entry.latency)
    if entry.links is not None:
        return _linked(entry, index, price, latency)
    if entry.bandwidth is not None:
        send = _table(entry.bandwidth, n, "bandwidth")
        other = entry.receive_bandwidth
        receive = send.copy() if other is None else _table(other, n, "receive_bandwidth")
        return Network(send, receive, latency, price)
    everywhere = np.full((n, n), math.inf)
    if n > 1 and not any(node.uplink or node.downlink for node in entry.nodes):
        raise InputError(
            "there are no links", where="links", hint="give links, or uplink and downlink of nodes"
        )
    return Network(everywhere, everywhere.copy(), latency, price)


def _table(rows: list[list[float | None]], n: int, key: str) -> FloatArray:
    if len(rows) != n or any(len(row) != n for row in rows):
        raise InputError("must have a row and a column per node", where=key, by=f"{n} nodes")
    return np.array([[math.inf if x is None else x for x in row] for row in rows])


def _linked(
    entry: SampleFile, index: dict[str, int], price: FloatArray, latency: FloatArray
) -> Network:
    send, receive = np.zeros(price.shape), np.zeros(price.shape)
    for k, link in enumerate(entry.links or ()):
        where = f"links[{k}]"
        i, j = (_node(name, index, where) for name in (link.source, link.target))
        if i == j:
            raise InputError(f"links {link.source!r} with itself", where=where)
        most = _rate(link.bandwidth, f"{where}.bandwidth")
        for a, b in ((i, j), (j, i)) if link.duplex else ((i, j),):
            if send[a, b] > 0:
                pair = f"{entry.nodes[a].name!r} to {entry.nodes[b].name!r}"
                raise InputError(f"the link from {pair} is there twice", where=where)
            send[a, b] = min(most, _rate(link.send_bandwidth, f"{where}.send_bandwidth"))
            receive[a, b] = min(most, _rate(link.receive_bandwidth, f"{where}.receive_bandwidth"))
            latency[a, b] = link.latency
            price[a, b] = price[a, b] if link.price_per_byte is None else link.price_per_byte
    return Network(send, receive, latency, price)


def _rate(given: float | None, where: str) -> float:
    """Bytes per second; what is not given limits nothing."""
    if given is not None and given <= 0:
        raise InputError("must be above 0", where=where, hint="leave out what is not there")
    return math.inf if given is None else given


def _node(name: str, index: dict[str, int], where: str) -> int:
    if name not in index:
        raise UnknownNameError("node", name, index, where=where)
    return index[name]


def _limited(entry: SampleFile, network: Network, index: dict[str, int]) -> Network:
    """Access links, pairs that are forbidden, and nothing from a node to itself."""
    nodes = entry.nodes
    up = np.array([_rate(v.uplink, f"nodes: {v.name!r}: uplink") for v in nodes])
    down = np.array([_rate(v.downlink, f"nodes: {v.name!r}: downlink") for v in nodes])
    closed: BoolArray = np.eye(len(index), dtype=np.bool_)
    for k, pair in enumerate(entry.forbid):
        i, j = (_node(name, index, f"forbid[{k}]") for name in (pair.source, pair.target))
        if entry.relay:
            raise InputError(
                f"{pair.source!r} to {pair.target!r} is forbidden, but relays are allowed",
                where=f"forbid[{k}]",
                by="a third node could pass the samples on",
                hint="set relay: false",
            )
        closed[i, j] = True
    send = np.where(closed, 0.0, np.minimum(network.send, up[:, None]))
    receive = np.where(closed, 0.0, np.minimum(network.receive, down[None, :]))
    _check_protection(entry, closed)
    return Network(send, receive, network.latency_s, network.price_per_byte)


def _check_protection(entry: SampleFile, closed: BoolArray) -> None:
    """A node that must give samples away and may not is a contradiction."""
    for i, node in enumerate(entry.nodes):
        held = node.samples if node.classes is None else sum(node.classes.values())
        over = (held or 0) - (math.inf if node.storage is None else node.storage)
        if entry.forbid and over > 0 and closed[i].all():
            raise InputError(
                f"node {node.name!r} stores too much and may send to nobody",
                where="forbid",
                by=f"{over:.0f} samples more than its storage of {node.storage}",
                hint="raise its storage, or forbid less",
            )
