"""Planners against enumeration, against each other, and the conformance kit."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from placewright.errors import InfeasibleError, InputError
from placewright.layers.conformance import random_tiny, tiny, tiny_instances
from placewright.layers.judge import LayerJudgement, judge
from placewright.layers.plan import LayerPlan, Replica, Stage, Strategy
from placewright.layers.planners import planners, space
from placewright.layers.planners.dp import SMALL, Dp, small_space, strategies_of
from placewright.layers.planners.space import (
    better,
    every_plan,
    judged,
    micro_batch_counts,
    shares,
    space_size,
)
from placewright.layers.planners.swarm import Pso
from placewright.layers.problem import LayerProblem, Refusal, Training
from placewright.layers.workers import Link
from placewright.planning.candidates import Status
from placewright.planning.contract import Context, proposal_of
from placewright.planning.solving import compare, solve

SMALLEST = [k for k in range(16) if space_size(random_tiny(k), SMALL // 4) < SMALL // 4]
"""Random problems with few plans; `benchmarks/layers_planners.py` enumerates more."""


@pytest.mark.parametrize("seed", SMALLEST)
def test_the_small_space_is_searched_to_its_end(seed: int) -> None:
    """The dynamic programme's plan is as good as the best of all plans."""
    p = random_tiny(seed)
    best = None
    for plan in every_plan(p):
        found = judged(p, plan)
        best = found if better(found, best) else best
    ours = [None, *small_space(p, Context())][-1]
    assert (best is None) == (ours is None)
    if best is not None and ours is not None:
        assert (ours.violation_size, ours.value) == (best.violation_size, best.value)


def two_kinds(memory: float = np.inf) -> LayerProblem:
    """Ten layers, two nodes of two workers, one kind 2.5 times as slow; cards of 1.25 GB/s."""
    forward = np.array([1.0, 2.5])[:, None, None, None] * np.full(10, 0.004)
    sizes = np.array([1.0, 16.0])
    forward = forward * np.array([1.0, 13.0])[:, None]
    return tiny(
        [0.004] * 10,
        4,
        2,
        degrees=(1,),
        sizes=sizes,
        forward_s=forward,
        backward_s=2 * forward,
        parameters=np.full((10, 1), 12e6),
        output_bytes=np.full((10, 1), 8e6),
        activation_bytes=np.full((10, 1), 36e6),
        tensor_bytes=np.zeros((10, 2)),
        kind_names=("fast", "slow"),
        worker_kind=np.array([0, 0, 1, 1]),
        links=(Link.linear(2e10, 1e-5), Link.linear(1.25e9, 2e-5, 1.25e9)),
        link_index=np.array([[0, 1], [1, 0]]),
        global_batch=16,
        memory_bytes=np.full(4, memory),
    )


def test_more_memory_is_never_worse_and_no_part_beats_the_whole() -> None:
    """`dp` against pipelines and data parallelism, from no limit down to what hardly fits."""
    before = 0.0
    for memory in (np.inf, 4.1e9, 2.5e9, 1.9e9):
        p = two_kinds(memory)
        ours = judge(p, Dp()(p, Context()).plan)
        assert ours.feasible
        assert ours.value >= before
        before = ours.value
        for name in ("data", "pipeline"):
            other = judge(p, proposal_of(planners(p)[name](p, Context())).plan)
            assert not better(other, ours)


def test_a_choice_of_memory_options_is_never_worse_than_one() -> None:
    """Where there is room for few plans, and all of both options are more than `SMALL`."""
    p = random_tiny(4).replace(memory_bytes=[700.0] * 4, recompute=False, zero_stages=(0,))
    p = p.replace(global_batch=48)
    both = p.replace(recompute=True)
    assert space_size(p, SMALL) < SMALL <= space_size(both, SMALL)
    alone = judge(p, Dp()(p, Context()).plan)
    assert alone.feasible
    assert not better(alone, judge(both, Dp()(both, Context()).plan))


def test_the_first_workers_of_an_order_may_be_left_out() -> None:
    """A slow worker that hardly pays may stay idle while another one begins the pipeline."""
    p = two_kinds()
    begun = {plan.stages[0].workers[0] for plan in every_plan(p.replace(**_few_layers(p)))}
    assert begun == set(range(4))


def _few_layers(p: LayerProblem) -> dict[str, object]:
    """The first two layers of a problem."""
    tables = ("parameters", "output_bytes", "activation_bytes", "tensor_bytes", "working_bytes")
    kept: dict[str, object] = {name: getattr(p, name)[:2] for name in (*tables, "update_bytes")}
    kept |= {name: getattr(p, name)[..., :2] for name in ("forward_s", "backward_s")}
    kept |= {name: getattr(p, name)[:2] for name in ("layer_names", "layer_kinds", "flops")}
    kept |= {name: getattr(p, name)[:2] for name in ("gather_s", "scatter_s")}
    return kept | {
        name: getattr(p, name)[:1] for name in ("edge_source", "edge_target", "edge_bytes")
    }


