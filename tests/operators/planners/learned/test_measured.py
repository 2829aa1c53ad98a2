"""Learning from measured runs: rehearsal, error bars, refusals, the last trial in turns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from placewright.errors import InputError, UnknownNameError, UnsupportedError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.conformance import tiny
from placewright.operators.planners.learned.planner import Estimate
from placewright.operators.problem import OperatorProblem
from placewright.planning.solving import compare, solve


class Engine:
    """Takes what `truth` says, and `hurried` for a placement the first time it is measured."""

    def __init__(self, truth: IntArray, hurried: float = 0.0) -> None:
        self.truth, self.hurried = truth, hurried
        self.known: dict[bytes, Estimate] = {}
        self.refused: dict[bytes, str] = {}
        self.repeated, self.turns = 0, 0

    def seconds(self, place: IntArray) -> float:
        """Most operators where `truth` has them take least."""
        return 2.0 - float((place == self.truth).mean())

    def __call__(self, placements: IntArray) -> FloatArray:
        """Seconds of rows; what begins elsewhere than `truth` is refused."""
        found = []
        for place in placements:
            key = place.astype(np.int64).tobytes()
            if key in self.known:
                self.repeated += 1
            elif place[0] != self.truth[0]:
                self.known[key], self.refused[key] = Estimate(np.inf, np.inf, 0), "refused"
            else:
                lucky = self.hurried if len(set(place.tolist())) > 1 else 0.0
                self.known[key] = Estimate(self.seconds(place) - lucky, 0.01, 5)
            found.append(self.known[key].median_s)
        return np.array(found)

    def in_turns(
        self, placements: Sequence[IntArray], rounds: int, deadline_s: float = 0.0
    ) -> list[list[float]]:
        """Without luck."""
        self.turns += rounds
        return [[self.seconds(place)] * rounds for place in placements]


def four() -> OperatorProblem:
    """Four operators on two equal devices."""
    return tiny([[1.0, 1.0]] * 4)


@pytest.mark.parametrize(
    "planner", ["post", "hp3c", "hsdag", "doppler", "random-search", "local-search"]
)
def test_runs_decide_and_not_the_judge(planner: str) -> None:
    """A placement that the judge thinks bad is returned where it is fastest when executed."""
    truth = np.array([0, 1, 0, 1])
    engine = Engine(truth)
    choice: dict[str, object] = {"name": planner, "reward": "measured", "samples": 80}
    if planner != "random-search":
        choice["rehearsal"] = 24
    result = solve(four(), choice, measure=engine)
    assert engine.seconds(result.plan.placement) <= engine.seconds(np.zeros(4, dtype=np.int64))
    if planner in ("post", "random-search", "local-search"):
        assert result.plan.placement.tolist() == truth.tolist()
        assert "times as fast as the best trivial plan" in result.candidates[0].note
    assert "refused" in result.candidates[0].note
    assert engine.turns > 0


def test_the_luck_of_a_first_measurement_is_not_returned() -> None:
    """Every split looks faster than it is; in turns the single device wins."""
    engine = Engine(np.zeros(4, dtype=np.int64), hurried=1.5)
    result = solve(four(), "random-search(reward=measured, samples=20)", measure=engine)
    assert result.plan.placement.tolist() == [0, 0, 0, 0]


def test_nothing_to_run_is_refused_by_name() -> None:
    """Without an engine, for throughput, and where nothing runs."""
    with pytest.raises(UnsupportedError, match="nothing to run") as error:
        solve(four(), "post(reward=measured)")
    assert "hsdag" not in str(error.value)
    assert "leave reward out" in str(error.value)
    engine = Engine(np.zeros(4, dtype=np.int64))
    stream = four().replace(objective="throughput")
    with pytest.raises(UnsupportedError, match="objective"):
        solve(stream, "post(reward=measured)", measure=engine)
    with pytest.raises(UnsupportedError, match="could be executed"):
        solve(four(), "random-search(reward=measured)", measure=Engine(np.full(4, 7)))


def test_a_planner_without_the_parameter_says_so() -> None:
    """Rules are not rewarded at all."""
    with pytest.raises(UnknownNameError, match="reward"):
        compare(four(), ["heft(reward=measured)"])
    with pytest.raises(InputError, match="'judge', 'measured'"):
        compare(four(), ["post(reward=runs)"])
