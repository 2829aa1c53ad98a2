"""Summary of a placement: operators, bytes and seconds per device, by module."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.plan import OperatorPlan
from placewright.operators.simulation.loads import stage_s, stages
from placewright.report.text import size

MOST_ROWS = 16
"""Modules, or ranges of them, that a summary tells apart."""

MOSTLY = 0.95
"""A module is on a device where so much of its seconds and of its resident bytes is."""

MOSTLY_MARK = " (mostly)"
"""Behind the name of such a module, if the rest of it is on other devices."""

WORTH_UNFOLDING = 0.2
"""Share of the model's seconds plus that of its resident bytes: smaller ones stay folded."""

OWN = "(own operators)"

MAPPED = 1.0
"""A list of layers stands for the model in its map where it has so much of `_weight`'s 2."""

MOST_PARTS = 8
"""Stretches of layers, and pairs of devices, that the map lists."""


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """Predicted operators, bytes and seconds of one device in a step.

    `peak_bytes`: resident bytes and tensors at the worst moment.
    `modules`: that run here, consecutive ones as a range; ``layers.3 (mostly)`` where some of it is
    elsewhere.
    `copy_of`: the device whose operators this one has copies of, in a stream; its seconds are those
    of a sample that comes here.
    """

    device: str
    operators: int
    resident_bytes: float
    peak_bytes: int
    memory_bytes: float
    seconds: float
    modules: tuple[str, ...] = ()
    copy_of: str | None = None


@dataclass(frozen=True, slots=True)
class Crossing:
    """Traffic from one device to another in a step, each tensor once."""

    source: str
    target: str
    tensors: int
    bytes: float


@dataclass(frozen=True, slots=True)
class ModuleSplit:
    """A module on several devices; seconds by device."""

    module: str
    seconds: Mapping[str, float]
    resident_bytes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PlacementSummary:
    """Devices of a plan, what crosses between them, and modules that several of them share.

    `module_map`: one line: ``layers 0-17 on gpu0, 18-31 on gpu1; 14 MiB per step between them``.
    Empty where modules are not known.
    """

    devices: tuple[DeviceSummary, ...]
    crossings: tuple[Crossing, ...]
    split: tuple[ModuleSplit, ...]
    module_map: str = ""

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


def placement_summary(judged: OperatorJudgement, plan: OperatorPlan) -> PlacementSummary:
    """Summarise a plan and its judgement."""
    p, place = judged.problem, judged.placement
    modules, split = _modules(judged)
    operators = np.bincount(place, minlength=p.m)
    resident = np.bincount(place, weights=p.resident_bytes, minlength=p.m)
    leader, _ = stages(p, plan)
    copies = (leader != np.arange(p.m)) & (operators[leader] > 0)
    busy_s = np.where(copies, stage_s(p, plan), judged.busy_s) if copies.any() else judged.busy_s
    devices = tuple(
        DeviceSummary(
            device=name,
            operators=int(operators[leader[d]]),
            resident_bytes=float(resident[leader[d]]),
            peak_bytes=int(judged.peak_bytes[d]),
            memory_bytes=float(p.memory_bytes[d]),
            seconds=float(busy_s[d]),
            modules=tuple(modules.get(int(leader[d]), ())),
            copy_of=p.device_names[int(leader[d])] if copies[d] else None,
        )
        for d, name in enumerate(p.device_names)
    )
    crossings = _crossings(judged)
    return PlacementSummary(devices, crossings, split, module_map(judged, devices, crossings))


