"""Graph features against networkx and brute force."""

from __future__ import annotations

import networkx
import numpy as np
import pytest

from placewright import OperatorProblem
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.planners.learned.features import (
    CoarseGraph,
    How,
    best_edge_groups,
    coarsen,
    degrees,
    fractal_dimension,
    group_operators,
    one_hot,
    padded_shapes,
    sinusoids,
)
from tests.operators.planners.learned.graphs import drawn_graph


def chain_and_fork() -> OperatorProblem:
    """0 -> 1 -> 2, which 3 and 4 read; 5 joins them and 6 follows it."""
    uses = [(0, 1, [1]), (1, 1, [2]), (2, 1, [3, 4]), (3, 1, [5]), (4, 1, [5]), (5, 1, [6])]
    return tiny([[1.0, 1.0]] * 7, [(a, float(b), c) for a, b, c in uses])


def test_chains_are_joined_and_forks_are_not() -> None:
    """A chain is one node; both branches of a fork are their own."""
    graph = coarsen(chain_and_fork())
    assert graph.node.tolist() == [0, 0, 0, 1, 2, 3, 3]
    assert sorted(zip(graph.source.tolist(), graph.target.tolist(), strict=True)) == [
        (0, 1),
        (0, 2),
        (1, 3),
        (2, 3),
    ]


def test_no_join_without_a_common_device() -> None:
    """A chain stays apart where its ends run on different devices."""
    inf = float("inf")
    problem = tiny([[1.0, inf], [inf, 1.0]], [(0, 1.0, [1])])
    assert coarsen(problem).node.tolist() == [0, 1]


def joined_by_networkx(problem: OperatorProblem) -> list[list[int]]:
    """Components of edges whose ends have one successor and one predecessor."""
    graph, joins = networkx.DiGraph(), networkx.Graph()
    graph.add_nodes_from(range(problem.n))
    producer = np.repeat(problem.tensor_producer, np.diff(problem.consumer_offsets))
    graph.add_edges_from(zip(producer.tolist(), problem.consumers.tolist(), strict=True))
    joins.add_nodes_from(graph)
    joins.add_edges_from(
        (a, b) for a, b in graph.edges if graph.out_degree(a) == 1 and graph.in_degree(b) == 1
    )
    return sorted(sorted(x) for x in networkx.connected_components(joins))