def test_large_spaces_are_not_counted_to_their_end() -> None:
    """Neither plans of a thousand layers and workers, nor divisors of a large batch one by one."""
    assert space_size(tiny([1.0] * 1200, 1100), SMALL) == SMALL
    assert micro_batch_counts(tiny([1.0], global_batch=12)) == [1, 2, 3, 4, 6, 12]
    assert max(micro_batch_counts(tiny([1.0], global_batch=10**12))) <= 1 << 14


def test_a_billion_micro_batches_are_not_simulated() -> None:
    """No planner tries them, and a plan that names them is refused at once."""
    p = tiny([1.0], global_batch=10**9)
    best = solve(p, planner="single").plan
    assert best.micro_batches <= 1 << 14
    stage = replace(best.stages[0], replicas=(Replica((0,), 1),))
    many = replace(best, micro_batches=10**9, stages=(stage,))
    with pytest.raises(InputError, match="forward passes is not simulated"):
        judge(p, many)


def test_replicas_that_are_alike_are_simulated_once_and_drawn_where_they_are_few() -> None:
    """A plan of many has a value, and no timeline."""
    for replicas, drawn in ((2, True), (40, False)):
        p = tiny([1.0], replicas, global_batch=replicas * 10_000)
        rows = tuple(Replica((w,), 1) for w in range(replicas))
        judged = judge(p, LayerPlan((Stage(0, 0, rows, 1),), 10_000))
        assert judged.value > 0
        assert (judged.trace() is not None) == drawn


def test_a_slow_worker_is_left_out() -> None:
    """Where its share, and the exchange with it, would cost more than it gives."""
    p = tiny_instances()["slow-worker"].replace(parameters=np.full((2, 2), 400.0))
    result = solve(p, "dp")
    assert result.plan.workers == (0,)
    assert result.value <= judge(p, solve(p, "data").plan).value


def test_tensor_replicates_what_cannot_be_split() -> None:
    """A layer without weights to split; where none can be split the reason names a layer."""
    refused = Refusal(0, Strategy.TENSOR, "none of its weights can be split")
    p = tiny([0.5, 1.0], 2, 1, refusals=(refused,))
    plan = solve(p, "tensor").plan
    assert plan.stages[0].strategies == (Strategy.REPLICATED, Strategy.TENSOR)
    none = p.replace(refusals=(refused, replace(refused, layer=1)))
    reason = planners(none)["tensor"].unsupported_reason(none)
    assert reason == "layer 'l0' cannot be tensor: none of its weights can be split"


@pytest.mark.parametrize("name", ["data", "sharded"])
def test_a_layer_that_needs_the_whole_batch_is_named(name: str) -> None:
    """Both strategies give each worker a part of the samples."""
    p = tiny([1.0, 1.0], refusals=(Refusal(1, Strategy.DATA, "batch norm"),))
    reason = planners(p)[name].unsupported_reason(p)
    assert reason == "layer 'l1' cannot be data: batch norm"


def test_swarm_is_never_worse_than_uniform_plans() -> None:
    """Warm; the same seed gives the same plan; parameters are refused by name."""
    p = tiny([0.2, 1.0, 0.4, 0.7], 4, 2, global_batch=8)
    swarm = Pso(particles=6, iterations=5)
    value = judge(p, swarm(p, Context(seed=3)).plan).value
    assert swarm(p, Context(seed=3)) == swarm(p, Context(seed=3))
    for name in ("single", "data", "tensor", "pipeline"):
        assert value <= judge(p, planners(p)[name](p, Context()).plan).value
    assert solve(p, "dp").value <= value
    for text in ("pso(particles=0)", "mutation(tries=0)", "pbqp(counts=0)", "dp(groups=0)"):
        with pytest.raises(InputError, match="must be a whole number >= 1"):
            solve(p, text)


