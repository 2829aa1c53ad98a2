"""Column generation from few columns against the complete program."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.samples.balance import FlowState
from placewright.samples.bounds import Relaxation, merged, relaxation
from placewright.samples.column_generation import TOLERANCE, Generated, generate_columns
from placewright.samples.flow_program import ALLOWED, FlowProgram, Moves, program_of
from placewright.samples.problem import Batches, SampleProblem, generate
from tests.samples.clouds import cloud
from tests.samples.reference import reference
from tests.samples.tiny import tiny


@pytest.mark.parametrize("seed", range(36))
def test_few_columns_become_enough(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound, optimum and value in this order, and as near as was asked; or nothing fits."""
    monkeypatch.setattr("placewright.samples.bounds.FEW_MOVES", 0)
    problem = cloud(seed)
    expected = reference(problem).value_s()
    if np.isinf(expected):  # half of what the judge allows a mix was too little
        expected = reference(problem, ALLOWED).value_s()
    if np.isinf(expected):
        with pytest.raises(InfeasibleError, match="samples are in the wrong place"):
            relaxation(problem)
        return
    relaxed = relaxation(problem)
    assert relaxed.finished
    assert relaxed.lower_bound_s <= expected * (1 + 1e-9)
    assert expected * (1 - 1e-6) <= relaxed.value_s
    if np.isinf(problem.label_mix):  # else the bound grants a sample more than the program
        assert relaxed.value_s <= relaxed.lower_bound_s * (1 + TOLERANCE) * (1 + 1e-7)


@pytest.mark.parametrize("seed", range(36))
def test_the_clock_finds_the_fractional_plan_balanced(seed: int) -> None:
    """By it nobody ends after the times whose sum the program made least."""
    problem = cloud(seed, "label_mix", "price_s")
    try:
        relaxed = relaxation(problem)
    except InfeasibleError:
        return
    p = relaxed.problem
    flow = np.zeros((p.n, p.n))
    np.add.at(flow, (relaxed.moves.source, relaxed.moves.target), relaxed.flow)
    times_s = relaxed.value_s - p.epochs * p.sync_s
    last_s = ends(p, flow, relaxed)
    assert last_s <= times_s * (1 + 1e-6)
    if program_of(p).times == 1 and p.batches is Batches.PROPORTIONAL:
        assert last_s == pytest.approx(times_s, rel=1e-6)


def ends(p: SampleProblem, flow: np.ndarray, relaxed: Relaxation) -> float:
    """When the last node ends, by the relaxation's clock."""
    used = np.where(flow > 0, flow, 0.0)
    state = FlowState(
        p,
        used,
        p.held + used.sum(axis=0) - used.sum(axis=1),
        used.sum(axis=1),
        np.where(used > 0, used * np.where(used > 0, p.send_s, 0.0), 0.0).sum(axis=1),
        np.where(used > 0, used * np.where(used > 0, p.receive_s, 0.0), 0.0).sum(axis=0),
    )
    return state.last_s(relaxed.clock)


def test_classes_that_do_not_matter_are_one() -> None:
    """And stay apart where a mix, or a relay with protected samples, tells them apart."""
    plain = tiny(np.full((4, 2), 9), keep=np.full((4, 2), 2), fixed_s=np.arange(4.0))
    one = merged(plain)
    assert one.samples.tolist() == [[18]] * 4
    assert one.keep.tolist() == [[4]] * 4
    mixed = plain.replace(label_mix=0.3)
    assert merged(mixed) is mixed
    relayed = plain.replace(relay=True)
    assert merged(relayed) is relayed
    assert relaxation(plain).value_s == pytest.approx(reference(plain).value_s(), rel=1e-3)


def test_what_is_cut_short_still_bounds_and_goes_on_when_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A deadline in the past leaves a true bound; later it goes on with the columns it had."""
    problem = generate("heavy", 90, 2)
    cut = relaxation(problem, time.perf_counter() - 1.0)
    assert len(cut.flow) == len(cut.moves)
    assert relaxation(problem, time.perf_counter() - 1.0) is cut
    begun_with = []

    def noted(program: FlowProgram, moves: Moves, *arguments: Any, **options: Any) -> Generated:
        begun_with.append(len(moves))
        return generate_columns(program, moves, *arguments, **options)

    monkeypatch.setattr("placewright.samples.bounds.generate_columns", noted)
    whole = relaxation(problem)
    assert begun_with == [len(cut.moves)]
    assert whole.finished
    assert cut.lower_bound_s <= whole.lower_bound_s <= whole.value_s
    assert relaxation(problem) is whole


def test_what_is_kept_does_not_hold_the_problem() -> None:
    """Nor does the proof that there is no plan."""
    fits = tiny([5, 1])
    full = tiny([[40, 0], [0, 40]], keep=np.array([[40, 0], [0, 40]]), label_mix=0.1)
    relaxation(fits)
    for _ in range(2):
        with pytest.raises(InfeasibleError):
            relaxation(full)
    gone = [weakref.ref(fits), weakref.ref(full)]
    del fits, full
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_links_that_no_solver_can_count_are_left_out() -> None:
    """HiGHS refused their columns, and flows had fewer entries than moves."""
    slow = np.array([[np.inf, 1e200, 0.05], [0.05, np.inf, 0.05], [0.05, 0.05, np.inf]])
    found = relaxation(tiny([9, 0, 0], send_s=slow))
    assert len(found.flow) == len(found.moves) == 1  # from the only node that has samples
    without = np.where(slow < 1, slow, np.inf)
    assert found.lower_bound_s == pytest.approx(
        relaxation(tiny([9, 0, 0], send_s=without)).lower_bound_s
    )
