"""Profiling: a graph on a cluster becomes a problem with measured costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InputError
from placewright.profiling.build import profile
from placewright.profiling.table import ProfileTable, profile_key
from tests.profiling.conftest import GIVEN
from tests.runtime.chain import diamond

BOARDS = Cluster(
    (Device("a", node="a", memory_bytes=1e9), Device("b", node="b", speed=0.5)),
    (Link("a", "b", 1e8, 1e-4), Link("b", "a", 1e8, 1e-4)),
)


def test_the_problem_mirrors_the_graph() -> None:
    """Names, tensors, links and memory are carried over; half the speed is twice the time."""
    graph, state = diamond()
    problem = profile(graph, BOARDS, state=state)
    assert problem.operator_names == graph.operator_names
    assert problem.tensor_names == tuple(t.name for t in graph.tensors)
    assert problem.operator_kinds == tuple(op.kind for op in graph.operators)
    assert problem.output_shapes == tuple(op.outputs[0].shape for op in graph.operators)
    assert np.array_equal(problem.tensor_bytes, [128, 128, 128])
    assert problem.compute_s[:, 1] == pytest.approx(2 * problem.compute_s[:, 0])
    assert (problem.compute_s > 0).all()
    assert problem.latency_s[0, 1] == 1e-4 + GIVEN.extra_s
    assert problem.memory_bytes.tolist() == [1e9, np.inf]


@pytest.mark.parametrize("method", ["isolated", "analytic"])
def test_every_method_gives_positive_finite_costs(method: str) -> None:
    """Without weights there is still an answer."""
    graph, _ = diamond()
    problem = profile(graph, BOARDS, method=method)  # type: ignore[arg-type]
    assert np.isfinite(problem.compute_s).all()
    assert (problem.compute_s > 0).all()


def test_a_kept_profile_is_used_again(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Costs from a file are equal to the ones that were measured."""
    graph, _ = diamond()
    table = ProfileTable()
    first = profile(graph, BOARDS, method="isolated", table=table)
    kept = ProfileTable.read(table.write(tmp_path / "profile.json"))
    assert np.array_equal(
        first.compute_s, profile(graph, BOARDS, method="isolated", table=kept).compute_s
    )


def test_a_broken_profile_names_the_field(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A negative time and an unknown key are errors with the place."""
    path = tmp_path / "p.json"
    path.write_text('{"schema_version": 1, "machine": "m", "entries": {"k": {"a": -1}}}')
    with pytest.raises(InputError, match=r"entries\.k\.a"):
        ProfileTable.read(path)
    path.write_text('{"schema_version": 1, "machine": "m", "entries": {}, "extra": 1}')
    with pytest.raises(InputError, match="extra"):
        ProfileTable.read(path)


def test_in_place_without_weights_says_what_to_do() -> None:
    """The error names the other methods."""
    graph, _ = diamond()
    with pytest.raises(InputError, match="isolated"):
        profile(graph, BOARDS, method="in-place")


def test_graphs_that_only_their_operators_tell_apart_are_measured_apart() -> None:
    """Without signatures the key of a kept profile knows what is called and what it gives."""
    graph, _ = diamond()
    kinds, _ = diamond("aten.abs.default")
    (first, *others) = graph.operators
    wider = replace(first, outputs=(replace(first.outputs[0], shape=(4, 9)),))
    shapes = replace(graph, operators=(wider, *others))
    assert len({profile_key(g, "isolated", 1) for g in (graph, kinds, shapes)}) == 3
    assert profile_key(diamond()[0], "isolated", 1) == profile_key(graph, "isolated", 1)
