"""Validation of graphs."""

from __future__ import annotations

import pytest

from placewright.errors import InputError
from placewright.graph.graph import Graph, Operator, Tensor


def test_sums_over_operators() -> None:
    """FLOPs and resident bytes."""
    graph = Graph("g", (Operator("a", "k", 1.0, 0.0, 2), Operator("b", "k", 3.0, 0.0, 4)), ())
    assert (graph.flops, graph.resident_bytes) == (4.0, 6)
    assert graph.operator_names == ("a", "b")


@pytest.mark.parametrize(
    ("operators", "tensors", "says"),
    [
        ((), (), "at least one operator"),
        ((Operator("a", "k"), Operator("a", "k")), (), "'a' is used twice"),
        ((Operator("a", "k"),), (Tensor("t", "b", 1, ()),), "unknown operator 'b'"),
        (
            (Operator("a", "k"), Operator("b", "k")),
            (Tensor("t", "b", 1, ("a",)),),
            "'a' uses it before 'b' makes it",
        ),
        (
            (Operator("a", "k"),),
            (Tensor("t", "a", 1, (), view_of="s"),),
            "tensor 't': view_of: unknown tensor 's'",
        ),
        (
            (Operator("a", "k"), Operator("b", "k")),
            (Tensor("s", "a", 1, ()), Tensor("t", "b", 1, (), view_of="s")),
            "tensor 't'.*'b' does not read 's'",
        ),
    ],
)
def test_what_is_wrong_is_said(
    operators: tuple[Operator, ...], tensors: tuple[Tensor, ...], says: str
) -> None:
    """With the graph's name in front."""
    with pytest.raises(InputError, match=f"^g: .*{says}|^g.*{says}"):
        Graph("g", operators, tensors)


def test_numbers_of_operators_and_tensors_are_zero_or_more() -> None:
    """The operator or tensor is named."""
    with pytest.raises(InputError, match="flops of Operator 'a': must be a number >= 0"):
        Operator("a", "k", flops=float("nan"))
    with pytest.raises(InputError, match="resident_bytes of Operator 'a': must be a whole number"):
        Operator("a", "k", resident_bytes=-1)
    with pytest.raises(InputError, match="bytes of Tensor 't': must be a whole number >= 0"):
        Tensor("t", "a", -1, ())
