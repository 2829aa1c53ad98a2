"""HP3C, the RNN placer and Placeto: networks, seeds, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from placewright.errors import InputError
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.judge import judge
from placewright.operators.plan import check_plan
from placewright.operators.planners.learned.edits import RandomSearch
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.features import (
    group_features,
    group_operators,
    hp3c_features,
)
from placewright.operators.planners.learned.hp3c import Hp3c
from placewright.operators.planners.learned.networks import SequencePlacer, chosen_log
from placewright.operators.planners.learned.placers import Placeto, RnnPlacer
from placewright.operators.planners.learned.planner import learned, save_parameters
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context
from tests.operators.planners.learned.test_post import layered

SMALL: list[Any] = [
    Hp3c(samples=40, batch=6, hidden=8, groups=4),
    Hp3c(samples=20, profile="as_published", hidden=8, groups=6),
    RnnPlacer(samples=40, hidden=8),
    RnnPlacer(samples=40, hidden=8, start="lists"),
    Placeto(samples=40, hidden=8, episodes=3),
]


def usable() -> list[OperatorProblem]:
    """Random problems with every constraint that the planners take."""
    found = (random_problem(seed) for seed in (0, 5))
    return [p for p in found if SMALL[0].unsupported_reason(p) is None]


def test_operators_without_tensors_are_placed() -> None:
    """Groups between which nothing goes have features too, as published."""
    problem = tiny([[1.0, 2.0]] * 3)
    planner = Hp3c(samples=6, profile="as_published", hidden=4)
    check_plan(problem, learned(planner, Evaluations(problem, limit=6)).plan)


@pytest.mark.parametrize("planner", SMALL, ids=lambda p: f"{p.name}-{getattr(p, 'profile', '')}")
def test_plans_are_valid_and_seeded(planner: Any) -> None:
    """Twice the same seed is the same plan, in the budget, and torch's settings are restored."""
    torch.set_num_threads(2)
    state = torch.random.get_rng_state()
    for problem in usable():
        plans = []
        for _ in range(2):
            evaluations = Evaluations(problem, Context(seed=3), limit=planner.samples)
            plans.append(learned(planner, evaluations).plan)
            assert evaluations.count <= planner.samples
        check_plan(problem, plans[0])
        assert np.array_equal(plans[0].placement, plans[1].placement)
        assert judge(problem, plans[0]).value == evaluations.best.score.value_s
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_sampled_devices_have_the_probabilities_that_are_reinforced() -> None:
    """The step-by-step decoder and the one for given devices are the same distribution."""
    torch.manual_seed(0)
    placer = SequencePlacer(3, 5, 3)
    features, allowed = torch.randn(1, 2, 3), torch.tensor([[[1, 1, 0], [1, 1, 1]]]) > 0
    draws = placer.sample(features.expand(4000, -1, -1), allowed.expand(4000, -1, -1))
    every = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    logs, _ = chosen_log(placer.logits(features.expand(6, -1, -1), every), allowed, every)
    share = torch.stack([(draws == pair).all(dim=1).float().mean() for pair in every])
    assert torch.isclose(logs.exp().sum(), torch.tensor(1.0), atol=1e-5)
    assert (share - logs.exp()).abs().max() < 0.04


def test_the_rnn_placer_reinforces_fast_placements() -> None:
    """With the sign the other way round it would end at the slow device."""
    problem = layered()
    slow = problem.compute_s.sum(axis=0).argmax()
    early, late = [], []

    def measure(rows: np.ndarray) -> np.ndarray:
        share = (rows == slow).mean(axis=1)
        (early if len(early) < 20 else late).append(share.mean())
        return 1.0 + share

    planner = RnnPlacer(hidden=16, learning_rate=0.01)
    learned(planner, Evaluations(problem, Context(), limit=900, measure=measure))
    assert np.mean(late[-10:]) < 0.5 * np.mean(early[-10:])


def test_hp3c_beats_random_search() -> None:
    """Without a teacher, at equal evaluations."""
    problem, values = layered(), {}
    for planner in (Hp3c(start="nothing", hidden=16), RandomSearch()):
        evaluations = Evaluations(problem, limit=900)
        learned(planner, evaluations)
        values[planner.name] = evaluations.best.score.value_s
    assert values["hp3c"] < values["random-search"]


def test_checkpoints_are_taken_up_and_others_refused(tmp_path: Path) -> None:
    """The parameters of a file are those that it starts from."""
    problem = layered()
    planner = Hp3c(samples=40, hidden=8, groups=4)
    evaluations = Evaluations(problem, limit=planner.samples)
    learned(planner, evaluations)
    path = save_parameters(
        tmp_path / "p.safetensors", evaluations.parameters, planner.schema(problem)
    )
    resumed = Evaluations(problem, limit=30)
    learned(Hp3c(samples=40, hidden=8, groups=4, checkpoint=str(path)), resumed)
    assert resumed.parameters.keys() == evaluations.parameters.keys()
    with pytest.raises(InputError, match="network"):
        learned(Hp3c(hidden=16, groups=4, checkpoint=str(path)), Evaluations(problem, limit=30))
    with pytest.raises(InputError, match="planner"):
        learned(RnnPlacer(checkpoint=str(path)), Evaluations(problem, limit=30))


def test_features_are_finite_and_have_their_columns() -> None:
    """On every kind of problem; the published ones have 46 columns."""
    for problem in usable():
        grouping = group_operators(problem, "chains", 6)
        rows = group_features(problem, grouping, np.zeros(problem.n, dtype=np.int64))
        assert rows.shape[0] == grouping.count
        assert np.isfinite(rows).all()
        assert hp3c_features(problem).shape[1] == 46
