"""A profiled step reads every operator's span from its own device's timer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch

from placewright.runtime.messages.exchange import Exchange
from placewright.runtime.messages.layout import Layout
from placewright.runtime.step.partition import partition
from placewright.runtime.step.sequence import CompiledShare, compile_share, shares
from placewright.runtime.timers import Timer
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
