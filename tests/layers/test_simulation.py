"""The simulation against an event queue, against formulas, and against counts by hand."""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.errors import InputError
from placewright.layers.bounds import bounds
from placewright.layers.conformance import random_tiny, tiny
from placewright.layers.judge import judge
from placewright.layers.plan import (
    LayerPlan,
    Replica,
    Schedule,
    Stage,
    check_plan,
    in_flight,
    order_of,
)
from placewright.layers.planners.space import Cell, build, orders
from placewright.layers.problem import LayerProblem, Training
from placewright.layers.simulation import (
    Network,
    Passes,
    SimulatedStep,
    SimulationState,
    Unit,
    _StageWalk,
    finish,
    network_of,
    simulate,
)
from placewright.layers.stage_costs import ReplicaCosts, pass_s
from placewright.layers.transfers import StageTransfer, transfers
from placewright.layers.workers import Link


class Events(SimulationState):
    """One instruction at a time: that of the unit with the earliest clock that can go on."""

    def run(self) -> Passes:
        """Until all have ended."""
        queue = [(0.0, home) for home in self.units]
        heapq.heapify(queue)
        blocked: list[tuple[float, Unit]] = []
        while queue:
            _, home = heapq.heappop(queue)
            if self.step(home):
                for entry in blocked:
                    heapq.heappush(queue, entry)
                blocked = []
                if self.left(home):
                    heapq.heappush(queue, (self.clock[home], home))
            else:
                blocked.append((self.clock[home], home))
        return self.out


def reference(p: LayerProblem, plan: LayerPlan) -> SimulatedStep:
    """`simulate` by an event queue."""
    net = network_of(p, plan)
    return finish(p, net, Events(net, True).run())


FREE = (Link.linear(1e30),)


def pipeline(p: LayerProblem, stages: int, micro_batches: int, schedule: Schedule) -> LayerPlan:
    """Equal cuts, one worker each."""
    cuts = [round(p.n * s / stages) for s in range(stages + 1)]
    cells = [Cell(cuts[s], cuts[s + 1] - 1, s, s + 1) for s in range(stages)]
    plan = build(p, range(p.w), cells, micro_batches, schedule)
    assert plan is not None
    return plan


def random_plan(p: LayerProblem, seed: int) -> LayerPlan | None:
    """Random cuts, workers, degrees, schedule."""
    rng = np.random.default_rng(seed)
    stages = int(rng.integers(1, min(p.n, p.w) + 1))
    cuts = [0, *sorted(rng.choice(np.arange(1, p.n), stages - 1, replace=False).tolist()), p.n]
    ends = [0, *sorted(rng.choice(np.arange(1, p.w), stages - 1, replace=False).tolist()), p.w]
    cells = []
    for s in range(stages):
        workers = ends[s + 1] - ends[s]
        degree = 2 if workers % 2 == 0 and rng.random() < 0.5 else 1
        cells.append(Cell(cuts[s], cuts[s + 1] - 1, ends[s], ends[s + 1], degree))
    counts = [m for m in range(1, p.global_batch + 1) if p.global_batch % m == 0]
    schedule = Schedule.GPIPE if rng.random() < 0.4 else Schedule.ONE_F_ONE_B
    return build(p, orders(p)[0], cells, int(rng.choice(counts)), schedule)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_walk_equals_the_event_queue_and_keeps_the_bounds(seed: int) -> None:
    """To the last bit; no plan beats a bound."""
    p = random_tiny(seed)
    plan = random_plan(p, seed)
    if plan is None:
        return
    try:
        check_plan(p, plan)
    except InputError:
        return
    fast, slow = simulate(p, plan), reference(p, plan)
    assert fast.step_s == slow.step_s
    key = sorted((s.unit, s.label, s.start_s, s.end_s) for s in fast.spans)
    assert key == sorted((s.unit, s.label, s.start_s, s.end_s) for s in slow.spans)
    assert all(fast.step_s >= bound for bound in bounds(p).values())


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
def test_equal_stages_take_the_pipeline_formula(schedule: Schedule) -> None:
    """(S - 1 + M) (F + B) where nothing is sent (Huang et al. 2019, arXiv 1811.06965)."""
    p = tiny([1.0] * 4, 4, links=FREE, global_batch=8)
    for micro_batches in (1, 2, 4, 8):
        step = simulate(p, pipeline(p, 4, micro_batches, schedule)).step_s
        each = 8 / micro_batches * 3.0
        assert step == pytest.approx((3 + micro_batches) * each)


