"""The master with all columns against the program in plain loops, solved by scipy."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.samples.relaxation.program import Master, Moves, all_moves, program_of
from tests.samples.relaxation.clouds import cloud
from tests.samples.relaxation.reference import reference


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
