"""The files of wing 3: nodes and links, and plans."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from placewright.cluster.schema import Bandwidth, Bytes, Seconds
from placewright.errors import InputError, check_known, look_up
from placewright.io.boundary import FileModel, RefusedError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray, check_names
from placewright.planning.result import ResultFile
from placewright.samples.problem import Batches, Duplex, Overlap, Ports, SampleProblem, check_size

MOST = 10**15
"""Of anything that is counted: what adds such numbers up stays far from the end of 64 bits."""


def _whole(value: object) -> int:
    """A whole number of samples, with a plain error for anything else."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not (0 <= number <= MOST and number == int(number)):
        error = InputError(
            f"samples are counted in whole numbers >= 0, up to {MOST:.0e}",
            by=f"got {value!r}",
            hint="give a number such as 1200",
        )
        raise RefusedError(error)
    return int(number)


Count = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int)]
Latency = Annotated[Seconds, Field(allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1, le=MOST)]
Matrix = list[list[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None]]


class NodeEntry(FileModel):
    """One node.

    Attributes
    ----------
    samples, classes
        What it holds: all together, or by class.
    seconds_per_sample, seconds_per_batch, fixed_s
        To train on one sample once; for every step on top; for every epoch on top.
    storage
        Samples that fit; unlimited where absent.
    keep
        Samples that must stay, or how many of which class; ``all`` stands for everything.
    uplink, downlink
        What all its transfers share.
    """

    name: str
    samples: Count | None = None
    classes: dict[str, Count] | None = None
    seconds_per_sample: Seconds
    seconds_per_batch: Seconds = 0.0
    fixed_s: Seconds = 0.0
    storage: Count | None = None
    keep: Count | Literal["all"] | dict[str, Count] = 0
    uplink: Bandwidth | None = None
    downlink: Bandwidth | None = None


class LinkEntry(FileModel):
    """One link, both ways unless ``duplex: false``.

    Attributes
    ----------
    bandwidth
        ``null`` where nothing limits it.
    send_bandwidth, receive_bandwidth
        What the sender's port, the receiver's port manages, where that is less.
    """

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    bandwidth: Bandwidth | None
    send_bandwidth: Bandwidth | None = None
    receive_bandwidth: Bandwidth | None = None
    latency: Latency = 0.0
    duplex: bool = True
    price_per_byte: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class PairEntry(FileModel):
    """Samples of one node that may not go to another."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")


class SampleFile(FileModel):
    """A problem of wing 3 as a file.

    Attributes
    ----------
    links, bandwidth
        Links one by one, or a table of bytes per second from row to column, 0 where there is no
        link and ``null`` where nothing limits it; with neither, nodes reach each other by their
        `uplink` and `downlink`.
    receive_bandwidth
        The table as the receivers see it, where that differs.
    latency, price_per_byte
        Of the links that do not say.
    sync_s
        Gradient exchange per epoch.
    gradient_bytes, batch
        Or its size per step, with the samples of a step: a ring all-reduce over the slowest link.
    protected
        Classes of which no sample moves.
    """

    schema_version: Literal[1] = 1
    name: str = ""
    nodes: Annotated[list[NodeEntry], Field(min_length=1)]
    links: list[LinkEntry] | None = None
    bandwidth: Matrix | None = None
    receive_bandwidth: Matrix | None = None
    latency: Latency = 0.0
    price_per_byte: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    sample_bytes: Bytes
    epochs: Positive = 1
    overlap: Overlap = Overlap.STAGGERED
    duplex: Duplex = Duplex.FULL
    batches: Batches = Batches.PROPORTIONAL
    ports: Ports = Ports.IDEAL
    relay: bool = False
    sync_s: Seconds = 0.0
    gradient_bytes: Bytes = 0.0
    batch: Positive | None = None
    label_mix: Annotated[float, Field(ge=0, le=1)] | None = None
    protected: list[str] = Field(default_factory=list)
    forbid: list[PairEntry] = Field(default_factory=list)


class MoveEntry(FileModel):
    """Samples from one node to another."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    samples: Count
    sample_class: str | None = Field(default=None, alias="class")


