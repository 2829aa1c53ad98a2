"""Baselines that other tools make: the device map of Hugging Face accelerate, parts by METIS."""

from __future__ import annotations

import ctypes
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError, MissingDependencyError
from placewright.graph.graph import Module, ModuleTree, parent_of
from placewright.io.units import BYTES, show
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.costs import Groups, group_costs, groups_of
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class AccelerateAuto:
    """Whole modules, devices filled one after another by bytes of weights, GPUs first.

    ``infer_auto_device_map`` under the limits of ``get_balanced_memory``, as in accelerate 1.15
    (https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/modeling.py,
    explained in https://huggingface.co/docs/accelerate/concept_guides/big_model_inference): a
    module goes to the current device if it fits there beside what is tied to it, else it is taken
    apart unless its class is never split, else to the next device. Devices are GPUs (all kinds
    but ``cpu``) in their order, then the first CPU; room for the largest layer is kept on the
    first GPU and the CPU. Never a look at time, at links or at activations. O(modules^2).

    The map is accelerate's own, module by module, for the device memories given as
    ``max_memory``. Departures are in what becomes of it: accelerate copies the weights of modules
    on the CPU to the first GPU in each step and computes there, here the CPU computes them; what
    would go to disk is an error, and so is a map that accelerate itself cannot end. Tied
    parameters that it would put on two devices are on the first one. Other CPUs than the first
    have no place in its maps and stay idle. transformers 5 has a copy of these functions that
    balances by the largest layer of each class and tensor, which is not this one.

    Parameters
    ----------
    balance
        Spread the model evenly over the GPUs (``"auto"``); otherwise fill them one by one
        (``"sequential"``).
    low_zero
        Leave the first GPU as empty as the others allow (``"balanced_low_0"``).
    """

    name: ClassVar[str] = "accelerate-auto"
    balance: bool = True
    low_zero: bool = False

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Problems that say their modules and kinds of devices, with tensors over links."""
        if problem.modules is None or not problem.operator_modules:
            return "places whole modules, and the problem does not say its modules"
        if not problem.device_kinds:
            return "fills GPUs before CPUs, and the problem does not say the kinds of its devices"
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises `InfeasibleError` (a group that no device can run; modules that would go to disk).
        """
        assert problem.modules is not None
        sizes = module_sizes(problem.modules)
        found = self.map(problem, sizes)
        _check_disk(problem, sizes, found)
        return OperatorPlan(placement(problem, problem.modules, found))

    def map(self, problem: OperatorProblem, sizes: ModuleSizes) -> dict[str, int]:
        """Device of modules, and of parameters outside of those, by qualified name."""
        room = problem.memory_bytes.tolist()
        kinds = problem.device_kinds
        gpus = [d for d, kind in enumerate(kinds) if kind != "cpu"]
        cpus = [d for d, kind in enumerate(kinds) if kind == "cpu"][:1]
        limits = {k: room[d] for k, d in enumerate(gpus)}
        if self.balance:
            limits = balanced(sizes, limits, low_zero=self.low_zero)
        given = {gpus[k]: limit for k, limit in limits.items()} | {d: room[d] for d in cpus}
        return device_map(sizes, given, [*gpus[:1], *cpus])


def _check_disk(problem: OperatorProblem, sizes: ModuleSizes, found: dict[str, int]) -> None:
    over = [name for name, d in found.items() if d == DISK and sizes.bytes_of[name]]
    if over:
        size = sum(sizes.bytes_of[name] for name in over)
        raise InfeasibleError(
            f"accelerate would leave {over[0]!r} on disk",
            where=problem.name,
            by=f"{len(over)} modules of {show(size, BYTES)}",
            hint="give devices more memory, or take another planner",
        )


def mapped_device(found: Mapping[str, int], name: str) -> int | None:
    """The device of a module, parameter or buffer, or of the nearest module around it."""
    while name not in found:
        if not name:
            return None
        name = parent_of(name)
    return found[name]


