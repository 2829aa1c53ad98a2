"""Every simulator of wing 1 on the same instances: they agree to the last bit.

The rules are those of docs/reference/simulation.md; the reference follows them word by word. Each
simulator takes part wherever it supports the mode: the one by rounds (through the judge), batches,
the fast one, the decoder of sequences, and star.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.errors import InfeasibleError, InputError
from placewright.numerics.arrays import IntArray
from placewright.operators.conformance import (
    named_instances,
    plans,
    problems,
    random_placement,
    random_problem,
    tiny,
    with_random_views,
)
from placewright.operators.costs import groups_of
from placewright.operators.judge import OperatorJudge, OperatorJudgement, evaluate_many, judge
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.sequences.search import OrderSearch, start_order
from placewright.operators.problem import Communication, Links, Objective, OperatorProblem, Overlap
from placewright.operators.simulation.fast import UNSURE
from placewright.operators.simulation.fast import simulate as simulate_fast
from placewright.operators.simulation.inputs import NO_ORDER, default_order
from placewright.operators.simulation.loads import is_pipeline
from placewright.operators.simulation.rounds import simulate
from tests.operators.pipelines import all_plans, piped
from tests.operators.simulation import reference
from tests.operators.star_cases import star
from tests.operators.star_instances import star_problem
from tests.operators.validity import assert_valid_schedule

MODES = [(links, overlap) for links in Links for overlap in Overlap]

Seen = Counter[str]
"""How many comparisons there were of each kind: none may be without instances."""


def agree(problem: OperatorProblem, plan: OperatorPlan, seen: Seen) -> reference.Outcome:
    """One plan on every simulator that supports the problem."""
    expected = reference.simulate(problem, plan)
    seen[expected.refused or "simulated"] += 1
    seen["short"] += expected.over_bytes > 0
    the_judge(problem, plan, expected)
    judge_ = OperatorJudge(problem)
    if problem.communication is Communication.PAIRWISE and plan.replica_of is None:
        batches(judge_, plan, expected)
        by_rounds(judge_, plan, expected)
        if problem.overlap is Overlap.PARALLEL and problem.objective is Objective.LATENCY:
            the_fast_simulator(judge_, plan, expected, seen)
    return expected


def the_judge(problem: OperatorProblem, plan: OperatorPlan, expected: reference.Outcome) -> None:
    """Star, loads, and whichever other simulator it asks: every number that it gives."""
    if expected.refused:
        with pytest.raises((InfeasibleError, InputError)):
            judge(problem, plan)
        return
    compare(problem, plan, judge(problem, plan), expected)


def by_rounds(judge_: OperatorJudge, plan: OperatorPlan, expected: reference.Outcome) -> None:
    """The same by rounds alone."""
    order = default_order(judge_.problem) if plan.order is None else plan.order.copy()
    mode, place = judge_.mode(plan.dispatch), plan.placement.copy()
    assert simulate(judge_.state, judge_.rounds, mode, place, order) != bool(expected.refused)
    if not expected.refused and not is_pipeline(judge_.problem):
        compare(judge_.problem, plan, judge_.judgement(plan), expected)


def compare(
    problem: OperatorProblem,
    plan: OperatorPlan,
    judged: OperatorJudgement,
    expected: reference.Outcome,
) -> None:
    """Bit for bit."""
    assert judged.value == expected.value
    assert judged.peak_bytes.tolist() == expected.peak_bytes
    assert judged.violation_bytes == expected.over_bytes
    assert judged.feasible == (expected.over_bytes == 0)
    if problem.communication is Communication.PAIRWISE:
        assert judged.op_start_s.tolist() == [expected.start_s[i] for i in range(problem.n)]
        assert judged.op_end_s.tolist() == [expected.end_s[i] for i in range(problem.n)]
        sent = judged.transfers
        keys = zip(sent.tensor.tolist(), sent.target.tolist(), strict=True)
        spans = zip(sent.start_s.tolist(), sent.end_s.tolist(), strict=True)
        assert dict(zip(keys, spans, strict=True)) == expected.sent
        assert_valid_schedule(problem, plan.placement, judged)


def batches(judge_: OperatorJudge, plan: OperatorPlan, expected: reference.Outcome) -> None:
    """Compiled scores: fast simulator first, the one by rounds where it is unsure, loads."""
    value, over = judge_.many(plan.placement, plan.order, plan.dispatch)
    assert (value.tolist(), over.tolist()) == ([expected.value], [expected.over_bytes])


def the_fast_simulator(
    judge_: OperatorJudge, plan: OperatorPlan, expected: reference.Outcome, seen: Seen
) -> None:
    """The makespan, or that it cannot tell; bytes over are those of `batches`."""
    order = default_order(judge_.problem) if plan.order is None else plan.order.copy()
    mode = judge_.mode(plan.dispatch)
    value = simulate_fast(judge_.state, mode, plan.placement.copy(), order)
    seen["unsure" if value == UNSURE else "sure"] += 1
    assert value in (UNSURE, expected.value)


def some_plans(problem: OperatorProblem, rng: np.random.Generator) -> list[OperatorPlan]:
    """Random placements with every dispatch; the last order mostly contradicts the graph."""
    return [
        OperatorPlan(random_placement(problem, rng), order, dispatch)
        for order, dispatch in (
            (None, Dispatch.READY),
            (rng.permutation(problem.n), Dispatch.READY),
            (problem.topology.order, Dispatch.IN_ORDER),
            (rng.permutation(problem.n), Dispatch.IN_ORDER),
        )
    ]


def varied(problem: OperatorProblem, seed: int) -> OperatorProblem:
    """The same with views, short memory, or pairs of devices without a link, some of each."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        problem = with_random_views(problem, seed)
    if seed % 3 == 0:
        most = problem.tensor_bytes.sum() + problem.resident_bytes.sum() + 1.0
        problem = problem.replace(memory_bytes=rng.random(problem.m) * most)
    if seed % 7 == 0:
        cut = (rng.random((problem.m, problem.m)) < 0.3) & ~np.eye(problem.m, dtype=np.bool_)
        problem = problem.replace(
            channel=np.where(cut, -1, problem.channel),
            latency_s=np.where(cut, np.inf, problem.latency_s),
            seconds_per_byte=np.where(cut, np.inf, problem.seconds_per_byte),
        )
    return problem


