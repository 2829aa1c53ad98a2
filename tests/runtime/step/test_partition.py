"""Partition of a placed program: every value is where it is needed, once."""

from __future__ import annotations

import itertools
from dataclasses import replace

from placewright.graph.graph import ProgramInput, ProgramOutput
from placewright.runtime.step.partition import Part, partition, state_moves
from tests.runtime.chain import SPEC, diamond


def test_every_message_is_received_once_and_before_its_first_use() -> None:
    """Over all placements of four operators on three devices."""
    graph, _ = diamond()
    for placement in itertools.product(range(3), repeat=4):
        parts = partition(graph, placement, range(4), 3)
        sent = [m for part in parts for step in part.steps for m in step.sends]
        received = [m for part in parts for m in part.receives]
        assert sorted(m.tag for m in sent) == sorted(m.tag for m in received)
        assert len({(m.tag, m.target) for m in sent}) == len(sent)
        assert sum(len(part.steps) for part in parts) == 4


def test_a_value_is_freed_after_its_last_use_and_outputs_never() -> None:
    """On one device only the output stays."""
    graph, _ = diamond()
    (part,) = partition(graph, [0] * 4, range(4), 1)
    assert [step.frees for step in part.steps] == [(), (), ("a",), ("b", "c")]
    assert part.outputs == {"output": "d"}


def test_an_input_that_is_an_output_belongs_to_a_device_that_has_it() -> None:
    """To the first that reads it; one that nobody reads to the first with operators."""
    graph, _ = diamond()
    alone = ProgramInput("alone", "input", "1", SPEC)
    outputs = (ProgramOutput("same", "x"), ProgramOutput("alone", "alone"))
    inputs = (*graph.program.inputs, alone)
    graph = replace(graph, program=replace(graph.program, inputs=inputs, outputs=outputs))
    parts = partition(graph, [2, 1, 1, 2], range(4), 4)
    assert [part.outputs for part in parts] == [{}, {"alone": "alone"}, {"same": "x"}, {}]
    assert [[i.name for i in part.inputs] for part in parts] == [[], ["alone"], ["x"], []]


def test_what_steps_change_moves_also_where_it_is_only_read() -> None:
    """A forward pass beside a training step: the file that it was loaded from is out of date."""
    changed = ProgramInput("parameter:w", "parameter", "w", SPEC, mutated=True)
    here, there = Part(0, (), (), (), {}), Part(1, (), (), (), {})
    before = (replace(here, inputs=(changed,)), there)
    read = replace(changed, mutated=False)
    (move,) = state_moves(before, (here, replace(there, inputs=(read,))))
    assert (move.value, move.source, move.target) == ("parameter:w", 0, 1)
    assert not state_moves(before, (replace(here, inputs=(read,)), there))