def placement(problem: OperatorProblem, tree: ModuleTree, found: Mapping[str, int]) -> IntArray:
    """Shape (n,): the device of every operator under a device map.

    What holds parameters runs where the map has them: the largest decides for its colocation
    group. Other operators follow their module. Those of a module whose parts have gone apart
    run where their first input is made, else where their first result is read. What the device
    of a group cannot run goes to the first that can.
    """
    groups, top = groups_of(problem), problem.topology
    device = np.full(len(groups.first), -1, dtype=np.int64)
    for g, d in _held(problem, groups, tree, found).items():
        device[g] = d
    for i in top.order.tolist():
        g = groups.group[i]
        if device[g] < 0:
            near = mapped_device(found, problem.operator_modules[i])
            makers = problem.tensor_producer[top.read_by(i)]
            device[g] = _first_device(device[groups.group[makers]]) if near is None else near
    for i in top.order[::-1].tolist():
        if device[groups.group[i]] < 0:
            readers = [j for k in top.made_by(i).tolist() for j in problem.readers(k).tolist()]
            device[groups.group[i]] = _first_device(device[groups.group[readers]])
    device[device < 0] = 0
    refused = ~groups.allowed[np.arange(len(device)), device]
    device[refused] = groups.allowed[refused].argmax(axis=1)
    result: IntArray = device[groups.group]
    return result


def _held(
    problem: OperatorProblem, groups: Groups, tree: ModuleTree, found: Mapping[str, int]
) -> dict[int, int]:
    """Device of every group that holds a parameter or buffer: that of the largest."""
    operator = {name: i for i, name in enumerate(problem.operator_names)}
    most: dict[int, int] = {}
    device: dict[int, int] = {}
    for module in tree.modules:
        for tensor in module.tensors:
            if not tensor.operator or tensor.same_as:
                continue
            g = int(groups.group[operator[tensor.operator]])
            d = mapped_device(found, module.key(tensor))
            if d is not None and tensor.bytes > most.get(g, -1):
                most[g], device[g] = tensor.bytes, d
    return device


def _first_device(devices: IntArray) -> int:
    """The first that is known, -1 if none is."""
    return next((d for d in devices.tolist() if d >= 0), -1)


DISK = -1
"""Device of modules that fit nowhere."""


def device_map(
    sizes: ModuleSizes, limits: Mapping[int, float], main: Sequence[int]
) -> dict[str, int]:
    """Device of modules, and of parameters and buffers outside of those, by qualified name.

    Modules in their order, each to the current device if it fits there beside what is tied to it,
    else taken apart if that may be, else to the next device; there is no way back. On the `main`
    devices room is kept for the largest module that is still to come and is not taken apart.

    `limits`: bytes that each device may take, by device in the order in which they are filled. What
    fits on none is `DISK`'s.
    `main`: the first GPU and the CPU.
    Raises `InfeasibleError`: what is tied to a module has been given a device before: accelerate
    raises an error.
    """
    filling = _Filling(sizes, dict(limits), tuple(main))
    while filling.left:
        filling.step()
    return filling.found