@pytest.mark.parametrize(("links", "overlap"), MODES)
def test_latency(links: Links, overlap: Overlap) -> None:
    """Most instances have times that are equal or zero, shared channels, groups and pins."""
    seen = Seen()
    for seed in range(110):
        problem = varied(random_problem(seed, links=links, overlap=overlap), seed)
        for plan in some_plans(problem, np.random.default_rng(seed)):
            agree(problem, plan, seen)
    wanted = ["simulated", "short", "P2", "P3"]
    wanted += ["sure", "unsure"] if overlap is Overlap.PARALLEL else []
    assert all(seen[kind] > 5 for kind in wanted), seen


@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_drawn_problems(data: st.DataObject) -> None:
    """The same on what hypothesis draws and shrinks, of both objectives."""
    objective = data.draw(st.sampled_from(list(Objective)))
    problem = data.draw(problems(objective=objective))
    agree(problem, data.draw(plans(problem)), Seen())


@pytest.mark.parametrize(("links", "overlap"), MODES)
def test_throughput_over_links(links: Links, overlap: Overlap) -> None:
    """Loads in the order of rule L3, also where passes do not mix."""
    seen, options = Seen(), {"links": links, "overlap": overlap}
    for seed in range(70):
        problem = random_problem(seed, objective=Objective.THROUGHPUT, **options)
        problem = varied(problem, seed)
        if seed % 4 == 0:
            late = np.random.default_rng(seed).random(problem.n) < 0.5
            problem = problem.replace(is_backward=late, pipeline=Pipeline(diffmaxima=True))
        for plan in some_plans(problem, np.random.default_rng(seed))[:3]:
            agree(problem, plan, seen)
    assert seen["simulated"] > 140


def test_copies_of_stages_over_links() -> None:
    """Alike devices share a stage; links differ."""
    copies = 0
    for seed in range(20):
        problem = random_problem(seed, most_operators=5, objective=Objective.THROUGHPUT)
        first = np.where(np.isfinite(problem.compute_s[:, :1]), problem.compute_s[:, :1], 2.0)
        problem = problem.replace(
            compute_s=np.repeat(first, problem.m, axis=1),
            pinned=np.full(problem.n, -1),
            memory_bytes=np.full(problem.m, problem.memory_bytes[0]),
            is_backward=np.arange(problem.n) % 2 == 0,
            links=("contended", "free")[seed % 5 == 0],
            overlap=("parallel", "serial")[seed % 7 == 0],
            pipeline=Pipeline(
                replication=True, diffmaxima=bool(seed % 2), sync_seconds_per_byte=0.3
            ),
        )
        for plan in list(all_plans(problem))[::11]:
            copies += plan.replica_of.tolist() != list(range(problem.m))
            agree(problem, plan, Seen())
    assert copies > 25