class PlanEntry(FileModel):
    """What a planner answered; everything but the moves is for people."""

    moves: list[MoveEntry]
    lower_bound_s: float = 0.0
    note: str = ""
    nodes: list[dict[str, Any]] = Field(default_factory=list)
    transfers: list[dict[str, Any]] = Field(default_factory=list)
    moved_samples: int = 0
    moved_bytes: float = 0.0
    played_s: float | None = None
    speed_up: float | None = None
    price_s: float = 0.0


class SamplePlanFile(ResultFile):
    """A plan with its result."""

    plan: PlanEntry


@np.errstate(divide="ignore", over="ignore")  # what is not finite then is refused with a name
def problem_of(entry: SampleFile, name: str) -> SampleProblem:
    """The problem of a file; `name` is used where the file has none."""
    if not 0 < entry.sample_bytes < math.inf:
        raise InputError(
            "must be a size above 0", where="sample_bytes", by=f"got {entry.sample_bytes:g}"
        )
    check_size(len(entry.nodes), where="nodes")
    index = _indices([node.name for node in entry.nodes])
    classes = _classes(entry.nodes)
    samples = np.array([_samples(node, classes) for node in entry.nodes])
    network = network_of(entry, index)
    send_s, receive_s = entry.sample_bytes / network.send, entry.sample_bytes / network.receive
    steps = _steps(entry, int(samples.sum()))
    own_s = np.array([node.seconds_per_sample for node in entry.nodes])
    batch_s = np.array([node.seconds_per_batch for node in entry.nodes])
    fixed_s = np.array([node.fixed_s for node in entry.nodes])
    exchange_s, sync_s = ring_s(entry.gradient_bytes, network), entry.sync_s
    if entry.batches is Batches.EQUAL:
        # As many steps as the fullest node has batches: a plan decides that.
        own_s = own_s + (batch_s + exchange_s) / (entry.batch or 1)
    else:
        fixed_s, sync_s = fixed_s + steps * batch_s, sync_s + steps * exchange_s
    storage = [math.inf if node.storage is None else node.storage for node in entry.nodes]
    return SampleProblem(
        node_names=tuple(index),
        samples=samples,
        seconds_per_sample=own_s,
        send_s=send_s,
        receive_s=receive_s,
        latency_s=network.latency_s,
        storage=np.array(storage, dtype=np.float64),
        keep=_keep(entry, classes, samples),
        price_s=network.price_per_byte * entry.sample_bytes,
        fixed_s=fixed_s,
        class_names=classes,
        epochs=entry.epochs,
        sync_s=sync_s,
        overlap=entry.overlap,
        duplex=entry.duplex,
        batches=entry.batches,
        ports=entry.ports,
        relay=entry.relay,
        label_mix=math.inf if entry.label_mix is None else entry.label_mix,
        sample_bytes=entry.sample_bytes,
        name=entry.name or name,
    )


def _indices(names: list[str]) -> dict[str, int]:
    check_names("node", names, "nodes")
    return {name: i for i, name in enumerate(names)}


def _classes(nodes: list[NodeEntry]) -> tuple[str, ...]:
    named = [node for node in nodes if node.classes is not None]
    if not named:
        return ("samples",)
    if len(named) < len(nodes):
        bare = next(node.name for node in nodes if node.classes is None)
        raise InputError("has no classes while other nodes have", where=f"nodes: {bare!r}")
    return tuple(dict.fromkeys(c for node in named for c in node.classes or ()))


def _samples(node: NodeEntry, classes: tuple[str, ...]) -> list[int]:
    where = f"nodes: {node.name!r}"
    if node.classes is None:
        if node.samples is None:
            raise InputError("samples is missing", where=where)
        return [node.samples]
    counts = [node.classes.get(c, 0) for c in classes]
    if node.samples is not None and node.samples != sum(counts):
        raise InputError(
            "samples and classes differ", where=where, by=f"{node.samples} and {sum(counts)}"
        )
    return counts