def test_interleaving_shortens_the_bubble() -> None:
    """(P - 1) / (v M) of the ideal time with v stages per worker (arXiv 2104.04473)."""
    p = tiny([1.0] * 8, 4, links=FREE, global_batch=8)
    replicas = [(Replica((w,), 1),) for w in range(4)]
    plain = LayerPlan(tuple(Stage(2 * s, 2 * s + 1, replicas[s]) for s in range(4)), 8)
    stages = tuple(Stage(s, s, replicas[s % 4]) for s in range(8))
    both = LayerPlan(stages, 8, Schedule.INTERLEAVED)
    ideal = 8 * 2 * 3.0
    assert simulate(p, plain).step_s == pytest.approx(ideal * (1 + 3 / 8))
    assert simulate(p, both).step_s == pytest.approx(ideal * (1 + 3 / 16))
    assert simulate(p, both).step_s == reference(p, both).step_s


def test_activations_in_flight_are_those_of_the_schedule() -> None:
    """1F1B holds min(S - s, M) micro-batches, GPipe all of them."""
    p = tiny([1.0] * 4, 4, parameters=np.zeros((4, 2)), global_batch=8)
    for schedule, flight in ((Schedule.ONE_F_ONE_B, [4, 3, 2, 1]), (Schedule.GPIPE, [8] * 4)):
        plan = pipeline(p, 4, 8, schedule)
        assert judge(p, plan).held_bytes.tolist() == [20.0 * f for f in flight]
        for s in range(4):
            balance = np.cumsum([1 if w == "forward" else -1 for w, _, _ in order_of(plan, s)])
            assert balance.max() == flight[s]


def interleaved(p: LayerProblem, chunks: int, micro_batches: int) -> LayerPlan:
    """Two workers in turns, `chunks` stages each, of one layer."""
    both = ((Replica((0,), 1),), (Replica((1,), 1),))
    stages = tuple(Stage(i, i, both[i % 2]) for i in range(2 * chunks))
    return LayerPlan(stages, micro_batches, Schedule.INTERLEAVED)


def test_interleaved_stages_hold_what_their_order_has_in_flight() -> None:
    """At least the worker's own peak, and far less than as many stages of a plain pipeline."""
    p = tiny([1.0] * 8, 2, global_batch=16)
    plan = interleaved(p, 4, 16)
    order = order_of(plan, 0)
    most = np.cumsum([1 if what == "forward" else -1 for what, _, _ in order]).max()
    held = sum(in_flight(plan, s) for s in range(0, 8, 2))
    assert most == 9  # Megatron: 2 (P - 1) + (v - 1) P + 1
    assert most <= held < 8 + 6 + 4 + 2


def test_workers_of_interleaved_stages_do_one_thing_at_a_time() -> None:
    """They update the weights of all their stages when the last pass is over.

    Four layers of 8 elements, a tied pair on one worker, which sums their gradients itself.
    """
    p = tiny([1.0] * 4, 2, links=FREE, tied=((0, 2),), optimizer_s=[0.5], optimizer_fixed_s=[1.0])
    times = simulate(p, plan := interleaved(p, 2, 2))
    assert times.step_s == pytest.approx(times.passes_s + 2 * 8 * 0.5 + 1.0)
    for home in (0, 1):
        own = [x for x in times.spans if plan.stages[x.unit[0]].workers == (home,)]
        for one, other in pairwise(sorted(own, key=lambda x: x.start_s)):
            assert one.end_s <= other.start_s + 1e-9