def test_copies_on_devices_that_differ() -> None:
    """Samples dealt out by speed, for stages of any part of the model."""
    copies = 0
    for seed in range(24):
        problem = random_problem(seed, most_operators=4, objective=Objective.THROUGHPUT)
        finite = np.where(np.isfinite(problem.compute_s), problem.compute_s, 2.0)
        problem = problem.replace(
            compute_s=finite,
            pinned=np.full(problem.n, -1),
            pipeline=Pipeline(replication=True, by_speed=True, sync_seconds_per_byte=0.3),
        )
        for plan in list(all_plans(problem))[::9]:
            copies += plan.replica_of.tolist() != list(range(problem.m))
            agree(problem, plan, Seen())
    assert copies > 50


@pytest.mark.parametrize("wide", [0, 1])
def test_copies_on_many_devices(wide: int) -> None:
    """Shares of ten links are added from left to right (rule N1), not in pairs."""
    problem = tiny([[1.0] * 11] * 2, [(0, 0.3, [1])], objective="throughput")
    latency_s = np.random.default_rng(3).random((11, 11)) * ~np.eye(11, dtype=np.bool_)
    problem = problem.replace(latency_s=latency_s, pipeline=Pipeline(replication=True))
    leader = np.full(11, wide)
    leader[1 - wide] = 1 - wide
    agree(problem, OperatorPlan([0, 1], replica_of=leader), Seen())


def test_loads_around_host_memory() -> None:
    """Star throughput; infeasible exactly where resident bytes exceed a memory."""
    seen = Seen()
    for seed in range(200):
        problem, rng = star(seed, operators=12, devices=4), np.random.default_rng(seed)
        plan = OperatorPlan(random_placement(problem, rng))
        if seed % 3 == 0:
            most = problem.resident_bytes.sum() + 1.0
            problem = problem.replace(memory_bytes=rng.random(problem.m) * most)
        agree(problem, plan, seen)
    assert seen["short"] > 20


def test_pipelines_around_host_memory() -> None:
    """Copies of stages, clusters of accelerators, separate passes."""
    seen = Seen()
    for seed in range(40):
        problem = piped(seed)
        if seed % 3 == 0:
            most = 0.7 * problem.resident_bytes.sum()
            problem = problem.replace(memory_bytes=np.full(problem.m, most))
        for plan in list(all_plans(problem))[::7]:
            agree(problem, plan, seen)
            seen["copies"] += plan.replica_of.tolist() != list(range(problem.m))
            seen["clusters"] += bool(problem.pipeline.cluster)
            seen["passes"] += problem.pipeline.diffmaxima
    assert min(seen[kind] for kind in ("copies", "clusters", "passes", "short")) > 50


@pytest.mark.parametrize("calls", [1, 2, 10**9])
def test_calls_through_host_memory(calls: int) -> None:
    """Star latency, calls given or not; what would wait for itself is refused by both."""
    seen = Seen()
    for seed in range(120 if calls < 3 else 40):
        problem = star_problem(seed, operators=9, accelerators=3, calls=calls, alike=seed % 2 == 0)
        rng = np.random.default_rng(seed)
        place = random_placement(problem, rng)
        some = rng.integers(0, calls, problem.n)
        if calls > 2:  # few of so many have operators
            some = rng.choice([0, 7, 10**8, 10**9 - 1], problem.n)
        for call in (some, None):
            agree(problem, OperatorPlan(place, call=call), seen)
    assert seen["simulated"] > 20
    assert seen["A6"] > (20 if calls < 3 else 0)


@pytest.mark.parametrize("links", Links)
def test_the_decoder_of_sequences(links: Links) -> None:
    """What annealing on sequences believes is what the in-order plan is worth, waits included."""
    for seed in range(60):
        problem = random_problem(seed, most_operators=30, links=links)
        place = random_placement(problem, np.random.default_rng(seed))
        sequence = start_order(judge(problem, OperatorPlan(place)))
        orders = OrderSearch(problem, groups_of(problem))
        found = orders.improve(sequence, place, moves=300, heat=0.5, seed=seed)
        plan = OperatorPlan(found.place, found.sequence, Dispatch.IN_ORDER)
        expected = agree(problem, plan, Seen())
        assert found.value_s == expected.value


