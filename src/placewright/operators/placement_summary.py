"""Where a plan runs a model: operators, bytes and seconds per device, by module."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.operators.judgement import OperatorJudgement

MOST_ROWS = 16
"""Modules, or ranges of them, that a summary tells apart."""

MOSTLY = 0.95
"""A module is on a device where so much of its seconds and of its resident bytes is."""

WORTH_UNFOLDING = 0.2
"""Share of the model's seconds plus that of its resident bytes: smaller ones stay folded."""

OWN = "(own operators)"


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """What one device has and does in a step, as predicted.

    Attributes
    ----------
    peak_bytes
        Resident bytes and tensors at the worst moment.
    modules
        That run here, whole or mostly; consecutive ones as a range.
    """

    device: str
    operators: int
    resident_bytes: float
    peak_bytes: int
    memory_bytes: float
    seconds: float
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Crossing:
    """What goes from one device to another in a step, each tensor once."""

    source: str
    target: str
    tensors: int
    bytes: float


@dataclass(frozen=True, slots=True)
class Split:
    """A module on several devices; seconds by device."""

    module: str
    seconds: Mapping[str, float]
    resident_bytes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PlacementSummary:
    """Devices of a plan, what crosses between them, and modules that several of them share."""

    devices: tuple[DeviceSummary, ...]
    crossings: tuple[Crossing, ...]
    split: tuple[Split, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data; ``None`` where memory is not limited."""
        data = asdict(self)
        for device in data["devices"]:
            if not math.isfinite(device["memory_bytes"]):
                device["memory_bytes"] = None
        return data

    def __str__(self) -> str:
        from placewright.operators.text import placement_text

        return placement_text(self)


def placement_summary(played: OperatorJudgement, most: int = MOST_ROWS) -> PlacementSummary:
    """Summarise a judged plan.

    Parameters
    ----------
    most
        Modules, or ranges of consecutive modules on one device, that are told apart.
    """
    p, place = played.problem, played.placement
    modules, split = _modules(played, most)
    operators = np.bincount(place, minlength=p.m)
    resident = np.bincount(place, weights=p.resident_bytes, minlength=p.m)
    devices = tuple(
        DeviceSummary(
            device=name,
            operators=int(operators[d]),
            resident_bytes=float(resident[d]),
            peak_bytes=int(played.peak_bytes[d]),
            memory_bytes=float(p.memory_bytes[d]),
            seconds=float(played.busy_s[d]),
            modules=tuple(modules.get(d, ())),
        )
        for d, name in enumerate(p.device_names)
    )
    return PlacementSummary(devices, _crossings(played), split)


def _crossings(played: OperatorJudgement) -> tuple[Crossing, ...]:
    """By pair of devices, most bytes first."""
    p, place = played.problem, played.placement
    readers = np.repeat(np.arange(p.t), np.diff(p.consumer_offsets))
    pairs = np.stack([readers, place[p.consumers]], axis=1)
    tensor, target = np.unique(pairs, axis=0).reshape(-1, 2).T
    source = place[p.tensor_producer[tensor]]
    size = p.tensor_bytes[tensor]
    real = (source != target) & (size > 0)
    way = (source * p.m + target)[real]
    count = np.bincount(way, minlength=p.m**2)
    total = np.bincount(way, weights=size[real], minlength=p.m**2)
    found = [
        Crossing(p.device_names[k // p.m], p.device_names[k % p.m], int(count[k]), float(total[k]))
        for k in np.flatnonzero(count).tolist()
    ]
    return tuple(sorted(found, key=lambda c: -c.bytes))


@dataclass(slots=True)
class _Node:
    """A module and everything below it; seconds and resident bytes by device."""

    name: str
    seconds: FloatArray
    resident: FloatArray
    operators: FloatArray
    children: dict[str, _Node] = field(default_factory=dict)

    def home(self) -> int:
        """The device that has all of it, or mostly; -1 where several share it."""
        for amounts in (self.seconds, self.resident):
            total = float(amounts.sum())
            if total and float(amounts.max()) < MOSTLY * total:
                return -1
        if self.seconds.sum() and self.resident.sum():
            a, b = int(self.seconds.argmax()), int(self.resident.argmax())
            return a if a == b else -1
        weights = next((w for w in (self.seconds, self.resident) if w.sum()), self.operators)
        return int(weights.argmax())


def _modules(
    played: OperatorJudgement, most: int
) -> tuple[dict[int, list[str]], tuple[Split, ...]]:
    """By device names of modules, and the modules that devices share."""
    p = played.problem
    root = _tree(played)
    if root is None:
        return {}, ()
    rows = _unfolded(root, most)
    homes: dict[int, list[str]] = {}
    split = []
    for name, home, nodes in _ranges(rows):
        if home >= 0:
            homes.setdefault(home, []).append(name)
            continue
        on = [d for d in range(p.m) if any(node.operators[d] for node in nodes)]
        seconds = {p.device_names[d]: float(sum(n.seconds[d] for n in nodes)) for d in on}
        resident = {p.device_names[d]: float(sum(n.resident[d] for n in nodes)) for d in on}
        split.append(Split(name, seconds, resident))
    return homes, tuple(split)


def _tree(played: OperatorJudgement) -> _Node | None:
    """The modules of all operators; ``None`` where they are not known."""
    p = played.problem
    if not p.operator_modules or not any(p.operator_modules):
        return None
    paths, index = np.unique(np.array(p.operator_modules, dtype=object), return_inverse=True)
    first = np.full(len(paths), p.n)
    np.minimum.at(first, index, np.arange(p.n))
    cell = index * p.m + played.placement
    size = len(paths) * p.m
    own_s = p.compute_s[np.arange(p.n), played.placement]
    amounts = [
        np.bincount(cell, weights=weights, minlength=size).reshape(-1, p.m)
        for weights in (own_s, p.resident_bytes, np.ones(p.n))
    ]
    root = _node("", p.m)
    for k in np.argsort(first, kind="stable").tolist():
        for node in _path(root, str(paths[k]), p.m):
            for total, amount in zip(
                (node.seconds, node.resident, node.operators), amounts, strict=True
            ):
                total += amount[k]
    return root


def _node(name: str, m: int) -> _Node:
    return _Node(name, np.zeros(m), np.zeros(m), np.zeros(m))


def _path(root: _Node, path: str, m: int) -> Iterator[_Node]:
    """The root, every module down to `path`, and the leaf of operators that are its own."""
    node = root
    yield node
    name = ""
    for part in path.split(".") if path else []:
        name = f"{name}.{part}" if name else part
        node = node.children.setdefault(part, _node(name, m))
        yield node
    yield node.children.setdefault(OWN, _node(f"{name} {OWN}" if name else "(no module)", m))


def _unfolded(root: _Node, most: int) -> list[_Node]:
    """Modules, large shared ones unfolded while there is room, the largest first."""
    rows, closed = [root], set[int]()
    while True:
        shared = [
            n
            for n in rows
            if n.home() < 0
            and n.children
            and id(n) not in closed
            and _weight(n, root) >= WORTH_UNFOLDING
        ]
        if not shared:
            return rows
        node = max(shared, key=lambda n: _weight(n, root))
        at = next(k for k, row in enumerate(rows) if row is node)
        wider = [*rows[:at], *_children(node), *rows[at + 1 :]]
        if len(list(_ranges(wider))) <= most:
            rows = wider
        closed.add(id(node))


def _children(node: _Node) -> list[_Node]:
    """A module that has nothing but one child is that child."""
    children = list(node.children.values())
    return children if len(children) > 1 or not children[0].children else children[0:1]


def _weight(node: _Node, root: _Node) -> float:
    """Share of the model's seconds and resident bytes."""
    pairs = ((node.seconds, root.seconds), (node.resident, root.resident))
    return sum(float(a.sum() / b.sum()) for a, b in pairs if b.sum())


def _ranges(rows: Sequence[_Node]) -> Iterator[tuple[str, int, list[_Node]]]:
    """Consecutive numbered modules become one row: ``layers.0-17``, on a device or mainly so."""
    run: list[_Node] = []
    for node in rows:
        if run and not _continues(run[-1], node):
            yield _range_name(run), run[0].home(), run
            run = []
        run.append(node)
    if run:
        yield _range_name(run), run[0].home(), run


def _continues(before: _Node, node: _Node) -> bool:
    """Whether a node is the next number of the same list, on the same device as much."""
    a, b = re.fullmatch(r"(.*?)(\d+)", before.name), re.fullmatch(r"(.*?)(\d+)", node.name)
    if a is None or b is None or a[1] != b[1] or int(b[2]) != int(a[2]) + 1:
        return False
    return before.home() == node.home() and before.seconds.argmax() == node.seconds.argmax()


def _range_name(run: Sequence[_Node]) -> str:
    first, last = run[0].name or "the whole model", run[-1].name
    if len(run) == 1:
        return first
    number = re.search(r"\d+$", last)
    return f"{first}-{number[0] if number else ''}"
