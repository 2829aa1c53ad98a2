"""A device for every module: accelerate's ``infer_auto_device_map``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placewright.errors import InfeasibleError
from placewright.operators.planners.module_maps.sizes import ModuleSizes

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
