"""Bytes of every module as accelerate counts them, and the balanced limits of GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from placewright.graph.graph import Module, ModuleTree, parent_of


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