def large(seed: int, links: Links) -> OperatorProblem:
    """Up to 120 operators on 6 devices where every time differs, so that nothing is unsure."""
    problem = random_problem(seed, most_operators=120, most_devices=6, links=links)
    rng = np.random.default_rng(seed)
    off = ~np.eye(problem.m, dtype=np.bool_)
    channel = np.full((problem.m, problem.m), -1)
    channel[off] = np.arange(off.sum())
    problem = problem.replace(
        compute_s=np.where(np.isfinite(problem.compute_s), 1, np.inf)
        * rng.random((problem.n, problem.m)),
        latency_s=off * (0.1 + rng.random((problem.m, problem.m))),
        channel=channel,
        channel_names=tuple(f"c{x}" for x in range(off.sum())),
    )
    most = problem.tensor_bytes.sum() + problem.resident_bytes.sum() + 1.0
    return with_random_views(problem, seed).replace(memory_bytes=rng.random(problem.m) * most)


def rounds_and_the_fast(judge_: OperatorJudge, plan: OperatorPlan, seen: Seen) -> reference.Outcome:
    """Where the reference takes too long."""
    try:
        judged = judge_(plan)
    except (InfeasibleError, InputError):
        expected = reference.Outcome()
    else:
        expected = reference.Outcome(value=judged.value, over_bytes=judged.violation_bytes)
    batches(judge_, plan, expected)
    the_fast_simulator(judge_, plan, expected, seen)
    return expected


@pytest.mark.parametrize("links", Links)
def test_large_problems_without_ties(links: Links) -> None:
    """Nothing is unsure where every time differs, tensors of many readers included."""
    seen = Seen()
    for seed in range(20):
        problem = large(seed, links)
        judge_ = OperatorJudge(problem)
        for plan in some_plans(problem, np.random.default_rng(seed)):
            seen["short"] += rounds_and_the_fast(judge_, plan, seen).over_bytes > 0
    assert seen["unsure"] == 0
    assert seen["short"] > 15


@pytest.mark.parametrize("links", Links)
def test_small_problems_with_short_memory(links: Links) -> None:
    """Ties and zeros; most values are sure, and bytes over are those of rounds."""
    seen = Seen()
    for seed in range(120):
        problem = with_random_views(random_problem(seed, links=links), seed)
        most = problem.tensor_bytes.sum() + problem.resident_bytes.sum() + 1.0
        rng = np.random.default_rng(seed)
        problem = problem.replace(memory_bytes=rng.random(problem.m) * most)
        judge_ = OperatorJudge(problem)
        for plan in some_plans(problem, rng):
            seen["short"] += rounds_and_the_fast(judge_, plan, seen).over_bytes > 0
    assert seen["sure"] > 160
    assert seen["unsure"] > 0
    assert seen["short"] > 60


def long_queues() -> Iterator[tuple[OperatorProblem, OperatorPlan]]:
    """Many operators whose inputs are on their way to one device, in any order of arrival."""
    rng, wide = np.random.default_rng(3), 150
    compute = [[0.01, 0.01, 0.01]] * wide + [[1.0, 1.0, 1.0]] * wide
    tensors = [(i, float(rng.integers(1, 9)), [wide + (7 * i) % wide]) for i in range(wide)]
    problem = tiny(compute, tensors, latency_s=0.5, seconds_per_byte=0.3)
    for _ in range(20):
        place = np.concatenate([rng.integers(0, 2, wide), np.full(wide, 2)])
        some = problem.replace(compute_s=rng.random((2 * wide, 3)) / 9)
        yield some, OperatorPlan(place)
        yield some, OperatorPlan(place, rng.permutation(2 * wide))


def test_long_queues() -> None:
    """More pending operators than are looked through one by one."""
    seen = Seen()
    for problem, plan in long_queues():
        rounds_and_the_fast(OperatorJudge(problem), plan, seen)
    assert seen["unsure"] == 0


def test_operators_that_take_no_time_are_sure() -> None:
    """A device hands on within itself twice at one instant; no channel is requested twice."""
    for tensors in ([(0, 1.0, [1]), (1, 1.0, [2])], [(0, 1.0, [1]), (0, 1.0, [2]), (1, 1.0, [2])]):
        problem = tiny([[1.0] * 2, [0.0] * 2, [0.0] * 2], tensors)
        judge_ = OperatorJudge(problem)
        row: IntArray = np.zeros(3, dtype=np.int64)
        assert simulate_fast(judge_.state, judge_.mode(), row, NO_ORDER) == 1.0