def _keep(entry: SampleFile, classes: tuple[str, ...], samples: IntArray) -> IntArray:
    """Shape (n, k): what must stay; protected classes stay as a whole."""
    for name in entry.protected:
        check_known("class", name, classes, where="protected")
    kept = np.array([[c in entry.protected for c in classes]]) * samples
    for i, node in enumerate(entry.nodes):
        where = f"nodes: {node.name!r}: keep"
        if node.keep == "all":
            kept[i] = samples[i]
        elif isinstance(node.keep, dict):
            for name, count in node.keep.items():
                check_known("class", name, classes, where=where)
                c = classes.index(name)
                kept[i, c] = max(int(kept[i, c]), count)
        elif len(classes) == 1:
            kept[i, 0] = max(int(kept[i, 0]), int(node.keep))
        elif node.keep:
            raise InputError(
                "must say how many of which class", where=where, hint="keep: {cat: 10, dog: 0}"
            )
    return kept


def _steps(entry: SampleFile, total: int) -> int:
    """Steps of an epoch in which all nodes share each batch, 0 where none is given."""
    needed = entry.gradient_bytes or any(node.seconds_per_batch for node in entry.nodes)
    if entry.batch is None:
        if needed:
            raise InputError("is needed to count the steps of an epoch", where="batch")
        return 0
    return math.ceil(total / entry.batch)


@dataclass(frozen=True, slots=True, eq=False)
class NodeLinks:
    """Shape (n, n) each: bytes per second at the sender and at the receiver, latency, price."""

    send: FloatArray
    receive: FloatArray
    latency_s: FloatArray
    price_per_byte: FloatArray


def network_of(entry: SampleFile, index: dict[str, int]) -> NodeLinks:
    """The network of a file; `index` is the nodes' by name.

    Raises `InputError`, which names the link or the field that is wrong.
    """
    return _limited(entry, _network(entry, index), index)


def ring_s(gradient_bytes: float, network: NodeLinks) -> float:
    """A ring all-reduce of the gradients over the slowest link (Patarasuk and Yuan, 2009)."""
    n = len(network.send)
    rate = np.minimum(network.send, network.receive)
    linked = rate > 0
    if n < 2 or gradient_bytes == 0 or not linked.any():
        return 0.0
    latency_s = float(network.latency_s[linked].max())
    moved = 2 * (n - 1) / n * gradient_bytes / float(rate[linked].min())
    return moved + 2 * (n - 1) * latency_s


def _network(entry: SampleFile, index: dict[str, int]) -> NodeLinks:
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
        return NodeLinks(send, receive, latency, price)
    everywhere = np.full((n, n), math.inf)
    if n > 1 and not any(node.uplink or node.downlink for node in entry.nodes):
        raise InputError(
            "there are no links", where="links", hint="give links, or uplink and downlink of nodes"
        )
    return NodeLinks(everywhere, everywhere.copy(), latency, price)


def _table(rows: list[list[float | None]], n: int, key: str) -> FloatArray:
    if len(rows) != n or any(len(row) != n for row in rows):
        raise InputError("must have a row and a column per node", where=key, by=f"{n} nodes")
    return np.array([[math.inf if x is None else x for x in row] for row in rows])


def _linked(
    entry: SampleFile, index: dict[str, int], price: FloatArray, latency: FloatArray
) -> NodeLinks:
    send, receive = np.zeros(price.shape), np.zeros(price.shape)
    for k, link in enumerate(entry.links or ()):
        where = f"links[{k}]"
        i, j = (look_up("node", name, index, where) for name in (link.source, link.target))
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
    return NodeLinks(send, receive, latency, price)


def _rate(given: float | None, where: str) -> float:
    """Bytes per second; what is not given limits nothing."""
    if given is not None and given <= 0:
        raise InputError("must be above 0", where=where, hint="leave out what is not there")
    return math.inf if given is None else given


def _limited(entry: SampleFile, network: NodeLinks, index: dict[str, int]) -> NodeLinks:
    """Access links, pairs that are forbidden, and nothing from a node to itself."""
    nodes = entry.nodes
    up = np.array([_rate(v.uplink, f"nodes: {v.name!r}: uplink") for v in nodes])
    down = np.array([_rate(v.downlink, f"nodes: {v.name!r}: downlink") for v in nodes])
    closed: BoolArray = np.eye(len(index), dtype=np.bool_)
    for k, pair in enumerate(entry.forbid):
        i, j = (look_up("node", name, index, f"forbid[{k}]") for name in (pair.source, pair.target))
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
    return NodeLinks(send, receive, network.latency_s, network.price_per_byte)


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
