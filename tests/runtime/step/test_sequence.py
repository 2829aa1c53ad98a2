"""A profiled step reads every operator's span from its own device's timer."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.graph.graph import Graph
from placewright.runtime.messages import Exchange
from placewright.runtime.specs import Layout
from placewright.runtime.step.partition import partition
from placewright.runtime.step.sequence import (
    Action,
    CompiledShare,
    compile_share,
    serial_actions,
    shares,
)
from placewright.runtime.step_record import Timer
from small_zoo import small
from tests.runtime.chain import answer, diamond


class Ticking(Timer):
    """A device that is read late, as a GPU: a mark is a number, seconds come after settling."""

    def __init__(self, base: float) -> None:
        self.base, self.ticks, self.settled = base, 0, False

    def start(self) -> None:
        """Begin at zero."""
        self.ticks, self.settled = 0, False

    def mark(self) -> int:
        """The next number."""
        assert not self.settled
        self.ticks += 1
        return self.ticks

    def seconds(self, marks: Sequence[int]) -> tuple[float, ...]:
        """Only when the device is done."""
        assert self.settled
        return tuple(self.base + mark for mark in marks)

    def settle(self) -> None:
        """Done."""
        self.settled = True


def two_devices() -> tuple[CompiledShare, Exchange, torch.Tensor]:
    """The diamond on two devices of one process, ready to run."""
    graph, state = diamond()
    layout = Layout.of([0, 0], ["cpu", "cpu"], nccl=False)
    parts = partition(graph, [0, 1, 0, 1], range(4), 2, layout.ways)
    (share,) = shares(parts, range(4), layout.processes)
    return (
        compile_share(share, {0: state, 1: state}, layout),
        Exchange(layout, 0, {}),
        answer(state),
    )


def test_spans_come_from_each_devices_own_timer() -> None:
    """Two marks per operator, in the device's order, read after the devices have settled."""
    compiled, exchange, expected = two_devices()
    compiled = replace(compiled, timers=(Ticking(100.0), Ticking(200.0)))
    spans = compiled.run_watched(exchange, None)
    assert spans == ((101.0, 102.0, 103.0, 104.0), (201.0, 202.0, 203.0, 204.0))
    second = compiled.parts[1]
    assert torch.equal(second.registers[second.outputs["output"]], expected)


def test_copies_inside_a_process_are_logged_as_transfers() -> None:
    """Source, tensor, target and a span that is not negative."""
    compiled, exchange, _ = two_devices()
    compiled.run(exchange)
    sent = exchange.sent(dict(enumerate(compiled.timers)))
    assert [(source, tag, target) for source, tag, target, *_ in sent] == [(0, 0, 1), (0, 2, 1)]
    assert all(start <= end for *_, start, end in sent)


def test_a_share_keeps_the_order_of_the_whole() -> None:
    """Every placement of the diamond on three devices in every layout of two processes."""
    graph, _ = diamond()
    order = [0, 2, 1, 3]
    for placement in itertools.product(range(3), repeat=4):
        parts = partition(graph, placement, order, 3)
        for processes in itertools.product(range(2), repeat=3):
            if max(processes) < len(set(processes)):
                every_share = shares(parts, order, processes)
                for rank, share in enumerate(every_share):
                    steps = [iter(part.steps) for part in share.parts]
                    operators = [next(steps[k]).operator for k in share.turns]
                    assert operators == [i for i in order if processes[placement[i]] == rank]
                    assert [processes[part.device] for part in share.parts] == [rank] * len(steps)


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
