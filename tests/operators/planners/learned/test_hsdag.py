"""HSDAG: determinism, published behaviour, and values no worse than trivial plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import Context, OperatorProblem, judge, planners
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.features import coarsen
from placewright.operators.planners.learned.hsdag import Hsdag, _GraphPolicy, _GraphTraining
from placewright.operators.planners.lists.planners import HEFT
from tests.operators.planners.learned.graphs import drawn_graph

pytest.importorskip("torch")
QUICK = Hsdag(samples=60, hidden=16, imitation=20)


@pytest.mark.parametrize("profile", ["as_published", "repaired"])
def test_same_seed_same_plan(profile: str) -> None:
    """Both profiles draw the same placements twice."""
    problem = drawn_graph(3, 24, 3)
    planner = replace(QUICK, profile=profile)  # type: ignore[arg-type]
    plans = [planner(problem, Context(seed=7)).plan for _ in range(2)]
    assert plans[0].placement.tolist() == plans[1].placement.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_never_worse_than_heft_or_a_single_device(seed: int) -> None:
    """The answer is at or below HEFT and each single device."""
    problem = drawn_graph(seed, 24)
    value = judge(problem, QUICK(problem, Context()).plan).value
    single = [p for name, p in planners(problem).items() if name.startswith("only:")]
    others = [judge(problem, p(problem, Context())).value for p in (HEFT, *single)]
    assert value <= min(others)


def training(problem: OperatorProblem, planner: Hsdag) -> _GraphTraining:
    """A run whose parts can be looked at."""
    return _GraphTraining(planner, Evaluations(problem, limit=planner.samples))


def test_published_parse_leaves_a_group_per_component() -> None:
    """The public code merges all that is connected."""
    problem = drawn_graph(5)
    run = training(problem, replace(QUICK, profile="as_published"))
    graph = run.graph
    component = np.arange(graph.size)
    for _ in range(graph.size):
        for a, b in zip(graph.source, graph.target, strict=True):
            component[[a, b]] = min(component[a], component[b])
    parsed = run._parsed()
    assert len(parsed.logits) == len(set(component.tolist()))


def test_repaired_grouping_passes_a_gradient_to_edge_scores() -> None:
    """Straight through: logits move edge scores."""
    problem = drawn_graph(5)
    run = training(problem, QUICK)
    bias = run.policy.layers["edge"][2].bias
    bias.data.fill_(3.0)  # all scores above one half
    parsed = run._parsed()
    assert len(parsed.logits) < run.graph.size
    parsed.logits.masked_fill(parsed.logits.isinf(), 0.0).sum().backward()
    assert float(run.policy.layers["edge"][0].weight.grad.abs().sum()) > 0


def test_directions_matter_to_repaired_messages_only() -> None:
    """Reversed edges change embeddings of `repaired` alone."""
    import torch

    graph = coarsen(drawn_graph(5))
    reverse = replace(graph, source=graph.target, target=graph.source)
    state = torch.randn(graph.size, QUICK.hidden, generator=torch.Generator().manual_seed(0))
    for profile, same in (("as_published", True), ("repaired", False)):
        policies = []
        for way in (graph, reverse):
            torch.manual_seed(1)
            planner = replace(QUICK, profile=profile)  # type: ignore[arg-type]
            policies.append(_GraphPolicy(planner, way, 5))
            policies[-1].layers.eval()
        along, against = (policy.embed(state) for policy in policies)
        assert torch.allclose(along, against, atol=1e-5) == same


def test_devices_go_to_other_operators_as_published() -> None:
    """Positions of one list are used in another."""
    problem = drawn_graph(5)
    run = training(problem, replace(QUICK, profile="as_published"))
    place = np.random.default_rng(0).integers(0, 2, (1, 30))
    assert run._misplaced(place)[0, problem.topology.order].tolist() == place[0].tolist()