@dataclass(slots=True)
class _Filling:
    """Where the walk is: names still to come, the device being filled, bytes on it."""

    sizes: ModuleSizes
    limits: dict[int, float]
    main: tuple[int, ...]
    devices: list[int] = field(init=False)
    left: list[str] = field(init=False)
    found: dict[str, int] = field(default_factory=dict)
    current: int = 0
    used: float = 0
    largest: float = field(init=False)
    largest_names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.devices = [*self.limits, DISK]
        self.left = [*self.sizes.parts(""), *self.sizes.buffers.get("", ())]
        self.largest, self.largest_names = self.sizes.largest_layer(self.left)

    def step(self) -> None:
        """Give the next module a device, take it or what is tied to it apart, or move on."""
        name = self.left.pop(0)
        self._update_largest(name)
        size = self.sizes.bytes_of[name]
        tied = self._tied_outside(name)
        partners = [self._holder(key) for key in tied]
        # What is tied to it comes along as whole modules; the tied parameter itself is in `size`.
        extra = sum(
            self.sizes.bytes_of[module] - self.sizes.bytes_of[key]
            for key, module in zip(tied, partners, strict=True)
        )
        device = self.devices[self.current]
        kept = self.largest if device in self.main else 0
        room = self.limits.get(device, math.inf) - kept
        if device == DISK or self.used + size + extra <= room:
            self.used += size + extra
            self._give([name, *partners], device)
        elif tied and self.used + size <= room and self._split_partner(name, partners):
            pass
        # A module that fits, but not with what is tied to it, goes to the next device as a whole.
        elif self.used + size >= room and self.sizes.splits(name):
            self.left = [*self.sizes.parts(name), *self.left]
            self._look_again()
        else:
            # No way back: what room is left on the device stays empty.
            self.current, self.used = self.current + 1, 0
            self.left.insert(0, name)

    def _give(self, names: Sequence[str], device: int) -> None:
        for name in names:
            self.found[name] = device
            if name in self.left:
                self.left.remove(name)

    def _update_largest(self, name: str) -> None:
        beneath = name + "."
        self.largest_names = [
            n for n in self.largest_names if n != name and not n.startswith(beneath)
        ]
        if not self.largest_names:
            self._look_again()

    def _look_again(self) -> None:
        modules = [n for n in self.left if self.sizes.is_module(n)]
        self.largest, self.largest_names = self.sizes.largest_layer(modules)

    def _tied_outside(self, name: str) -> list[str]:
        """Parameters outside of `name` that are tied to one inside."""
        mark = name + "."
        groups = (
            [(key, mark in key + ".") for key in group]  # as accelerate: anywhere in the name
            for group in self.sizes.tied
        )
        split = (g for g in groups if any(inside for _, inside in g))
        return [key for g in split for key, inside in g if not inside]

    def _holder(self, key: str) -> str:
        """The module still to come that holds the parameter `key`."""
        for name in self.left:
            if key.startswith(name + "."):
                return name
        raise InfeasibleError(
            "accelerate 1.15 finds no device for what is tied to a parameter",
            where=f"parameter {key!r}",
            hint="no module that is still without a device holds it; take another planner",
        )

    def _split_partner(self, name: str, partners: Sequence[str]) -> bool:
        """Take apart the first module tied to `name` that may be; `name` comes next again."""
        for partner in partners:
            if self.sizes.splits(partner):
                at = self.left.index(partner)
                parts = self.sizes.parts(partner)
                self.left = [name, *self.left[:at], *parts, *self.left[at + 1 :]]
                self._look_again()
                return True
        return False


@dataclass(frozen=True, slots=True, eq=False)
class ModuleSizes:
    """What accelerate reads of a model, by qualified name.

    Attributes
    ----------
    bytes_of
        Modules, parameters and buffers, ``""`` for the model; what is tied counts once, where it
        comes first. Names in accelerate's order: with the parameters, then with the buffers.
    children, parameters, buffers
        Of a module, its own; names in the model's order.
    tied
        Names of parameters that are one.
    """

    tree: ModuleTree
    kinds: dict[str, str]
    bytes_of: defaultdict[str, float]
    children: defaultdict[str, list[str]]
    parameters: dict[str, list[str]]
    buffers: dict[str, list[str]]
    tied: list[list[str]]

    def is_module(self, name: str) -> bool:
        """Whether it is a module, and not a parameter or a buffer."""
        return name in self.kinds

    def splits(self, name: str) -> bool:
        """Whether it is a module that may be taken apart: it has children, and its class may."""
        whole = self.kinds.get(name, "") in self.tree.no_split
        return bool(self.children.get(name)) and not whole

    def parts(self, name: str) -> list[str]:
        """What a module is taken apart into: its parameters, then its children; no buffers."""
        return [*self.parameters.get(name, ()), *self.children.get(name, ())]

    def largest_layer(self, names: list[str]) -> tuple[float, list[str]]:
        """Bytes of the largest module within `names` that is not taken apart, and its names."""
        most, found, left = 0.0, [], list(reversed(names))
        while left:
            name = left.pop()
            if self.splits(name):
                left.extend(reversed(self.children[name]))
            elif self.bytes_of[name] > most:
                most, found = self.bytes_of[name], [name]
            elif self.bytes_of[name] == most:
                found.append(name)
        return most, found


