"""The judge on hand-computed examples; `tests.operators.simulation.test_differential` has more."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest

from placewright.errors import InfeasibleError, InputError
from placewright.operators.conformance import (
    named_instances,
    random_placement,
    random_problem,
    tiny,
    with_random_views,
)
from placewright.operators.generators import generate_tasks
from placewright.operators.judge import OperatorJudge, evaluate_many, judge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.problem import OperatorProblem, Overlap
from placewright.planning.solving import solve
from placewright.planning.wings import Judge


def some_plans(problem: OperatorProblem, rng: np.random.Generator) -> list[OperatorPlan]:
    """One placement, dispatched in three ways."""
    placement = random_placement(problem, rng)
    return [
        OperatorPlan(placement),
        OperatorPlan(placement, rng.permutation(problem.n)),
        OperatorPlan(placement, problem.topology.order, Dispatch.IN_ORDER),
    ]


def test_many_gives_infinity_where_one_raises() -> None:
    """Operators that a device refuses and pairs without a link."""
    unlinked = named_instances()["unlinked"]
    value, _ = evaluate_many(unlinked, [[0, 1, 0], [0, 0, 1]])
    assert value.tolist() == [np.inf, 2.0 + 1.0]
    refused = named_instances()["unsupported"]
    assert evaluate_many(refused, [[1, 1, 0, 0]])[0].tolist() == [np.inf]
    for rows, order in (([[0, 1, 0, 2]], None), ([[0, 1]], None), ([[0, 1, 0, 0]], [0, 1, 2, 2])):
        with pytest.raises(InputError, match="every"):
            evaluate_many(refused, rows, order)
    with pytest.raises(InputError, match="need an order"):
        evaluate_many(refused, [[0, 1, 0, 0]], dispatch=Dispatch.IN_ORDER)


@pytest.mark.parametrize(
    "rows", [np.array([[0.5, 1.0]]), np.array([["0", "1"]]), np.array([[0j, 1j]]), [[np.nan, 0.0]]]
)
def test_devices_of_many_are_whole_numbers(rows: Any) -> None:
    """Half a device would silently be another one."""
    problem = tiny([[1.0, 2.0], [1.0, 2.0]])
    for many in (OperatorJudge(problem).many, Judge(problem).many):
        with pytest.raises(InputError, match="whole numbers"):
            many(rows)


def test_many_takes_what_can_be_read_once() -> None:
    """Placements, plans with an order, and results, after which it would be empty."""
    problem = tiny([[1.0, 2.0], [1.0, 2.0]])
    some = ([0, 0], OperatorPlan([1, 1], [1, 0]), solve(problem, "only:dev1"))
    wanted = [Judge(problem)(plan).value for plan in some]
    assert Judge(problem).many(plan for plan in some).tolist() == wanted
    assert Judge(problem).many([]).tolist() == []
    for wrong in (3, None, "ab", {"op0": "dev0"}):
        with pytest.raises(InputError, match="must be plans"):
            Judge(problem).many(wrong)


@pytest.mark.parametrize("seed", range(6))
def test_many_is_the_same_on_every_way(seed: int) -> None:
    """By the kernel, one by one, and by an objective: what breaks a rule is infinite on all."""
    problem = random_problem(seed, most_operators=4, most_devices=3)
    rows = np.array([*product(range(problem.m), repeat=problem.n)])
    wanted = Judge(problem).many(rows).tolist()
    ordered = OperatorPlan(rows[0], problem.topology.order)
    assert Judge(problem).many([*rows, ordered])[:-1].tolist() == wanted
    assert Judge(problem, lambda judged: judged.value).many(rows).tolist() == wanted


def test_threads_may_share_a_judge() -> None:
    """Each has its own state of the simulators: kernels run side by side."""
    rng = np.random.default_rng(0)
    problem = generate_tasks("layered", 24, 3, links="contended")
    rows = rng.integers(problem.m, size=(400, problem.n))
    judge_of_all = Judge(problem)
    wanted = judge_of_all.many(rows)
    ready = threading.Barrier(4)

    def values(_: int) -> list[list[float]]:
        ready.wait()
        return [judge_of_all.many(rows).tolist() for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        assert all(found == [wanted.tolist()] * 10 for found in pool.map(values, range(4)))
    assert pickle.loads(pickle.dumps(judge_of_all)).many(rows).tolist() == wanted.tolist()


def test_a_pipeline_of_two_by_hand() -> None:
    """1 s on dev0, 2 s on the link, 3 s on dev1: side by side, unless one thing runs at a time."""
    problem = tiny([[1.0, 9.0], [9.0, 3.0]], [(0, 2.0, [1])], objective="throughput")
    judgement = judge(problem, OperatorPlan([0, 1]))
    assert judgement.value == 3.0
    assert judgement.makespan_s == 6.0
    slow = problem.replace(seconds_per_byte=2.0 * problem.seconds_per_byte)
    assert judge(slow, OperatorPlan([0, 1])).value == 4.0
    assert judge(slow.replace(links="free"), OperatorPlan([0, 1])).value == 3.0
    assert judge(slow.replace(overlap="serial"), OperatorPlan([0, 1])).value == 1.0 + 4.0 + 3.0


@pytest.mark.parametrize("bus", [False, True])
def test_channels_of_one_producer_work_side_by_side(bus: bool) -> None:
    """Ten tensors of 1 s to ten devices: 1 s per sample on channels of their own, 10 s on one."""
    m = 11
    problem = tiny([[1.0] * m] * m, [(0, 1.0, [d]) for d in range(1, m)], objective="throughput")
    if bus:
        problem = problem.replace(channel=np.where(np.eye(m, dtype=bool), -1, 0))
    judgement = judge(problem, OperatorPlan(np.arange(m)))
    assert judgement.value == (10.0 if bus else 1.0)
    assert judgement.makespan_s == (12.0 if bus else 3.0)


def test_two_transfers_share_a_channel() -> None:
    """Contended, the second waits for the first; free, it does not; the one asked first goes."""
    inf = float("inf")
    costs = [[1.0, inf], [1.0, inf], [inf, 1.0], [inf, 1.0]]
    problem = tiny(costs, [(0, 5.0, [2]), (1, 5.0, [3])])
    contended = judge(problem, OperatorPlan([0, 0, 1, 1]))
    assert contended.transfers.start_s.tolist() == [1.0, 6.0]
    assert contended.value == 12.0
    free = judge(problem.replace(links="free"), OperatorPlan([0, 0, 1, 1]))
    assert free.transfers.start_s.tolist() == [1.0, 2.0]
    assert free.value == 8.0
    serial = judge(problem.replace(overlap="serial"), OperatorPlan([0, 0, 1, 1]))
    assert serial.value == 14.0


def test_a_tensor_is_sent_once_per_device() -> None:
    """Two consumers on one device, one on another: two transfers."""
    problem = tiny([[1.0, 1.0, 1.0]] * 4, [(0, 3.0, [1, 2, 3])])
    moves = judge(problem, OperatorPlan([0, 1, 1, 2])).transfers
    assert list(zip(moves.tensor.tolist(), moves.target.tolist(), strict=True)) == [(0, 1), (0, 2)]


def test_ready_works_and_in_order_waits() -> None:
    """The order wants operator 1 first, whose input is late."""
    inf = float("inf")
    problem = tiny([[inf, 4.0], [1.0, inf], [3.0, inf]], [(0, 1.0, [1])])
    order = [0, 1, 2]
    assert judge(problem, OperatorPlan([1, 0, 0], order)).op_start_s.tolist() == [0.0, 5.0, 0.0]
    waits = judge(problem, OperatorPlan([1, 0, 0], order, Dispatch.IN_ORDER))
    assert waits.op_start_s.tolist() == [0.0, 5.0, 6.0]


def test_memory_by_hand() -> None:
    """Sender until the transfer ends, receiver from arrival until its reader ends."""
    problem = tiny(
        [[1.0, 1.0]] * 2,
        [(0, 4.5, [1])],
        resident_bytes=[10.0, 20.0],
        memory_bytes=[14.0, 30.0],
    )
    judgement = judge(problem, OperatorPlan([0, 1]))
    assert judgement.peak_bytes.tolist() == [15, 25]
    assert not judgement.feasible
    assert judgement.violation == "'dev0' needs 1 B more than it has"
    assert judgement.violation_bytes == 1
    larger = judge(problem.replace(resident_bytes=[2.0**31, 20.0]), OperatorPlan([0, 1]))
    assert larger.violation == "'dev0' needs 2 GiB more than it has"


def test_views_by_hand() -> None:
    """A chain of views holds its base as long as its last reader; sent, a view is a tensor."""
    chain = [(0, 8.0, [1]), (1, 8.0, [2]), (2, 4.0, [3]), (3, 1.0, [4])]
    problem = tiny([[1.0, 1.0]] * 5, chain)
    shared = problem.replace(alias_of=[-1, 0, 1, -1])
    assert judge(problem, OperatorPlan([0] * 5)).peak_bytes.tolist() == [16, 0]
    simulated = judge(shared, OperatorPlan([0] * 5))
    assert simulated.peak_bytes.tolist() == [9, 0]
    assert simulated.trace().memory[0].held_bytes.tolist() == [8.0, 8.0, 8.0, 9.0, 1.0, 0.0]
    away = judge(shared, OperatorPlan([0, 0, 0, 1, 1]))
    assert away.peak_bytes.tolist() == [8, 5]
    received = judge(shared, OperatorPlan([0, 1, 1, 1, 1]))
    assert received.peak_bytes.tolist() == [8, 9]
    weight = problem.replace(alias_of=[-2, 0, 1, -1])
    assert judge(weight, OperatorPlan([0] * 5)).peak_bytes.tolist() == [1, 0]


def test_a_view_of_what_its_producer_does_not_read_is_refused() -> None:
    """By the names of the view and of its producer."""
    chain = [(0, 8.0, [1]), (1, 8.0, [2]), (2, 4.0, [3])]
    with pytest.raises(InputError, match="view must be made") as caught:
        tiny([[1.0]] * 4, chain, alias_of=[-1, -1, 0])
    assert "tensor2" in str(caught.value)
    assert "'op2' does not read 'tensor0'" in str(caught.value)
    with pytest.raises(InputError, match="names a tensor that does not exist"):
        tiny([[1.0]] * 4, chain, alias_of=[-1, -1, 3])


def test_half_open_intervals_make_room_first() -> None:
    """In a chain the input goes when the output's reader starts: never three at a time."""
    problem = named_instances()["chain"].replace(tensor_bytes=[4.0, 4.0, 4.0, 4.0])
    assert judge(problem, OperatorPlan([0] * 5)).peak_bytes.tolist() == [8, 0]


