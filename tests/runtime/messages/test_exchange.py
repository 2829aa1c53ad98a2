"""Messages without tags have one order at both ends, and no deadlock."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from placewright.capturing.model import capture_source
from placewright.graph.graph import Graph
from placewright.runtime.messages.layout import Way
from placewright.runtime.messages.wire import message_key
from placewright.runtime.step.partition import partition
from placewright.runtime.step.sequence import Share, shares
from placewright.testing.small_zoo import small
from tests.runtime.chain import diamond
from tests.runtime.rendezvous import Action, ends, script


def ways(untagged: int, devices: int) -> list[list[Way]]:
    """The first devices are GPUs of one process each; what touches another one has tags."""
    return [
        ["nccl" if max(a, b) < untagged else "gloo" for b in range(devices)] for a in range(devices)
    ]


def cut(graph: Graph, placement: list[int], order: list[int], gpus: int, n: int) -> list[Share]:
    """One share per device."""
    return shares(partition(graph, placement, order, n, ways(gpus, n)), order, range(n))


def any_order(graph: Graph, seed: int) -> list[int]:
    """A random order of the operators, producers first."""
    rng = random.Random(seed)
    place = {op.name: i for i, op in enumerate(graph.operators)}
    after: list[list[int]] = [[] for _ in graph.operators]
    missing = [0] * len(graph.operators)
    for tensor in graph.tensors:
        for consumer in tensor.consumers:
            after[place[tensor.producer]].append(place[consumer])
            missing[place[consumer]] += 1
    free, order = [i for i, m in enumerate(missing) if m == 0], []
    while free:
        order.append(free.pop(rng.randrange(len(free))))
        for i in after[order[-1]]:
            missing[i] -= 1
            if missing[i] == 0:
                free.append(i)
    return order


def named(share: Share, peer: int) -> list[tuple[int, int]]:
    """The messages between a process and another one, in the order in which it names them."""
    (part,) = share.parts
    for_peer = {
        message_key(m)
        for step in part.steps
        for m in (*step.sends, *step.waits)
        if m.way == "nccl" and peer in (m.source, m.target)
    }
    return [what for verb, what in script(share) if verb == "name" and what in for_peer]


def test_both_ends_of_every_pair_name_the_same_order() -> None:
    """All placements of the diamond on three GPUs."""
    graph, _ = diamond()
    for placement in itertools.product(range(3), repeat=4):
        parts = cut(graph, list(placement), list(range(4)), 3, 3)
        for a, b in itertools.combinations(range(3), 2):
            assert named(parts[a], b) == named(parts[b], a)


@pytest.mark.parametrize("name", ["alexnet", "rnnlm"])
def test_random_placements_in_random_orders_come_to_their_end(name: str) -> None:
    """Training steps on three GPUs and a CPU, operator by operator without regard to groups."""
    graph = capture_source(small(name), training=True)
    grouped = {op.colocation or op.name: k for k, op in enumerate(graph.operators)}
    rng = np.random.default_rng(0)
    for seed in range(6):
        place = rng.integers(0, 4, size=len(graph.operators))
        placement = [int(place[grouped[op.colocation or op.name]]) for op in graph.operators]
        parts = cut(graph, placement, any_order(graph, seed), 3, 4)
        actions = [list(script(share)) for share in parts]
        assert sum(verb == "name" for listed in actions for verb, _ in listed) > 8
        for blocking in (False, True):
            assert ends(actions, blocking=blocking)


def test_posting_all_receives_first_would_deadlock() -> None:
    """Two GPUs that both receive before they send: the oracle can tell."""
    graph, _ = diamond()
    parts = cut(graph, [0, 1, 0, 1], list(range(4)), 2, 2)
    crossed = cut(graph, [0, 1, 0, 0], list(range(4)), 2, 2)
    for shares_, hangs in ((parts, False), (crossed, True)):
        actions = [_receives_first(share) for share in shares_]
        assert ends(actions, blocking=False) is not hangs
        assert ends([list(script(share)) for share in shares_], blocking=True)


def _receives_first(share: Share) -> list[Action]:
    posts = [("name", message_key(m)) for part in share.parts for s in part.steps for m in s.posts]
    return posts + [action for action in script(share) if action not in posts]