def test_blocking_transfers_do_not_stop_interleaved_stages() -> None:
    """Their sends and receives are handed over together."""
    p = tiny([1.0] * 4, 2, global_batch=4, links=(Link.linear(10.0),))
    p = p.replace(training=Training(blocking_transfers=True))
    plan = interleaved(p, 2, 4)
    assert simulate(p, plan).step_s == reference(p, plan).step_s


def test_fewer_samples_than_were_measured_follow_the_first_slope() -> None:
    """2 s for two samples and 3 s for four: 1.5 s for one, not 1 s; never less per sample."""
    for times, expected in (([2.0, 3.0], 1.5), ([2.0, 5.0], 1.0)):
        table = np.array([[[[t] for t in times]] * 2])
        p = tiny([1.0], 1, sizes=np.array([2.0, 4.0]), forward_s=table, backward_s=table)
        assert pass_s(p, 0, 1, 1.0)[0][0] == pytest.approx(expected)


def test_overlapped_exchange_hides_behind_the_backward_pass() -> None:
    """Layer by layer: only what is left after the first layer's gradient shows."""
    p = tiny([1.0] * 4, 2, parameters=np.full((4, 2), 25.0), links=(Link.linear(100.0),))
    plan = build(p, (0, 1), [Cell(0, 3, 0, 2)], 1)
    assert plan is not None
    passes = 2 * 4 * 3.0
    assert simulate(p, plan).step_s == pytest.approx(passes + 1.0)
    late = p.replace(training=Training(overlap_sync=False))
    assert simulate(late, plan).step_s == pytest.approx(passes + 4.0)


def test_gradients_wait_until_they_fill_a_bucket() -> None:
    """Two layers fill one: the bucket of the first two is exchanged when all passes have ended."""
    p = tiny([1.0] * 4, 2, parameters=np.full((4, 2), 25.0), links=(Link.linear(100.0),))
    plan = build(p, (0, 1), [Cell(0, 3, 0, 2)], 1)
    assert plan is not None
    passes = 2 * 4 * 3.0
    two = p.replace(training=Training(bucket_bytes=200.0))
    assert simulate(two, plan).step_s == pytest.approx(passes + 2.0)
    odd = p.replace(training=Training(bucket_bytes=250.0))  # three layers, then one
    assert simulate(odd, plan).step_s == pytest.approx(passes + 1.0)


def test_an_exchange_takes_time_of_the_processor_that_computes() -> None:
    """The first bucket's 200 bytes leave and arrive during the passes, which take 0.4 s longer."""
    p = tiny([1.0] * 4, 2, parameters=np.full((4, 2), 25.0), links=(Link.linear(100.0),))
    plan = build(p, (0, 1), [Cell(0, 3, 0, 2)], 1)
    assert plan is not None
    busy = p.replace(send_s=[0.001], receive_s=[0.001], training=Training(bucket_bytes=200.0))
    assert simulate(busy, plan).step_s == pytest.approx(2 * 4 * 3.0 + 0.4 + 2.0)
    slow = busy.replace(send_s=[0.02], receive_s=[0.02])  # slower than the link
    assert simulate(slow, plan).step_s == pytest.approx(2 * 4 * 3.0 + 8.0 + 8.0)


def test_workers_that_share_a_machine_slow_each_other() -> None:
    """One of three takes 0.8 of the tables' times, all three take those; no bound is above."""
    p = tiny([1.0] * 4, 3, parameters=np.zeros((4, 2)), global_batch=6, alone=0.8)
    for workers, factor in ((1, 0.8), (2, 0.9), (3, 1.0)):
        plan = build(p, (0, 1, 2), [Cell(0, 3, 0, workers)], 1)
        assert plan is not None
        assert judge(p, plan).value == pytest.approx(factor * 6 / workers * 4 * 3.0)
        assert max(bounds(p).values()) <= judge(p, plan).value


