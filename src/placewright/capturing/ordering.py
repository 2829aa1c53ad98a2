"""Orders that no value carries: in-place updates and the random-number generator.

An update of a parameter or buffer runs after every operator that reads it (views included) and
after the update before; a reader behind an update runs after that update. Draws of random
numbers run in the order of eager mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from placewright.capturing.flow import Flow


def orders(flow: Flow) -> dict[int, list[int]]:
    """Operator -> operators that must run after it and read none of its results."""
    found: dict[int, set[int]] = {}
    for before, after in (*_updates(flow), *_draws(flow)):
        if before not in flow.made(after):
            found.setdefault(before, set()).add(after)
    return {k: sorted(found[k]) for k in sorted(found)}


def _updates(flow: Flow) -> Iterator[tuple[int, int]]:
    changed = {name for draft in flow.drafts for name in draft.call.mutates}
    readers: dict[str, list[int]] = {}
    last: dict[str, int] = {}
    for k, touched in enumerate(flow.touched):
        for name in touched:
            if name not in changed:
                continue
            if name in last:
                yield last[name], k
            if name in flow.drafts[k].call.mutates:
                yield from ((reader, k) for reader in readers.pop(name, ()))
                last[name] = k
            else:
                readers.setdefault(name, []).append(k)


def _draws(flow: Flow) -> Iterator[tuple[int, int]]:
    random = [k for k, draft in enumerate(flow.drafts) if draft.call.random]
    yield from pairwise(random)