@pytest.mark.parametrize("seed", range(5))
def test_coarse_graph_matches_networkx(seed: int) -> None:
    """Nodes are the components that networkx finds, in topological order."""
    problem = drawn_graph(seed)
    graph = coarsen(problem)
    found = [np.flatnonzero(graph.node == k).tolist() for k in range(graph.size)]
    assert sorted(found) == joined_by_networkx(problem)
    position = np.argsort(problem.topology.order)
    assert (np.diff(position[graph.first]) > 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_fractal_dimension_and_degrees_match_networkx(seed: int) -> None:
    """Slopes of numpy over hop counts of networkx."""
    graph = coarsen(drawn_graph(seed, 60))
    reference = networkx.DiGraph()
    reference.add_nodes_from(range(graph.size))
    reference.add_edges_from(zip(graph.source.tolist(), graph.target.tolist(), strict=True))
    into, out = degrees(graph)
    assert into.tolist() == [reference.in_degree(v) for v in range(graph.size)]
    assert out.tolist() == [reference.out_degree(v) for v in range(graph.size)]
    both = reference.to_undirected()
    for v, slope in enumerate(fractal_dimension(graph)):
        hops = list(networkx.single_source_shortest_path_length(both, v).values())
        radii = range(1, max(hops) + 1)
        counts = [sum(h <= r for h in hops) for r in radii]
        expected = np.polyfit(np.log(radii), np.log(counts), 1)[0] if len(counts) > 1 else 0.0
        assert slope == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_best_edges_make_the_components_of_networkx(seed: int) -> None:
    """Groups against a plain loop over nodes and edges."""
    rng = np.random.default_rng(seed)
    k, e = 12, 20
    source, target = rng.integers(0, k, (2, e))
    scores, kept = rng.random(e).astype(np.float32), networkx.Graph()
    kept.add_nodes_from(range(k))
    for v in range(k):
        mine = [x for x in range(e) if v in (source[x], target[x]) and scores[x] > 0.5]
        if mine:
            best = max(mine, key=lambda x: scores[x])
            kept.add_edge(int(source[best]), int(target[best]))
    group = best_edge_groups(np.ones((k, 2), dtype=np.bool_), source, target, scores, 0.5)
    found = sorted(sorted(np.flatnonzero(group == g).tolist()) for g in range(group.max() + 1))
    assert found == sorted(sorted(x) for x in networkx.connected_components(kept))
    assert (np.diff(np.unique(group, return_index=True)[1]) > 0).all()


def test_groups_keep_a_device_in_common() -> None:
    """An edge is dropped where no device could run the group."""
    allowed = np.array([[True, False], [True, True], [False, True]])
    ends = np.array([0, 1]), np.array([1, 2])
    group = best_edge_groups(allowed, *ends, np.array([0.9, 0.8], dtype=np.float32), 0.0)
    assert group.tolist() == [0, 0, 1]


def test_columns() -> None:
    """One-hot kinds, shapes of four dimensions, sines and cosines."""
    assert one_hot(["a", "b", "a"]).tolist() == [[1, 0], [0, 1], [1, 0]]
    assert padded_shapes([(2, 3), (), (5, 4, 3, 2, 1)]).tolist() == [
        [0, 0, 2, 3],
        [0, 0, 0, 0],
        [4, 3, 2, 1],
    ]
    wave = sinusoids(np.array([0, 3]), 4)
    assert wave[0].tolist() == [0, 0, 1, 1]
    assert wave[1] == pytest.approx([np.sin(3), np.sin(0.03), np.cos(3), np.cos(0.03)])


def test_an_empty_set_of_edges_is_allowed() -> None:
    """Operators without tensors have features too."""
    graph = coarsen(tiny([[1.0, 2.0]] * 3))
    assert isinstance(graph, CoarseGraph)
    assert fractal_dimension(graph).tolist() == [0, 0, 0]


def uses(edges: list[tuple[int, int]]) -> list[tuple[int, float, list[int]]]:
    """A tensor of one byte per edge."""
    return [(producer, 1.0, [consumer]) for producer, consumer in edges]


@pytest.mark.parametrize("how", ["colocation", "chains", "modules"])
def test_groups_keep_every_rule(how: How) -> None:
    """Colocated operators stay together, and every group has a device that can run it all."""
    for seed in range(40):
        problem = random_problem(seed)
        grouping = group_operators(problem, how, at_most=4)
        allowed = problem.allowed()
        assert sorted(set(grouping.group.tolist())) == list(range(grouping.count))
        for g in range(grouping.count):
            members = np.flatnonzero(grouping.group == g)
            assert np.array_equal(grouping.allowed[g], allowed[members].all(axis=0))
            assert grouping.allowed[g].any()
        for one in np.unique(problem.colocation):
            assert len(set(grouping.group[problem.colocation == one].tolist())) == 1


def test_chains_become_one_group_and_branches_do_not() -> None:
    """A -> b -> c is one group; a diamond's two arms are groups of their own."""
    chain = tiny([[1.0, 1.0]] * 3, tensors=uses([(0, 1), (1, 2)]))
    assert group_operators(chain, "chains").count == 1
    diamond = tiny([[1.0, 1.0]] * 4, tensors=uses([(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert group_operators(diamond, "chains").count == 4


def test_modules_are_cut_at_the_level_that_fits() -> None:
    """Two layers of two operators each, and their two parts of one each."""
    names = ("net.0.a", "net.0.b", "net.1.a", "net.1.b")
    edges = [(0, 2), (0, 3), (1, 2), (1, 3)]
    problem = tiny([[1.0, 1.0]] * 4, tensors=uses(edges)).replace(operator_modules=names)
    assert group_operators(problem, "modules", at_most=8).count == 4
    assert group_operators(problem, "modules", at_most=2).group.tolist() == [0, 0, 1, 1]


def test_too_many_groups_are_joined_by_work() -> None:
    """At most as many as asked for, neighbours in topological order."""
    edges = [(0, k) for k in range(1, 40)]
    problem = tiny([[1.0, 1.0]] * 40, tensors=uses(edges))
    grouping = group_operators(problem, "chains", at_most=8)
    assert 4 <= grouping.count <= 8
    assert grouping.work_s.sum() == pytest.approx(40.0)
    placements = grouping.placements(np.arange(grouping.count) % 2)
    assert np.array_equal(grouping.devices(problem, placements[0]), np.arange(grouping.count) % 2)
