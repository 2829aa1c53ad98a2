"""The program in plain loops and in HiGHS, solved by scipy too; scaled times for solvers."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.planning.contract import Context
from placewright.samples.flow_program import Master, Moves, all_moves, in_units, program_of
from placewright.samples.judge import judge
from placewright.samples.planners import planners
from placewright.samples.problem import SampleProblem
from tests.samples.clouds import cloud
from tests.samples.reference import reference
from tests.samples.tiny import best_of, random_tiny, tiny


@pytest.mark.parametrize("seed", range(48))
def test_every_column_is_the_whole_program(seed: int) -> None:
    """All modes and limits: the same value; samples in the wrong place only where nothing fits."""
    problem = cloud(seed)
    master = Master(program_of(problem))
    master.add(all_moves(problem))
    assert master.solve(np.inf)
    expected = reference(problem).value_s()
    if np.isinf(expected):
        assert master.missing > 1e-6
    else:
        assert master.missing < 1e-6
        assert master.value_s == pytest.approx(expected, rel=1e-7)


def test_columns_in_two_helpings_are_columns_at_once() -> None:
    """The master goes on where it was; what it says of flows is in the order of the columns."""
    problem = cloud(1)
    every = all_moves(problem)
    first = np.arange(len(every)) % 3 == 0
    master = Master(program_of(problem))
    master.add(every.where(first))
    assert master.solve(np.inf)
    before_s = master.value_s
    master.add(every.where(~first))
    assert master.solve(np.inf)
    assert master.value_s == pytest.approx(reference(problem).value_s(), rel=1e-7)
    assert master.value_s <= before_s
    assert len(master.flow()) == len(master.moves) == len(every)
    assert moved(master.moves, master.flow()) <= problem.samples.sum()


def moved(moves: Moves, flow: np.ndarray) -> float:
    """Samples that leave any node."""
    return float(flow[moves.source != moves.target].sum())


TIMES = ("seconds_per_sample", "fixed_s", "send_s", "receive_s", "price_s", "sync_s")


@pytest.mark.parametrize("factor", [1e-300, 1e-7, 1.0, 3e5, 1e14])
def test_a_unit_is_a_power_of_two(factor: float) -> None:
    """Each time is the same number of units, to the last bit; a sample takes about one."""
    problem = faster(random_tiny(3), factor)
    scaled, units = in_units(problem)
    assert np.frexp(units)[0] == 0.5
    assert 1 / 16 < np.median(scaled.work_s) < 16
    assert (units == 1.0) == (factor == 1.0)
    for key in TIMES:
        assert np.array_equal(getattr(scaled, key), getattr(problem, key) * units)


def test_where_nothing_takes_time_links_say_the_unit() -> None:
    """And seconds do where they do not either."""
    pair = np.where(np.eye(2, dtype=bool), np.inf, 1e-6)
    idle = tiny([3, 1], seconds_per_sample=np.zeros(2), send_s=pair)
    assert 0.2 < in_units(idle)[0].send_s[0, 1] < 5
    free = np.where(np.eye(2, dtype=bool), np.inf, 0.0)
    assert in_units(idle.replace(send_s=free, receive_s=free))[1] == 1.0


@pytest.mark.parametrize("name", ["lp", "ilp"])
@pytest.mark.parametrize("factor", [1e-6, 1e-9])
def test_bounds_hold_and_meet_where_times_are_tiny(factor: float, name: str) -> None:
    """Against the best of all plans, a microsecond a sample and less."""
    for seed in range(16):
        problem, best = faster(random_tiny(seed), factor), best_of(seed) * factor
        try:
            proposal = planners(problem)[name](problem, Context())
        except InfeasibleError:
            assert np.isinf(best)
            continue
        assert proposal.bound <= best * (1 + 1e-12)
        if name != "lp":
            assert judge(problem, proposal.plan).value == pytest.approx(best, rel=2e-4)


def test_branching_proves_no_more_than_there_is() -> None:
    """Reduced costs of a hundred nanoseconds are none to a solver that counts in seconds."""
    rng = np.random.default_rng(5)
    n = 6
    pair = rng.uniform(0.5e-7, 2e-7, (n, n))
    np.fill_diagonal(pair, np.inf)
    problem = tiny(
        rng.integers(200, 20_000, n),
        seconds_per_sample=rng.uniform(0.5e-7, 4e-7, n),
        send_s=pair,
        receive_s=pair,
    )
    known = planners(problem)
    lp = known["lp"](problem, Context())
    ilp = known["ilp"](problem, Context())
    value_s = min(judge(problem, found.plan).value for found in (lp, ilp))
    assert 0.99 * value_s <= ilp.bound <= value_s


def faster(problem: SampleProblem, factor: float) -> SampleProblem:
    """Everything takes `factor` times as long."""
    return problem.replace(**{key: getattr(problem, key) * factor for key in TIMES})