def module_sizes(tree: ModuleTree) -> ModuleSizes:
    """``compute_module_sizes``, ``find_tied_parameters`` and the children, of a tree."""
    children: defaultdict[str, list[str]] = defaultdict(list)
    for module in tree.modules[1:]:
        children[parent_of(module.path)].append(module.path)
    return ModuleSizes(
        tree,
        {m.path: m.kind for m in tree.modules},
        _bytes_of(tree),
        children,
        {m.path: _names(m, buffers=False) for m in tree.modules},
        {m.path: _names(m, buffers=True) for m in tree.modules},
        _tied(tree),
    )


def _names(module: Module, *, buffers: bool) -> list[str]:
    return [module.key(t) for t in module.tensors if t.buffer == buffers]


def _bytes_of(tree: ModuleTree) -> defaultdict[str, float]:
    found: defaultdict[str, float] = defaultdict(int)
    for buffers in (False, True):
        for module in tree.modules:
            for tensor in module.tensors:
                if tensor.buffer != buffers or tensor.same_as:
                    continue
                # accelerate takes a bool for a bit.
                size = tensor.bytes / 8 if tensor.dtype == "bool" else tensor.bytes
                parts = module.key(tensor).split(".")
                for k in range(len(parts) + 1):
                    found[".".join(parts[:k])] += size
    return found


def _tied(tree: ModuleTree) -> list[list[str]]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for module in tree.modules:
        for tensor in module.tensors:
            if tensor.same_as and not tensor.buffer:
                groups[tensor.same_as].append(module.key(tensor))
    return [sorted([first, *others]) for first, others in groups.items()]


def balanced(
    sizes: ModuleSizes, gpu_bytes: Mapping[int, float], *, low_zero: bool = False
) -> dict[int, float]:
    """Bytes that each GPU may take of the model, so that all of them get about as much.

    A GPU's share is the model over the number of GPUs, and 1.25 times the largest module that is
    never split (the first of each class) or the mean last module with tensors, if that is more.
    The last GPU keeps what it has.

    `gpu_bytes`: what each GPU has, by number.
    `low_zero`: leave the first GPU as empty as the others allow.
    """
    limits = dict(gpu_bytes)
    used = sorted(d for d, room in limits.items() if room > 0)
    if not used:
        return limits
    low_zero = low_zero and len(used) > 1
    whole = sizes.bytes_of[""]
    share = whole // (len(used) - low_zero)
    share += int(1.25 * max(_largest_unsplit(sizes), _mean_last(sizes)))
    for d in used[:-1]:
        first = low_zero and d == 0
        limits[d] = min(limits[0] if first else share, limits[d])
    if low_zero:
        others = sum(limits[d] for d in range(1, len(used)))
        limits[0] = min(max(0, whole - others), limits[0])
    return limits


def _largest_unsplit(sizes: ModuleSizes) -> float:
    first: dict[str, float] = {}
    for name, size in sizes.bytes_of.items():
        kind = sizes.kinds.get(name, "")
        if name and kind in sizes.tree.no_split:
            first.setdefault(kind, size)
    return max(first.values(), default=0)


def _mean_last(sizes: ModuleSizes) -> int:
    """Mean bytes of what is left without children when tensors are left out."""
    tensors = set(_leaves(sizes.bytes_of))
    modules = [name for name in sizes.bytes_of if name not in tensors]
    last = _leaves(modules)
    return int(sum(sizes.bytes_of[name] for name in last) / max(len(last), 1))


def _leaves(names: Iterable[str]) -> list[str]:
    names = list(names)
    parents = {name.rpartition(".")[0] for name in names if "." in name}
    return [name for name in names if name and name not in parents]


METIS_SCALE = 1_000_000
"""METIS takes whole numbers: the largest weight becomes this."""


LEAST_DUE = 0.5
"""Least share of a device, in groups; METIS prints warnings about parts without a vertex."""


