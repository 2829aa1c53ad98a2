"""Colocation groups: no operator is missing, none is superfluous."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.lowered import RESIDENT
from placewright.capturing.model import capture
from placewright.graph.graph import Graph
from placewright.graph.program import Program, Ref
from tests.capturing.models import UNSEEN
from tests.capturing.small_graphs import small_graph, unseen_graph


def named(argument: object) -> set[str]:
    """All values in nested arguments."""
    if isinstance(argument, Ref):
        return {argument.name}
    parts = argument if isinstance(argument, tuple) else ()
    return set().union(*(named(part) for part in parts))


def check_homes(graph: Graph) -> None:
    """Whoever reads or changes a parameter, buffer or state is in its group."""
    program: Program = graph.program
    group = {op.name: op.colocation for op in graph.operators}
    homes = {e.name: e.colocation for e in program.inputs if e.role in RESIDENT}
    assert all(homes.values())
    for call in program.instructions:
        referenced = named(call.args) | named(tuple(call.kwargs.values())) | set(call.mutates)
        for name in referenced & homes.keys():
            assert group[call.name] == homes[name], (call.name, name)


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "gnmt", "bert"])
def test_operators_on_a_parameter_share_its_group(name: str) -> None:
    """In a training step, by a walk over all instructions."""
    check_homes(small_graph(name, training=True))


@pytest.mark.parametrize("name", ["tied", "counting", "normed", "transposed", "vision transformer"])
def test_colocation_in_inference_and_with_views_of_parameters(name: str) -> None:
    """Expanded, transposed and sliced parameters."""
    assert name in UNSEEN
    check_homes(unseen_graph(name))
    check_homes(unseen_graph(name, training=True))


@pytest.mark.parametrize("name", ["alexnet", "gnmt", "bert"])
def test_random_draws_share_one_group_and_a_chain(name: str) -> None:
    """So that one generator gives them in the order of eager mode."""
    graph = small_graph(name, training=True)
    draws = [call.name for call in graph.program.instructions if call.random]
    group = {op.name: op.colocation for op in graph.operators}
    assert len(draws) > 1
    assert len({group[name] for name in draws}) == 1
    after = {t.producer: set(t.consumers) for t in graph.tensors if t.name.startswith("after:")}
    assert all(b in after[a] for a, b in pairwise(draws))


def test_groups_are_named_after_their_first_operator() -> None:
    """A name that stays the same from capture to capture."""
    graph = small_graph("resnet50", training=True)
    first: dict[str, str] = {}
    for op in graph.operators:
        if op.colocation:
            first.setdefault(op.colocation, op.name)
    assert all(group == name for group, name in first.items())


def test_convolutions_of_a_resnet_may_be_apart() -> None:
    """Nothing ties layers together."""
    graph = small_graph("resnet50", training=True)
    groups = [op.colocation for op in graph.operators if op.kind == "aten.convolution.default"]
    assert len(set(groups)) == len(groups) == 53


class Shapes(nn.Module):
    """Views of every kind around two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Reduced, expanded, shifted."""
        y = self.one(x).sum(0)
        return self.two(y.expand(5, 4)) + torch.arange(4)


def test_views_are_placed_so_that_the_smaller_tensor_is_sent() -> None:
    """A transposed weight with its readers, an expanded value with its only consumer."""
    graph = capture(Shapes(), torch.randn(3, 4))
    ops = {op.name: op for op in graph.operators}
    assert ops["t"].colocation == ops["addmm"].colocation
    assert ops["t_1"].colocation == ops["addmm_1"].colocation == ops["expand"].colocation
    assert ops["expand"].colocation not in (ops["sum_1"].colocation, "")
    assert ops["arange"].colocation == ops["add"].colocation != ""
