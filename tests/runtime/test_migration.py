"""A placement changes between two steps without changing results."""

from __future__ import annotations

import itertools

import torch

from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, default_loss
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device
from placewright.graph.graph import Graph
from placewright.operators.check import run_eager
from placewright.runtime.session import Session

TRIO = Cluster(tuple(Device(n, node=n) for n in "abc"), name="trio")


def small() -> tuple[ModelSource, Graph]:
    """A net with a batch norm (buffers) and dropout (random numbers), and its training step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(8, 3),
    )
    source = ModelSource(model, (torch.randn(5, 6),), default_loss, None, "small")
    return source, capture_source(source, training=True)


def placements(graph: Graph, devices: int) -> list[list[int]]:
    """Rotations of the colocation groups over the devices."""
    keys = [op.colocation or op.name for op in graph.operators]
    rank = {key: k for k, key in enumerate(dict.fromkeys(keys))}
    return [[(rank[key] + turn) % devices for key in keys] for turn in range(devices)]


def test_steps_on_changing_placements_equal_eager_bit_for_bit() -> None:
    """Six steps with a migration after each: parameters, buffers and random masks as in eager."""
    source, graph = small()
    order = range(len(graph.operators))
    with Session(graph, TRIO, initial_state(source, graph.program)) as session:
        turns = itertools.cycle(placements(graph, 3))
        session.load(next(turns), order)
        moved = 0
        for _ in range(6):
            session.run(1)
            moved += session.migrate(next(turns), order)
        state = session.state()
    expected = run_eager(source, training=True, steps=6)
    keys = {i.name: i.key for i in graph.program.inputs if i.role in ("parameter", "buffer")}
    assert moved > 0
    for name, key in keys.items():
        if name in state:
            assert torch.equal(state[name], expected.state[key]), key


def test_what_is_fed_is_used_and_survives_a_migration() -> None:
    """The loss after feeding another batch equals eager's on that batch, before and after."""
    source, graph = small()
    batch = torch.randn(5, 6, generator=torch.Generator().manual_seed(9))
    (name,) = [i.name for i in graph.program.inputs if i.role == "input"]
    one, two, _ = placements(graph, 3)
    order = range(len(graph.operators))
    with Session(graph, TRIO, initial_state(source, graph.program)) as session:
        session.load(one, order)
        session.feed({name: batch})
        session.run(1)
        session.migrate(two, order)
        session.run(1)
        (loss,) = session.outputs().values()
    fed = ModelSource(source.model, (batch,), source.loss_fn, None, "small")
    assert torch.equal(loss, run_eager(fed, training=True, steps=2).outputs[0])


def test_random_numbers_go_on_from_a_noted_state() -> None:
    """State noted after two steps and set before two others gives the same masks again."""
    source, graph = small()
    order = range(len(graph.operators))
    with Session(graph, TRIO, initial_state(source, graph.program)) as session:
        session.load([0] * len(graph.operators), order)
        session.run(2)
        noted = session.random_state()
        session.load([1] * len(graph.operators), order)
        session.set_random_state(noted)
        session.run(1)
        first = session.outputs()
        session.load([2] * len(graph.operators), order)
        session.set_random_state(noted)
        session.run(1)
        again = session.outputs()
    assert all(torch.equal(first[k], again[k]) for k in first)
