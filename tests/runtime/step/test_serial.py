"""Serial execution: one operator or transfer at a time, without deadlock."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.graph.graph import Graph
from placewright.runtime.step.partition import partition
from placewright.runtime.step.serial import Action, serial_actions
from placewright.testing.small_zoo import small
from tests.runtime.chain import diamond


def performed(actions: list[tuple[Action, ...]]) -> list[tuple[int, Action]]:
    """The actions in an order in which they can happen, each when it need not wait."""
    left = [deque(own) for own in actions]
    sent: Counter[object] = Counter()
    done: list[tuple[int, Action]] = []
    while any(left):
        before = len(done)
        for process, own in enumerate(left):
            while own:
                action = own[0]
                if action.kind == "take" and not sent[action.message]:
                    break
                if action.kind == "await" and not sent[action.process, process]:
                    break
                if action.kind == "take":
                    sent[action.message] -= 1
                elif action.kind == "await":
                    sent[action.process, process] -= 1
                elif action.kind == "send":
                    sent[action.message] += 1
                elif action.kind == "give":
                    sent[process, action.process] += 1
                done.append((process, own.popleft()))
        assert len(done) > before, "processes wait for each other"
    return done


def check(graph: Graph, placement: list[int], order: list[int], processes: list[int]) -> None:
    """Every operator in the given order, each message taken before anything else happens."""
    parts = partition(graph, placement, order, len(processes))
    actions = serial_actions(parts, order, processes)
    done = performed(actions)
    assert [a.operator for _, a in done if a.kind == "run"] == order
    control = processes[placement[order[0]]]
    for process, action in done:
        if action.kind in ("run", "send", "give"):
            assert process == control, "only one process has control"
        if action.kind == "give":
            control = action.process
        elif action.kind == "send" and action.message is not None:
            control = processes[action.message.target]
    count = Counter(a.kind for _, a in done)
    assert count["send"] == count["take"] == sum(len(part.receives) for part in parts)
    assert count["give"] == count["await"]


@given(st.lists(st.integers(0, 2), min_size=4, max_size=4), st.sampled_from([[0, 1, 2], [0, 0, 1]]))
@settings(max_examples=60, deadline=None)
def test_every_placement_of_a_diamond_is_one_sequence(
    placement: list[int], processes: list[int]
) -> None:
    """Three devices in three processes, or in two."""
    graph, _ = diamond()
    for order in ([0, 1, 2, 3], [0, 2, 1, 3]):
        check(graph, placement, order, processes)


@pytest.mark.parametrize("seed", range(3))
def test_random_placements_of_a_training_step_are_one_sequence(seed: int) -> None:
    """Groups together, as everywhere."""
    from placewright.capturing.model import capture_source

    graph = capture_source(small("gpt2"), training=True)
    rng = np.random.default_rng(seed)
    groups: dict[str, int] = {}
    placement = [
        groups.setdefault(op.colocation or op.name, int(rng.integers(0, 3)))
        for op in graph.operators
    ]
    check(graph, placement, list(range(len(placement))), [0, 1, 2])


def test_a_chain_that_moves_with_its_tensor_needs_no_message_of_control() -> None:
    """What arrives is control enough."""
    graph, _ = diamond()
    parts = partition(graph, [0, 1, 1, 1], [0, 1, 2, 3], 2)
    kinds = [[a.kind for a in own] for own in serial_actions(parts, [0, 1, 2, 3], [0, 1])]
    assert kinds == [["run", "send"], ["take", "run", "run", "run"]]