def test_messages_of_a_pipeline_take_time_of_processors_at_both_ends() -> None:
    """Each end is busy for 0.05 s with a message: that is a part of the transfer, if it is so long.

    On a link that takes no time every stage and micro-batch takes two such messages longer.
    """
    busy = {"message_s": [0.04], "send_s": [0.001], "receive_s": [0.001]}
    for micro_batches in (1, 8):
        p = tiny([1.0, 1.0], 2, parameters=np.zeros((2, 2)), global_batch=micro_batches)
        plan = pipeline(p, 2, micro_batches, Schedule.ONE_F_ONE_B)
        if micro_batches == 1:
            assert simulate(p.replace(**busy), plan).step_s == pytest.approx(6.22)
        p = p.replace(links=(Link.linear(1e15),))
        found = simulate(p.replace(**busy), plan)
        assert found.step_s == pytest.approx((1 + micro_batches) * (3.0 + 2 * 0.05))


def test_uneven_shares_end_together() -> None:
    """A worker of half the speed gets half the samples; equal ones would wait for it."""
    fast = np.array([[[[1.0]]], [[[2.0]]]])
    p = tiny(
        [1.0],
        2,
        forward_s=fast,
        backward_s=fast,
        degrees=(1,),
        parameters=[[0.0]],
        output_bytes=[[1.0]],
        activation_bytes=[[1.0]],
        kind_names=("fast", "slow"),
        worker_kind=[0, 1],
        global_batch=6,
    )
    plan = build(p, (0, 1), [Cell(0, 0, 0, 2)], 1)
    assert plan is not None
    assert plan.stages[0].shares == (4, 2)
    assert judge(p, plan).value == pytest.approx(8.0)
    equal = LayerPlan((Stage(0, 0, (Replica((0,), 3), Replica((1,), 3))),))
    assert judge(p, equal).value == pytest.approx(12.0)


def test_blocking_transfers_keep_both_ends_busy() -> None:
    """A transfer of a second each way, two stages, two micro-batches, by hand."""
    p = tiny([1.0, 1.0], 2, links=(Link.linear(10.0),), global_batch=2)
    plan = pipeline(p, 2, 2, Schedule.ONE_F_ONE_B)
    assert simulate(p, plan).step_s == pytest.approx(1 + 1 + 3 + 3 + 1 + 2)
    blocking = p.replace(training=Training(blocking_transfers=True))
    assert simulate(blocking, plan).step_s > simulate(p, plan).step_s
    eager = p.replace(training=Training(blocking_transfers=True, eager_bytes=100.0))
    assert simulate(eager, plan).step_s <= simulate(blocking, plan).step_s


def test_an_eager_sender_does_not_wait_for_its_message() -> None:
    """One replica sends to two: slowly but buffered, then to one that has to meet it."""
    one, long = np.array([1.0]), ReplicaCosts(np.array([20.0]), np.array([1.0]))
    stages = (
        Stage(0, 0, (Replica((0,), 6),)),
        Stage(1, 1, (Replica((1,), 1), Replica((2,), 5))),
    )
    cut = (StageTransfer(0, 0, 1, 10.0, 0.5, True, True), StageTransfer(0, 1, 5, 1.0, 0.5))
    costs = ((long,), (ReplicaCosts(one, one),) * 2)
    net = Network(LayerPlan(stages, 2), costs, (cut,), (0, 1), True)
    starts = [
        {span.label: span.start_s for span in kind(net, True).run().spans if span.unit == (0, 0)}
        for kind in (_StageWalk, Events)
    ]
    assert starts[0] == starts[1]
    assert starts[0]["forward 1"] == 21.0  # after its pass and the transfer that it meets


@pytest.mark.parametrize(
    ("zero", "held", "expected"),
    [
        (3, (8.0, 8.0), 24.0 + 2 * 0.3 + 0.7),  # twice all weights, once all gradients
        (2, (8.0, 8.0), 24.0 + 0.3 + 0.7),  # weights stay from the forward pass on
        (3, (8.0, 0.0), 18.0 + 2 * 0.1 + 0.3),  # nobody waits before a layer without weights
    ],
)
def test_replicas_wait_for_each_other_where_layers_are_sharded(
    zero: int, held: tuple[float, float], expected: float
) -> None:
    """Each layer takes what it takes on the worker that is slower there; nothing overlaps."""
    forward = np.array([[1.0, 2.0], [2.0, 1.0]])[:, None, None, :]
    p = tiny(
        [1.0, 1.0],
        2,
        degrees=(1,),
        forward_s=forward,
        backward_s=2 * forward,
        parameters=np.array(held)[:, None],
        output_bytes=np.full((2, 1), 10.0),
        activation_bytes=np.full((2, 1), 20.0),
        kind_names=("a", "b"),
        worker_kind=np.array([0, 1]),
        links=FREE,
        gather_s=np.array([0.1, 0.2]),
        scatter_s=np.array([0.3, 0.4]),
        training=Training(shards_wait=True),
    )
    both = (Replica((0,), 2), Replica((1,), 2))
    plan = LayerPlan((Stage(0, 1, both, zero_stage=zero),))
    assert simulate(p, plan).step_s == pytest.approx(expected)
    assert simulate(p, plan).step_s == reference(p, plan).step_s