def test_the_trace_holds_everything() -> None:
    """Spans of operators and transfers, and memory curves whose tops are the peaks."""
    for seed in range(60):
        problem = with_random_views(random_problem(seed), seed)
        plan = some_plans(problem, np.random.default_rng(seed))[0]
        judgement = judge(problem, plan)
        trace = judgement.trace()
        assert trace.devices == problem.m
        assert len(trace.track) == problem.n + len(judgement.transfers)
        assert trace.duration_s == judgement.makespan_s
        moved = trace.track[problem.n :] - problem.m
        assert (moved < len(problem.channel_names)).all()
        tops = [int(curve.held_bytes.max()) for curve in trace.memory]
        assert tops == judgement.peak_bytes.tolist()


def test_impossible_plans_are_errors() -> None:
    """A pair without a link, an order against the graph, a device that refuses."""
    unlinked = named_instances()["unlinked"]
    with pytest.raises(InfeasibleError, match="no link from 'dev0' to 'dev1'"):
        judge(unlinked, OperatorPlan([0, 1, 0]))
    chain = named_instances()["chain"]
    for overlap in Overlap:
        with pytest.raises(InfeasibleError, match="order contradicts the graph: 'op1' waits"):
            judge(
                chain.replace(overlap=overlap),
                OperatorPlan([0] * 5, [1, 0, 2, 3, 4], Dispatch.IN_ORDER),
            )
    refused = named_instances()["unsupported"]
    for judge_plan in (OperatorJudge(refused), lambda plan: judge(refused, plan)):
        with pytest.raises(InfeasibleError, match="'op2' cannot run on 'dev1'"):
            judge_plan(OperatorPlan([0, 1, 1, 0]))


def test_a_byte_too_much_counts_among_very_many() -> None:
    """In floats 4e16 + 1 is 4e16: batches must not believe that everything fits."""
    problem = tiny([[1.0]], [(0, 1.0, [])], resident_bytes=[4e16], memory_bytes=[4e16])
    assert not judge(problem, OperatorPlan(np.zeros(1, dtype=int))).feasible
    assert OperatorJudge(problem).many([[0]])[1].tolist() == [1]