@final
@dataclass(frozen=True, slots=True)
class Metis:
    """Colocation groups parted so that bytes between parts are few, time shared by speed.

    Karypis, Kumar 1998 (doi 10.1137/S1064827595287997), by pymetis (extra ``exact``). It knows
    neither the direction of edges nor memory nor links: a baseline that papers compare with.

    Departures: parts are as large as devices are fast, and a device that is due less than half a
    group gets none; a group that its part's device cannot run goes to the fastest device that can.
    """

    name: ClassVar[str] = "metis"

    unsupported_reason = staticmethod(pairwise_only)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises `MissingDependencyError` (pymetis is not installed) or `InfeasibleError` (a group
        that no device can run).
        """
        groups = groups_of(problem)
        work = group_costs(groups, problem.compute_s)
        part = _parts(problem, groups, work, context.seed)
        own = groups.allowed[np.arange(len(part)), part]
        return OperatorPlan(np.where(own, part, work.argmin(axis=1))[groups.group])


def _parts(problem: OperatorProblem, groups: Groups, work: FloatArray, seed: int) -> IntArray:
    """Part of each group."""
    pymetis = _pymetis()
    count, m = work.shape
    if m == 1 or count <= m:
        alone: IntArray = np.arange(count) % m
        return alone
    finite = np.isfinite(work)
    mean = np.where(finite, work, 0.0).sum(axis=1) / finite.sum(axis=1)
    speed = finite.sum(axis=0) / np.maximum(np.where(finite, work, 0.0).sum(axis=0), 1e-300)
    share = np.where(finite.any(axis=0), speed, 0.0) + 1e-9 * speed.max()
    due = np.flatnonzero(share * count >= LEAST_DUE * share.sum())
    if len(due) == 1:
        return np.full(count, due[0])
    first, neighbour, weight = _edges(problem, groups)
    with _printing_to_stderr():
        _, part = pymetis.part_graph(
            len(due),
            pymetis.CSRAdjacency(first.tolist(), neighbour.tolist()),
            vweights=_whole(mean).tolist(),
            eweights=_whole(weight).tolist(),
            tpwgts=_sum_to_one(share[due]),
            recursive=len(due) <= 8,
            options=pymetis.Options(seed=seed % 2**31),
        )
    found: IntArray = due[np.asarray(part, dtype=np.int64)]
    return found


_PRINTING = Lock()


@contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """METIS warns of parts without a vertex on stdout, in the middle of what a command prints."""
    with _PRINTING, ExitStack() as restored:
        with suppress(OSError):  # of a process that has closed one of them
            own = os.dup(1)
            restored.callback(os.close, own)
            os.dup2(2, 1)
            restored.callback(os.dup2, own, 1)
            restored.callback(ctypes.CDLL(None).fflush, None)
        yield


def _sum_to_one(share: FloatArray) -> list[float]:
    """As METIS takes it: the last is what the others leave."""
    parts: list[float] = (share / share.sum()).tolist()
    return [*parts[:-1], 1.0 - sum(parts[:-1])]


def _edges(problem: OperatorProblem, groups: Groups) -> tuple[IntArray, IntArray, FloatArray]:
    """CSR of the undirected graph of groups, with bytes between them."""
    tensor = problem.consumed
    a, b = groups.group[problem.tensor_producer[tensor]], groups.group[problem.consumers]
    size = problem.tensor_bytes[tensor]
    a, b, size = a[a != b], b[a != b], size[a != b]
    count = len(groups.first)
    key, inverse = np.unique(np.r_[a * count + b, b * count + a], return_inverse=True)
    weight = np.bincount(inverse, np.r_[size, size], minlength=len(key))
    first = np.searchsorted(key // count, np.arange(count + 1))
    return first, key % count, weight.astype(np.float64)


def _whole(values: FloatArray) -> IntArray:
    """Scaled to whole numbers from 1."""
    top = float(values.max(initial=0.0))
    scaled = values * (METIS_SCALE / top if top > 0 else 0.0)
    return np.maximum(1, np.rint(scaled)).astype(np.int64)


def _pymetis() -> Any:
    try:
        import pymetis
    except ImportError:
        raise MissingDependencyError("pymetis", extra="exact", purpose="planner 'metis'") from None
    return pymetis