@pytest.mark.parametrize(("zero", "longer_s"), [(1, 4.0), (2, 0.0), (3, 4.0)])
def test_zero_sends_gradients_and_weights_as_often_as_its_stage_needs(
    zero: int, longer_s: float
) -> None:
    """Two replicas with halves of 800 bytes, 100 bytes/s: 4 s for each time around the ring.

    Stage 1 gathers updated weights beside an all-reduce, stage 2 instead of half of it; stage 3
    scatters gradients and gathers weights for both passes.
    """
    p = tiny([1.0, 1.0], 2, parameters=np.full((2, 2), 100.0))
    p = p.replace(links=(Link.linear(100.0),), training=Training(overlap_sync=False))
    both = (Replica((0,), 1), Replica((1,), 1))
    plans = [LayerPlan((Stage(0, 1, both, zero_stage=z),)) for z in (0, zero)]
    plain, sharded = (simulate(p, plan) for plan in plans)
    assert sharded.step_s == pytest.approx(reference(p, plans[1]).step_s)
    assert sharded.step_s - plain.step_s == pytest.approx(longer_s)
    sent = [span.label for span in sharded.spans].count("updated weights")
    assert sent == (2 if zero < 3 else 0)


@pytest.mark.parametrize(
    ("busy", "blocking", "taken", "longer"),
    [
        (9.0, False, 1.0, 1.0),  # the card is free again before anybody's next message
        (1.5, False, 2.0, 0.0),  # it is never free
        (0.5, True, 1.5, 0.5),  # a blocked worker computes half a second while others send
    ],
)
def test_replicas_on_one_node_take_turns_at_its_card(
    busy: float, blocking: bool, taken: float, longer: float
) -> None:
    """Two pipelines from node to node: a message alone takes a second, two at once two."""
    p = tiny(
        [1.0, 1.0],
        4,
        2,
        links=(Link.linear(1e9), Link.linear(10.0, 0.0, 10.0)),
        link_index=np.array([[0, 1], [1, 0]]),
        training=Training(blocking_transfers=blocking),
    )
    stages = tuple(Stage(s, s, (Replica((2 * s,), 1), Replica((2 * s + 1,), 1))) for s in range(2))
    found = transfers(p, LayerPlan(stages, 2), 0, busy)
    assert [(t.forward_s, t.backward_s, t.together_s) for t in found] == [
        (taken, taken, longer)
    ] * 2


def test_only_activations_of_the_warm_up_are_sent_by_all_replicas_at_once() -> None:
    """The first micro-batch's message takes two seconds, later ones and gradients one."""
    p = tiny(
        [4.0, 4.0],
        4,
        2,
        links=(Link.linear(1e9), Link.linear(10.0, 0.0, 10.0)),
        link_index=np.array([[0, 1], [1, 0]]),
    )
    stages = tuple(Stage(s, s, (Replica((2 * s,), 1), Replica((2 * s + 1,), 1))) for s in range(2))
    messages = simulate(p, LayerPlan(stages, 2)).messages
    taken = {(m.label, round(m.end_s - m.start_s, 6)) for m in messages}
    ahead = {("forward 0 to stage 1", 2.0), ("forward 1 to stage 1", 1.0)}
    assert taken == ahead | {(f"backward {m} to stage 0", 1.0) for m in range(2)}
