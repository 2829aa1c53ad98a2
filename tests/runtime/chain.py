"""A small graph with a known answer, for tests of the engine."""

from __future__ import annotations

import torch

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

SPEC = TensorSpec((4, 8), "float32", (8, 1))


def diamond(first: str = "aten.relu.default") -> tuple[Graph, dict[str, torch.Tensor]]:
    """X -> a -> (b transposed, c) -> d = b.T @ c, and the state that makes x."""
    turned = TensorSpec((8, 4), "float32", (1, 8))
    product = TensorSpec((8, 8), "float32", (8, 1))
    rows = [
        ("a", first, (Ref("x"),), SPEC),
        ("b", "aten.t.default", (Ref("a"),), turned),
        ("c", "aten.neg.default", (Ref("a"),), SPEC),
        ("d", "aten.mm.default", (Ref("b"), Ref("c")), product),
    ]
    operators = tuple(Operator(n, k, outputs=(s,)) for n, k, _, s in rows)
    instructions = tuple(Instruction(n, k, args, {}, (n,)) for n, k, args, _ in rows)
    tensors = (
        Tensor("a", "a", 128, ("b", "c")),
        Tensor("b", "b", 128, ("d",)),
        Tensor("c", "c", 128, ("d",)),
    )
    program = Program(
        (ProgramInput("x", "input", "0", SPEC),), instructions, (ProgramOutput("output", "d"),)
    )
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    return Graph("diamond", operators, tensors, program), {"x": x}


def answer(state: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the diamond computes."""
    a = state["x"].relu()
    return a.t() @ a.neg()
