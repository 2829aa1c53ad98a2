"""Transfer: a policy trained on other graphs that places an unseen one in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.judge import OperatorJudge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.learned.planner import Schema, check_parameters, load_parameters
from placewright.operators.planners.lists.insertion import (
    Setup,
    list_schedule,
    mean_downward_rank,
    mean_upward_rank,
    optimistic_costs,
    priority_sequence,
    set_up,
)
from placewright.operators.planners.lists.planners import HEFT, HEFT_CONTENDED
from placewright.operators.planners.placements import Score
from placewright.operators.planners.sequences.search import (
    OrderSearch,
    SequenceWindows,
    dispatches,
    fully_linked,
    start_order,
)
from placewright.operators.problem import Links, Objective, OperatorProblem, Overlap, pairwise_only
from placewright.planning.contract import Context

FEATURES = 12
HIDDEN = 16
HEADS = 4
ROUNDS = 2
LARGE = 1200
"""Operators above which the walk becomes shorter, to keep the whole below 100 ms at 2,000."""

SHORT = SequenceWindows(largest=128, moves=256, late=True)
"""Windows of a walk that is over before it has been everywhere: more of them, small and cheap."""

PARAMETERS = Path(__file__).with_name("transfer.safetensors")
SCHEMA = Schema("transfer", "transfer 1", f"hidden {HIDDEN}, rounds {ROUNDS}, heads {HEADS}")


class Setting(NamedTuple):
    """Parameters of a decoding, the same for every operator; the network's outputs are not.

    Attributes
    ----------
    ahead
        Weight of the optimistic cost of what follows (PEFT's table) in the choice of a device.
    price
        Factor on transfers while devices are chosen; above one, fewer tensors move.
    ranked
        Factor on transfers in the upward rank.
    trust
        Factor on the network's outputs; 0 for a schedule without them.
    """

    ahead: float
    price: float
    ranked: float
    trust: float = 1.0


GRID = (
    Setting(0.5, 1.0, 1.0, trust=0.0),
    Setting(1.0, 1.0, 1.0, trust=0.0),
    Setting(0.0, 1.0, 1.0),
    Setting(0.5, 1.0, 3.0),
    Setting(0.0, 4.0, 1.0),
)
"""Settings that are decoded first: some without the network is better than all with it."""


@final
@dataclass(frozen=True, slots=True)
class Transfer:
    """A message-passing network guides a list scheduler; a short walk from the best ends it.

    The network reads an operator's mean time, ranks, slack, degrees, transfers, and how devices
    differ, passes messages along and against tensors twice, and returns four numbers per operator:
    a factor on its priority, a weight of PEFT's table, a price on the transfers of what it makes,
    a weight of its own time on a device. The compiled insertion scheduler of HEFT, which books
    channels where transfers wait, decodes that with a grid of settings, then with priorities and
    settings drawn around the best one's; the judge values each, single devices and HEFT's plans.

    From the best one `Search`'s annealing on sequences walks a fixed number of moves. No answer is
    worse than a single device or HEFT.

    Parameters come from imitation of long searches on generated graphs, which is
    ``benchmarks/train_transfer.py``: whether a tensor stays on its device, and whether an operator
    is on its fastest one. Inference is numpy: no torch.
    O(decodings (n + e) m + walk), and the number of decodings falls with n.

    Parameters
    ----------
    decoded
        Operators placed by list schedules in all.
    most
        List schedules, at most.
    spread
        Spread of the logarithms of priorities and settings that are drawn.
    walk
        Operators and uses of tensors decoded along the walk, in pairs, fewer above `LARGE`
        operators; 0 for none.
    heat
        First temperature of the walk, in mean operator times.
    checkpoint
        Parameters, those shipped by default.
    """

    name: ClassVar[str] = "transfer"
    on_request: ClassVar[bool] = True
    decoded: int = 5_000
    most: int = 20
    spread: float = 0.15
    walk: float = 5e6
    heat: float = 0.015
    checkpoint: str = ""

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Makespans over links, plans that need not be contiguous."""
        if problem.contiguous or problem.objective is not Objective.LATENCY:
            return "places for the makespan, and does not keep plans contiguous"
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The best plan met; raises `InfeasibleError`: links that no schedule can use."""
        decoder = PolicyDecoder(problem)
        parameters, _ = load_parameters(self.checkpoint or PARAMETERS, SCHEMA)
        check_parameters(parameters, shapes(), self.name)
        decoder.guide(parameters)
        count = min(self.most, max(len(GRID), self.decoded // problem.n))
        rng = np.random.default_rng(context.seed)
        for setting, noise in proposals(decoder, count, self.spread, rng):
            decoder.decode(setting, noise)
            if context.remaining_s() <= 0:
                break
        decoder.offer_single_devices()
        for planner in (HEFT, HEFT_CONTENDED):
            try:
                if planner.unsupported_reason(problem) is None:
                    decoder.offer(planner(problem, Context()))
            except InfeasibleError:
                continue
        if decoder.best is None:
            raise InfeasibleError(
                "no list schedule and no single device has a link for every tensor",
                where=problem.name,
                hint="add links, or try another planner",
            )
        if self.walk > 0 and context.remaining_s() > 0:
            work = self.walk * min(1.0, LARGE / problem.n)
            decoder.walk(decoder.best, work, self.heat, context.seed)
        return decoder.best


def proposals(
    decoder: PolicyDecoder, count: int, spread: float, rng: np.random.Generator
) -> Iterator[tuple[Setting, FloatArray]]:
    """The grid, then settings and priorities around the best so far, every other one."""
    none = np.zeros(decoder.problem.n)
    for setting in GRID[:count]:
        yield setting, none
    for turn in range(count - len(GRID)):
        setting, noise = decoder.chosen
        size = spread * (1.0, 0.3)[turn % 2]
        factor = np.exp(size * 2 * rng.standard_normal(3))
        ahead = setting.ahead * factor[0] + 0.1 * size * rng.standard_normal()
        near = Setting(
            max(0.0, ahead), setting.price * factor[1], setting.ranked * factor[2], setting.trust
        )
        yield near, noise + size * rng.standard_normal(decoder.problem.n)


class PolicyDecoder:
    """Decodes list schedules of one problem, judges them and keeps the best plan.

    `best`, `score`: the best plan so far and its score.
    `chosen`: setting and noise of the best decoding so far.
    """

    def __init__(self, problem: OperatorProblem) -> None:
        self.problem, self.judge, self.setup = problem, OperatorJudge(problem), set_up(problem)
        self.contended = problem.links is Links.CONTENDED
        costs, allowed = self.setup.costs, self.setup.allowed
        self.ahead_s = optimistic_costs(costs, costs.compute_s)
        least = np.where(allowed, problem.compute_s, np.inf).min(axis=1)[:, None]
        self.own_s = np.where(allowed, problem.compute_s - least, 0.0)
        self.features, self.uses = features(self.setup), uses(problem)
        self.heads = np.zeros((problem.n, HEADS))
        self.rules = self.setup.rules(np.array(problem.memory_bytes))
        self.position = problem.topology.position
        self.forget()

    def guide(self, parameters: Mapping[str, Any]) -> None:
        """Compute the network's outputs for every operator."""
        self.heads = network(self.features, self.uses, parameters)

    def forget(self) -> None:
        """Forget all plans."""
        self.best: OperatorPlan | None = None
        self.score = Score(np.inf, np.inf)
        self.chosen: tuple[Setting, FloatArray] = (GRID[0], np.zeros(self.problem.n))
        self.chosen_score = Score(np.inf, np.inf)

    def decode(self, setting: Setting, noise: FloatArray) -> Score:
        """List schedule under a setting; `noise` is added to the logarithms of priorities."""
        setup, (priority, ahead, price, own) = self.setup, setting.trust * self.heads.T
        costs = setup.costs._replace(
            latency_s=setup.costs.latency_s * setting.price,
            tensor_bytes=setup.costs.tensor_bytes
            * np.exp(price)[self.problem.tensor_producer]
            * setting.price,
        )
        latency_s = setup.mean_latency_s * setting.ranked
        per_byte = setup.mean_seconds_per_byte * setting.ranked
        rank = mean_upward_rank(setup.costs, setup.mean_compute_s, latency_s, per_byte)
        sequence = priority_sequence(setup.costs, -rank * np.exp(0.5 * priority + noise))
        later_s = np.full_like(self.ahead_s, np.inf)  # a dead end stays one, whatever its weight
        known = np.isfinite(self.ahead_s)
        np.multiply(setting.ahead * np.exp(ahead)[:, None], self.ahead_s, out=later_s, where=known)
        channels = (len(self.problem.channel_names) or None) if self.contended else None
        place, start_s, end_s = list_schedule(
            costs, self.rules, sequence, later_s + 0.5 * own[:, None] * self.own_s, channels
        )
        if place.min() < 0:
            return Score(np.inf, np.inf)
        order = np.lexsort((self.position, end_s, start_s))
        score = min(self._judged(place, order), self._judged(place, None))
        if score < self.chosen_score:
            self.chosen, self.chosen_score = (setting, noise), score
        return score

    def offer_single_devices(self) -> None:
        """Judge everything on each device that can run it."""
        devices = np.flatnonzero(self.problem.allowed().all(axis=0))
        if len(devices):
            rows = np.repeat(devices[:, None], self.problem.n, axis=1)
            for row, value, over in zip(rows, *self.judge.many(rows), strict=True):
                self._keep(OperatorPlan(row), Score(float(over), float(value)))

    def offer(self, plan: OperatorPlan) -> None:
        """Judge another planner's plan."""
        values, over = self.judge.many(plan.placement[None], plan.order, plan.dispatch)
        self._keep(plan, Score(float(over[0]), float(values[0])))

    def walk(self, start: OperatorPlan, work: float, heat: float, seed: int) -> None:
        """Anneal sequences from a plan, where all devices are linked and work in parallel."""
        problem = self.problem
        serial = problem.overlap is Overlap.SERIAL
        if serial or problem.m < 2 or self.score.over_bytes > 0 or not fully_linked(problem):
            return
        orders = OrderSearch(problem, self.setup.groups, SHORT)
        sequence = start_order(self.judge(start))
        work *= 2 * problem.n / (problem.n + len(self.uses.source))
        end = orders.improve(
            sequence,
            np.array(start.placement),
            moves=orders.moves(work),
            heat=heat,
            seed=seed,
        )
        for plan in dispatches(end.place, end.sequence):
            self.offer(plan)

    def _judged(self, place: IntArray, order: IntArray | None) -> Score:
        values, over = self.judge.many(place[None], order)
        score = Score(float(over[0]), float(values[0]))
        self._keep(OperatorPlan(place, order), score)
        return score

    def _keep(self, plan: OperatorPlan, score: Score) -> None:
        if score < self.score and np.isfinite(score.value_s):
            self.best, self.score = plan, score


class Uses(NamedTuple):
    """Uses of tensors: producer and consumer, and how many each operator has of both."""

    source: IntArray
    target: IntArray
    read: FloatArray
    made: FloatArray


def uses(problem: OperatorProblem) -> Uses:
    """The edges that messages go along."""
    source = problem.consumed_from
    read = np.bincount(problem.consumers, minlength=problem.n).astype(np.float64)
    made = np.bincount(source, minlength=problem.n).astype(np.float64)
    return Uses(source, np.array(problem.consumers), read, made)


def features(setup: Setup) -> FloatArray:
    """Shape (n, FEATURES): columns without units, alike for graphs of every size and speed."""
    problem, mean_s = setup.problem, setup.mean_compute_s
    means = (setup.mean_latency_s, setup.mean_seconds_per_byte)
    up = mean_upward_rank(setup.costs, mean_s, *means)
    down = mean_downward_rank(setup.costs, mean_s, *means)
    path_s, typical_s = max(float(up.max()), 1e-300), max(float(mean_s.mean()), 1e-300)
    edges = uses(problem)
    moved_s = setup.mean_latency_s + problem.tensor_bytes * setup.mean_seconds_per_byte
    each_s = moved_s[problem.consumed]
    in_s = np.bincount(edges.target, each_s, problem.n)
    out_s = np.bincount(edges.source, each_s, problem.n)
    finite = np.where(setup.allowed, problem.compute_s, 0.0)
    spread = finite.max(axis=1) / np.maximum(
        np.where(setup.allowed, finite, np.inf).min(axis=1), 1e-300
    )
    ones = np.ones(problem.n)
    return np.stack(
        [
            np.log1p(mean_s / typical_s),
            up / path_s,
            down / path_s,
            1.0 - (up + down) / path_s,
            np.log1p(edges.read),
            np.log1p(edges.made),
            np.log1p(in_s / typical_s),
            np.log1p(out_s / typical_s),
            np.log1p(np.minimum(spread, 1e6)) - np.log(2.0),
            ones * np.log1p(mean_s.sum() / path_s / problem.m),
            ones * np.log(problem.m) / 2,
            ones,
        ],
        axis=1,
    )


def network(rows: FloatArray, edges: Uses, parameters: Mapping[str, Any]) -> FloatArray:
    """Shape (n, HEADS), each within (-1, 1): messages along and against edges, then the heads."""
    state = np.tanh(_product(rows, parameters["inputs"]))
    into, out = np.maximum(edges.read, 1)[:, None], np.maximum(edges.made, 1)[:, None]
    for turn in range(ROUNDS):
        before = _sums(state[edges.source], edges.target, len(rows)) / into
        after = _sums(state[edges.target], edges.source, len(rows)) / out
        weights = parameters[f"round{turn}"]
        state = np.tanh(_product(np.concatenate([rows, state, before, after], axis=1), weights))
    return np.tanh(_product(np.concatenate([rows, state], axis=1), parameters["heads"]))


def shapes() -> dict[str, tuple[int, int]]:
    """Shapes of the network's parameters."""
    width = FEATURES + 3 * HIDDEN
    inner = {f"round{turn}": (width, HIDDEN) for turn in range(ROUNDS)}
    return {"inputs": (FEATURES, HIDDEN), **inner, "heads": (FEATURES + HIDDEN, HEADS)}


def _product(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Matrix product in one thread: waking those of a BLAS library takes ten times as long."""
    product: FloatArray = np.einsum("ij,jk->ik", rows, weights)
    return product


def _sums(rows: FloatArray, at: IntArray, count: int) -> FloatArray:
    """Rows added up by number."""
    total = [np.bincount(at, column, count) for column in rows.T]
    return np.stack(total, axis=1)
