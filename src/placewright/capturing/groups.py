"""Colocation: operators that must, or might as well, run on one device.

1. Whatever reads or changes one parameter, buffer or optimizer state lives where that lives,
   views of it included; so does an input that the model changes in place.
2. A view runs with the producer of what it is a view of; one that grows (expand) with its only
   consumer, so that the smaller tensor is the one that travels.
3. All draws of random numbers run in one place: they share one generator, as in eager mode.
4. What is made of nothing (zeros, arange, full), and views of that or of model inputs, which are
   present on every device, runs with its first consumer.
5. The backward of a recurrent layer runs with its forward.
"""

from __future__ import annotations

from placewright.capturing.draft import Sketch
from placewright.capturing.flow import Flow, grows, is_fill, is_view
from placewright.capturing.program_calls import RECURRENT


def colocation(sketch: Sketch, flow: Flow) -> tuple[list[str], dict[str, str]]:
    """Group of every operator and of every resident input.

    Returns
    -------
    groups
        One per operator: the name of the group's first operator, ``""`` for operators alone.
    homes
        Program input -> group, for parameters, buffers and state.
    """
    union = _Union(len(flow.drafts))
    resident = {entry.name for entry in sketch.resident()}
    readers = _join_residents(union, flow, resident)
    _join_views(union, sketch, flow, resident)
    _join_random(union, flow)
    _join_workspaces(union, flow)
    sizes = union.sizes()
    homes = {name: flow.drafts[union.find(k)].call.name for name, k in readers.items()}
    named = set(homes.values())
    groups = []
    for k in range(len(flow.drafts)):
        root = union.find(k)
        name = flow.drafts[root].call.name
        groups.append(name if sizes[root] > 1 or name in named else "")
    return groups, homes


def _join_residents(union: _Union, flow: Flow, resident: set[str]) -> dict[str, int]:
    first: dict[str, int] = {}
    for k, touched in enumerate(flow.touched):
        for name in touched:
            if name in resident:
                union.join(first.setdefault(name, k), k)
    return first


def _join_views(union: _Union, sketch: Sketch, flow: Flow, resident: set[str]) -> None:
    free: list[bool] = []
    for k, draft in enumerate(flow.drafts):
        made, users = flow.made(k), flow.users(k)
        view = is_view(draft)
        from_nothing = is_fill(draft) or (view and all(free[p] for p in made))
        free.append(from_nothing and resident.isdisjoint(flow.touched[k]))
        if free[k] and users:
            union.join(k, users[0])
        elif view and made:
            alone = len(users) == 1 and grows(draft, sketch)
            union.join(k, users[0] if alone else made[0])


def _join_random(union: _Union, flow: Flow) -> None:
    random = [k for k, draft in enumerate(flow.drafts) if draft.call.random]
    for k in random:
        union.join(random[0], k)


def _join_workspaces(union: _Union, flow: Flow) -> None:
    """A recurrent layer hands its backward a workspace whose size only the kernel knows."""
    for k, draft in enumerate(flow.drafts):
        if draft.call.target == RECURRENT:
            for user in flow.consumers.get(f"{draft.call.name}.3", ()):
                union.join(k, user)


class _Union:
    """Disjoint sets of positions; the smallest position of a set is its root."""

    def __init__(self, n: int) -> None:
        self.parent = list(range(n))

    def find(self, k: int) -> int:
        while self.parent[k] != k:
            self.parent[k] = self.parent[self.parent[k]]
            k = self.parent[k]
        return k

    def join(self, a: int, b: int) -> None:
        low, high = sorted((self.find(a), self.find(b)))
        self.parent[high] = low

    def sizes(self) -> list[int]:
        counts = [0] * len(self.parent)
        for k in range(len(self.parent)):
            counts[self.find(k)] += 1
        return counts
