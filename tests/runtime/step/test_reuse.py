"""Activations overwrite their input only where no other operator reads it."""

from __future__ import annotations

from placewright.graph.graph import (
    Graph,
    Instruction,
    Operator,
    Program,
    ProgramInput,
    ProgramOutput,
    Ref,
    Tensor,
    TensorSpec,
)
from placewright.runtime.step.partition import partition
from placewright.runtime.step.slots import in_place_targets

SPEC = TensorSpec((4, 4), "float32", (4, 1))


def graph(producer: str, reader: str | None = None) -> Graph:
    """X -> a -> r = relu(a) -> d = neg(r), and ``b = reader(a)`` where one is named."""
    rows = [("a", producer, ("x", "x")), ("r", "aten.relu.default", ("a",))]
    rows += [("b", reader, ("a",))] if reader else []
    rows += [("d", "aten.neg.default", ("r",))]
    readers = [("a", [n for n, _, reads in rows if "a" in reads]), ("r", ["d"])]
    return Graph(
        "reuse",
        tuple(Operator(n, k, outputs=(SPEC,)) for n, k, _ in rows),
        tuple(Tensor(n, n, 64, tuple(c)) for n, c in readers),
        Program(
            (ProgramInput("x", "input", "0", SPEC),),
            tuple(Instruction(n, k, tuple(map(Ref, reads)), {}, (n,)) for n, k, reads in rows),
            (ProgramOutput("output", "d"),),
        ),
    )


def found(made: Graph, placement: list[int]) -> dict[int, str]:
    """In-place targets of all parts."""
    parts = partition(made, placement, range(len(made.operators)), 2)
    return {k: v for part in parts for k, v in in_place_targets(part).items()}


def test_the_only_reader_of_fresh_memory_writes_over_it() -> None:
    """A product that only the activation reads."""
    assert found(graph("aten.mm.default"), [0, 0, 0]) == {1: "aten.relu_.default"}


def test_a_second_reader_forbids_it() -> None:
    """Whether it comes before or after."""
    assert not found(graph("aten.mm.default", "aten.t.default"), [0, 0, 0, 0])


def test_a_view_forbids_it() -> None:
    """What may share memory with something else is left alone."""
    assert not found(graph("aten.view_as.default"), [0, 0, 0])


def test_a_tensor_from_elsewhere_forbids_it() -> None:
    """A received buffer is used again in the next step; a sent one may still be on its way."""
    assert not found(graph("aten.mm.default"), [0, 1, 1])
    assert not found(graph("aten.mm.default", "aten.neg.default"), [0, 0, 1, 0])
