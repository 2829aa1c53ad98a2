"""The transfer policy: shipped parameters, determinism, values no worse than HEFT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright import Context, InputError, OperatorProblem, judge, planners
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.planners.learned.planner import Schema, save_parameters
from placewright.operators.planners.learned.transfer import (
    FEATURES,
    HEADS,
    PARAMETERS,
    SCHEMA,
    PolicyDecoder,
    Setting,
    Transfer,
    features,
    network,
    shapes,
    uses,
)
from placewright.operators.planners.lists.insertion import set_up
from placewright.operators.planners.lists.planners import HEFT
from tests.operators.planners.learned.graphs import drawn_graph

QUICK = Transfer(walk=2e4, most=12)


def test_shipped_parameters_have_the_shapes_of_the_network() -> None:
    """And the file is small."""
    from placewright.operators.planners.learned.planner import load_parameters

    found = {name: array.shape for name, array in load_parameters(PARAMETERS, SCHEMA)[0].items()}
    assert found == shapes()
    assert PARAMETERS.stat().st_size < 4e6


@pytest.mark.parametrize("seed", range(2))
def test_no_worse_than_heft_and_single_devices(seed: int) -> None:
    """On graphs of 60 operators and three devices; the same plan twice."""
    problem = drawn_graph(seed, 60, 3)
    plan = QUICK(problem, Context())
    again = QUICK(problem, Context())
    single = [p for name, p in planners(problem).items() if name.startswith("only:")]
    others = [judge(problem, p(problem, Context())).value for p in (HEFT, *single)]
    assert judge(problem, plan).value <= min(others)
    assert plan.placement.tolist() == again.placement.tolist()


def test_a_device_from_which_nothing_can_follow_is_not_taken() -> None:
    """The reader runs elsewhere, and there is no link to it; numpy has nothing to warn of."""
    apart = np.where(np.eye(2) > 0, 0.0, np.inf)
    problem = tiny([[1.0, 2.0], [np.inf, 1.0]], [(0, 1.0, [1])]).replace(
        latency_s=apart, seconds_per_byte=apart, channel=np.full((2, 2), -1)
    )
    assert QUICK(problem, Context()).placement.tolist() == [1, 1]


@pytest.mark.parametrize("seed", range(6))
def test_every_rule_is_kept(seed: int) -> None:
    """Groups, pins, refusals; the judge would raise."""
    problem = random_problem(seed)
    assert np.isfinite(judge(problem, QUICK(problem, Context())).value)


def permuted(problem: OperatorProblem, order: np.ndarray) -> OperatorProblem:
    """The same problem with operator ``order[i]`` at place i."""
    place = np.argsort(order)
    return problem.replace(
        operator_names=tuple(problem.operator_names[i] for i in order),
        compute_s=problem.compute_s[order],
        tensor_producer=place[problem.tensor_producer],
        consumers=place[problem.consumers],
    )


def test_the_network_knows_no_positions() -> None:
    """Operators listed in another order get the same numbers; times in other units too."""
    problem = drawn_graph(3, 40, 3)
    order = np.random.default_rng(0).permutation(40)
    rng = np.random.default_rng(1)
    parameters = {name: rng.standard_normal(shape) for name, shape in shapes().items()}
    heads = network(features(set_up(problem)), uses(problem), parameters)
    other = permuted(problem, order)
    moved = network(features(set_up(other)), uses(other), parameters)
    assert heads.shape == (40, HEADS)
    np.testing.assert_allclose(moved, heads[order], atol=1e-9)
    slower = problem.replace(
        compute_s=7 * problem.compute_s,
        seconds_per_byte=7 * problem.seconds_per_byte,
        latency_s=7 * problem.latency_s,
    )
    np.testing.assert_allclose(features(set_up(slower)), features(set_up(problem)), atol=1e-9)
    assert features(set_up(problem)).shape == (40, FEATURES)


def test_a_silent_network_decodes_heft() -> None:
    """With no weight on what follows and plain prices."""
    problem = drawn_graph(4, 40, 3).replace(links="free")
    decoder = PolicyDecoder(problem)
    plain = Setting(0.0, 1.0, 1.0, trust=0.0)
    score = decoder.decode(plain, np.zeros(40))
    assert score.value_s <= judge(problem, HEFT(problem, Context())).value * (1 + 1e-12)


def test_parameters_of_another_network_are_refused(tmp_path: Path) -> None:
    """By name, with what they are for."""
    file = save_parameters(tmp_path / "x.safetensors", {}, Schema("transfer", "transfer 0"))
    with pytest.raises(InputError, match="another set of features"):
        Transfer(checkpoint=str(file))(drawn_graph(0), Context())