@pytest.mark.parametrize(
    ("name", "most"),
    [("data", 7), ("pipeline", 7), ("tensor", 2), ("pbqp", 2), ("exhaustive", 7), ("dp", 30)],
)
def test_an_interrupted_planner_has_the_best_plan_so_far(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that were judged until Ctrl-C; the swarm begins with uniform plans."""
    seen: list[float] = []
    calls = count()

    def judging(*given: Any) -> LayerJudgement:
        if next(calls) == most:
            raise KeyboardInterrupt
        seen.append((found := judge(*given)).value)
        return found

    monkeypatch.setattr(space, "judge", judging)
    p = tiny([0.2, 1.0, 0.4, 0.7], 4, 2, global_batch=8)
    result = solve(p, name)
    assert result.status is Status.INTERRUPTED
    assert result.value == min(seen) if name != "dp" else result.value in seen
    calls = count()
    swarm = solve(p, "pso")
    assert swarm.status is Status.INTERRUPTED
    assert swarm.value in seen


def test_auto_shards_states_where_nothing_else_fits() -> None:
    """Otherwise the judge decides: here gathering weights takes time, and copies have room."""
    roomy = tiny([0.2, 1.0], 2, global_batch=8)
    tight = roomy.replace(memory_bytes=np.full(2, 400.0), training=Training(weight_bytes=16.0))
    for p, zero_stage in ((roomy, 0), (tight, 3)):
        found = solve(p, "auto")
        assert "sharded" in {c.planner for c in found.candidates}
        assert found.plan.stages[0].zero_stage == zero_stage
        assert found.judgement.feasible


def test_mixed_strategies_are_the_best_of_all_assignments() -> None:
    """Every assignment of three layers on one replica of two workers, by the judge."""
    from itertools import product

    from placewright.layers.planners.space import Cell, build

    p = tiny(
        [0.5, 0.1, 0.9],
        2,
        1,
        parameters=[[40.0, 20.0], [1.0, 0.5], [400.0, 200.0]],
        training=Training(overlap_sync=False),
        refusals=(Refusal(1, Strategy.TENSOR, "dropout"),),
    )
    found = strategies_of(p, (0, 1), 2, 2, 1)
    assert found is not None
    values = {}
    for every in product(Strategy, repeat=3):
        plan = build(p, (0, 1), [Cell(0, 2, 0, 2, 2, every)], 1)
        if plan is not None:
            values[every] = judge(p, plan).value
    assert values[found] == pytest.approx(min(values.values()))
    assert found[1] is not Strategy.TENSOR


def test_no_single_change_of_a_strategy_betters_the_plan_of_dp() -> None:
    """The exchange of the first layer, which nothing hides, makes it sharded."""
    p = tiny(
        [1.0] * 6,
        4,
        2,
        parameters=[[40.0, 20.0]] * 6,
        training=Training(overlap_sync=True),
        global_batch=8,
    )
    best = judge(p, Dp()(p, Context()).plan)
    for layer, strategy in ((i, s) for i in range(p.n) for s in Strategy):
        stage = best.plan.stages[best.plan.stage_of(layer)]
        own = [stage.strategy(i) for i in stage.layers]
        if stage.tensor_degree == 1 or p.refusal(layer, strategy, stage.tensor_degree):
            continue
        own[layer - stage.first_layer] = strategy
        stages = tuple(
            replace(x, strategies=tuple(own)) if x is stage else x for x in best.plan.stages
        )
        changed = judge(p, replace(best.plan, stages=stages))
        assert not changed.feasible or changed.value >= best.value * (1 - 1e-12)


def test_what_fits_nowhere_says_what_is_missing_and_where() -> None:
    """The smallest shortfall, and the worker."""
    with pytest.raises(InfeasibleError, match=r"w\d needs .* too much"):
        compare(tiny_instances()["no-room"], ["dp", "data"])
    assert solve(tiny_instances()["no-memory-on-one"], "dp").plan.workers == (0,)


def test_what_is_known_to_be_held_must_fit() -> None:
    """Weights, gradients and states of three layers, 384 bytes; nobody says what they keep."""
    p = tiny_instances()["unknown-memory"].replace(memory_bytes=[3 * 128.0, 2 * 128.0])
    for name, workers in (("data", (0,)), ("sharded", (0, 1))):
        assert solve(p, name).plan.workers == workers
    stage = Stage(0, 2, (Replica((0,), 2), Replica((1,), 2)))
    assert judge(p, LayerPlan((stage,))).violation == "w1 needs 384 B of 256 B: 128 B too much"
    shards = solve(p, "sharded")
    assert math.isnan(shards.judgement.held_bytes[0])
    assert shards.explain("w1").facts["memory"] == "at least 192 B of 256 B"


def test_shares_are_whole_and_add_up() -> None:
    """Proportional to the speeds, at least one each."""
    assert shares([1.0, 1.0, 2.0], 8) == (2, 2, 4)
    assert shares([1.0, 100.0], 4) == (1, 3)
    assert shares([1.0, 1.0], 1) is None


@pytest.mark.parametrize("seed", range(4))
def test_planners_keep_layers_that_see_the_whole_batch_whole(seed: int) -> None:
    """Batch norm: one replica, no micro-batches; the dynamic programme still finds the best."""
    problem = random_tiny(seed)
    whole = tuple(Refusal(0, s, "batch norm") for s in (Strategy.DATA, Strategy.SHARDED))
    problem = problem.replace(refusals=(*problem.refusals, *whole))
    best = None
    for plan in every_plan(problem):
        found = judged(problem, plan)
        best = found if better(found, best) else best
    assert best is not None
    assert space_size(problem, SMALL) < SMALL

    for name, planner in planners(problem).items():
        if planner.unsupported_reason(problem) is None:
            try:
                plan = proposal_of(planner(problem, Context(seed=seed))).plan
            except InfeasibleError:
                continue
            assert plan.micro_batches == len(plan.stages[0].replicas) == 1
            if name == "dp":
                assert not better(best, judge(problem, plan))