def _crossings(judged: OperatorJudgement) -> tuple[Crossing, ...]:
    """By pair of devices, most bytes first."""
    p, place = judged.problem, judged.placement
    readers = p.consumed
    pairs = np.stack([readers, place[p.consumers]], axis=1)
    tensor, target = np.unique(pairs, axis=0).reshape(-1, 2).T
    source = place[p.tensor_producer[tensor]]
    sent = p.tensor_bytes[tensor]
    real = (source != target) & (sent > 0)
    way = (source * p.m + target)[real]
    count = np.bincount(way, minlength=p.m**2)
    total = np.bincount(way, weights=sent[real], minlength=p.m**2)
    found = [
        Crossing(p.device_names[k // p.m], p.device_names[k % p.m], int(count[k]), float(total[k]))
        for k in np.flatnonzero(count).tolist()
    ]
    return tuple(sorted(found, key=lambda c: -c.bytes))


def module_map(
    judged: OperatorJudgement,
    devices: Sequence[DeviceSummary],
    crossings: Sequence[Crossing],
) -> str:
    """Which device has which layers, and what they exchange, in one line.

    Layers are the numbered modules of the list that takes most seconds and bytes; a model without
    such a list is described by the modules of each device.
    """
    root, used = _tree(judged), [d for d in devices if d.operators and d.copy_of is None]
    copies = [d.device for d in devices if d.copy_of is not None]
    if root is None:
        return ""
    if len(used) == 1 and copies:
        every = [d.device for d in devices if d.operators]
        return f"a copy of the whole model on each of {', '.join(every)}"
    if len(used) == 1:
        return f"the whole model on {used[0].device}"
    layers = max(_lists(root), key=lambda node: _weight(node, root), default=None)
    if layers is None or _weight(layers, root) < MAPPED:
        parts = [f"{_few(d.modules)} on {d.device}" for d in used if d.modules]
    else:
        parts = _layer_parts(layers, judged.problem.device_names)
        without = [
            d.device
            for d in used
            if not layers.operators[judged.problem.device_names.index(d.device)]
        ]
        parts += [f"other modules on {' and '.join(without)}"] if without else []
    parts += [f"copies on {' and '.join(copies)}"] if copies else []
    traffic = _traffic(crossings)
    return ", ".join(parts) + (f"; {traffic}" if traffic else "")


def _lists(node: _Node) -> Iterator[_Node]:
    """Modules whose children are numbered, two or more, outermost first."""
    numbered = [child for key, child in node.children.items() if key.isdigit()]
    if len(numbered) > 1:
        yield node
    for child in node.children.values():
        yield from _lists(child)


def _layer_parts(layers: _Node, names: Sequence[str]) -> list[str]:
    """``layers 0-17 on gpu0``, ``18-31 on gpu1``; a layer on several devices with all of them."""
    runs: list[tuple[str, list[str]]] = []
    for key, child in layers.children.items():
        if not key.isdigit():
            continue
        home = child.home()
        on = [home] if home >= 0 else np.flatnonzero(child.operators).tolist()
        where = " and ".join(names[d] for d in on) + MOSTLY_MARK * child.strays()
        if runs and runs[-1][0] == where and int(key) == int(runs[-1][1][-1]) + 1:
            runs[-1][1].append(key)
        else:
            runs.append((where, [key]))
    ranges = [keys[0] if len(keys) == 1 else f"{keys[0]}-{keys[-1]}" for _, keys in runs]
    noun = layers.name.rpartition(".")[2] or "layers"
    parts = [f"{span} on {where}" for span, (where, _) in zip(ranges, runs, strict=True)]
    more = len(parts) - MOST_PARTS
    listed = [f"{noun} {parts[0]}", *parts[1:MOST_PARTS]]
    return [*listed, *([f"and {more} more parts"] if more > 0 else [])]


def _few(names: Sequence[str]) -> str:
    """The first and the last of consecutive modules."""
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _traffic(crossings: Sequence[Crossing]) -> str:
    """Bytes per step of every pair of devices, both ways together."""
    between: dict[frozenset[str], float] = {}
    for c in crossings:
        pair = frozenset((c.source, c.target))
        between[pair] = between.get(pair, 0.0) + c.bytes
    if len(between) == 1:
        return f"{size(sum(between.values()))} per step between them"
    listed = sorted(((-amount, sorted(pair)) for pair, amount in between.items()))
    parts = [f"{size(-amount)} between {a} and {b}" for amount, (a, b) in listed[:MOST_PARTS]]
    more = len(listed) - MOST_PARTS
    return f"per step {', '.join(parts)}" * bool(parts) + f", and {more} more pairs" * (more > 0)


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

    def strays(self) -> bool:
        """Whether something that takes seconds or bytes is not on the device of the rest."""
        return self.home() >= 0 and int(np.count_nonzero(self.seconds + self.resident)) > 1

    def hides(self) -> bool:
        """Whether a module in it that holds weights is not on the device of the rest."""
        inside = self.children.values() if self.strays() else ()
        return any((c.resident.sum() > 0 and c.home() != self.home()) or c.hides() for c in inside)


def _modules(judged: OperatorJudgement) -> tuple[dict[int, list[str]], tuple[ModuleSplit, ...]]:
    """By device names of modules, and the modules that devices share."""
    p = judged.problem
    root = _tree(judged)
    if root is None:
        return {}, ()
    rows = _unfolded(root)
    homes: dict[int, list[str]] = {}
    split = []
    for name, home, nodes in _ranges(rows):
        if home >= 0:
            homes.setdefault(home, []).append(name)
            continue
        on = [d for d in range(p.m) if any(node.operators[d] for node in nodes)]
        seconds = {p.device_names[d]: float(sum(n.seconds[d] for n in nodes)) for d in on}
        resident = {p.device_names[d]: float(sum(n.resident[d] for n in nodes)) for d in on}
        split.append(ModuleSplit(name, seconds, resident))
    return homes, tuple(split)


def _tree(judged: OperatorJudgement) -> _Node | None:
    """The modules of all operators; ``None`` where they are not known."""
    p = judged.problem
    if not p.operator_modules or not any(p.operator_modules):
        return None
    paths, index = np.unique(np.array(p.operator_modules, dtype=object), return_inverse=True)
    first = np.full(len(paths), p.n)
    np.minimum.at(first, index, np.arange(p.n))
    cell = index * p.m + judged.placement
    cells = len(paths) * p.m
    own_s = p.compute_s[np.arange(p.n), judged.placement]
    amounts = [
        np.bincount(cell, weights=weights, minlength=cells).reshape(-1, p.m)
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


def _unfolded(root: _Node) -> list[_Node]:
    """Modules, unfolded while there is room, the largest first.

    Unfolded are large shared ones, and those of which one device has nearly all and another one a
    module with weights.
    """
    rows, closed = [root], set[int]()
    while True:
        shared = [
            n
            for n in rows
            if n.children
            and id(n) not in closed
            and (n.hides() or (n.home() < 0 and _weight(n, root) >= WORTH_UNFOLDING))
        ]
        if not shared:
            return rows
        node = max(shared, key=lambda n: _weight(n, root))
        at = next(k for k, row in enumerate(rows) if row is node)
        wider = [*rows[:at], *_children(node), *rows[at + 1 :]]
        if len(list(_ranges(wider))) <= MOST_ROWS:
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
    mark = MOSTLY_MARK * any(node.strays() for node in run)
    if len(run) == 1:
        return first + mark
    number = re.search(r"\d+$", last)
    return f"{first}-{number[0] if number else ''}{mark}"