def test_interleaved_placements() -> None:
    """Simulations that take turns say what each says alone, whatever the number of rows."""
    for seed in range(40):
        problem = random_problem(seed, most_operators=60)
        judge_, rng = OperatorJudge(problem), np.random.default_rng(seed)
        rows: IntArray = np.array([random_placement(problem, rng) for _ in range(1 + seed % 7)])
        mode = judge_.mode(memory=False)
        alone = [simulate_fast(judge_.state, mode, row, NO_ORDER) for row in rows]
        together = judge_.many(rows)[0]
        for one, other in zip(alone, together, strict=True):
            assert one in (UNSURE, other)


@pytest.mark.parametrize(("links", "overlap"), MODES)
def test_batches_of_many_rows(links: Links, overlap: Overlap) -> None:
    """Every row of a batch has the judge's value and violation, with and without an order."""
    for seed in range(40):
        problem = random_problem(seed, links=links, overlap=overlap)
        problem = with_random_views(problem, seed) if seed % 2 else problem
        problem = problem.replace(objective=("latency", "throughput")[seed % 4 == 3])
        rng = np.random.default_rng(seed)
        rows = np.array([random_placement(problem, rng) for _ in range(5)])
        for order in (None, rng.permutation(problem.n)):
            value, over = evaluate_many(problem, rows, order)
            for row, v, o in zip(rows, value, over, strict=True):
                one = judge(problem, OperatorPlan(row, order))
                assert (one.value, one.violation_bytes) == (v, o)


def test_threads_do_not_change_a_batch() -> None:
    """A batch large enough to be split says what one placement at a time says."""
    problem = random_problem(5, most_operators=12)
    rng = np.random.default_rng(0)
    rows = np.array([random_placement(problem, rng) for _ in range(3000)])
    whole = OperatorJudge(problem).many(rows)
    for at in range(0, 3000, 500):
        part = OperatorJudge(problem).many(rows[at : at + 7])
        assert part[0].tolist() == whole[0][at : at + 7].tolist()
        assert part[1].tolist() == whole[1][at : at + 7].tolist()


def test_missing_links_are_left_to_rounds() -> None:
    """The fast one is unsure wherever some pair has no link."""
    problem = named_instances()["unlinked"]
    judge_ = OperatorJudge(problem)
    place = np.zeros(problem.n, dtype=np.int64)
    assert simulate_fast(judge_.state, judge_.mode(), place, NO_ORDER) == UNSURE


@pytest.mark.parametrize("overlap", Overlap)
def test_seconds_without_end(overlap: Overlap) -> None:
    """Sums that overflow are infinite on every simulator; what was before them stays."""
    problem = tiny([[1.5e308] * 2] * 3, [(0, 1.0, [1]), (1, 1.0, [2])], overlap=overlap)
    for place in ([0, 0, 0], [0, 1, 0]):
        judged = judge(problem, OperatorPlan(place))
        assert (judged.value, judged.op_end_s.tolist()) == (np.inf, [1.5e308, np.inf, np.inf])
        assert evaluate_many(problem, [place])[0].tolist() == [np.inf]


def test_a_judge_forgets_what_it_simulated() -> None:
    """One state, many plans: the same answer as a fresh state, also after a refused plan."""
    problem = random_problem(11)
    rng = np.random.default_rng(0)
    judge_ = OperatorJudge(problem)
    for _ in range(30):
        plan = some_plans(problem, rng)[int(rng.integers(0, 4))]
        try:
            again = judge_(plan)
        except InputError:
            continue
        assert again.op_end_s.tolist() == judge(problem, plan).op_end_s.tolist()
        assert again.peak_bytes.tolist() == judge(problem, plan).peak_bytes.tolist()


def test_program_order_is_the_order_of_the_problem() -> None:
    """Rule O4, on every simulator: as a plan that lists the operators from first to last."""
    seen: Seen = Counter()
    for seed in range(40):
        problem = random_problem(seed).replace(program_order=True)
        place = random_placement(problem, np.random.default_rng(seed))
        outcome = agree(problem, OperatorPlan(place), seen)
        listed = OperatorPlan(place, np.arange(problem.n))
        assert reference.simulate(problem, listed) == outcome
    assert seen["simulated"]
