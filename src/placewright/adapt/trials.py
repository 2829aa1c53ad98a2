"""Plan trials: candidates executed in turns until it is known which one is the fastest.

The predicted difference between good plans is smaller than the prediction error, so the last choice
between them is measured. Turns come in rounds, every second one in the opposite order, so that a
machine that becomes faster or slower meanwhile favours no candidate. After a round the candidates
drop out that are too slow; rounds end when one is left or another round does not pay.

`SuccessiveElimination` serves a run: every step trains, whatever plan executes it, so that a trial
costs only the moves and what a candidate is slower than the best one. `ShortTrials` serves the
choice before a run, where no step trains: short turns, few rounds.

Step times of several candidates, measured in turns: how far one is behind, and how surely.

Everything is in logarithms: differences are relative. A candidate's time is the median of its
steps. The error of a median comes from the scatter of steps within a turn and from that of the
turns of one candidate, whichever is larger: a machine that is busy for a second slows whole turns.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from placewright.adapt.device_factors import MEDIAN_ERROR, SIGMA_PER_MAD
from placewright.errors import WorkerError
from placewright.numerics.arrays import FloatArray

Plan = TypeVar("Plan")

WARM_UP_STEPS = 2
"""Steps after a plan came into force that do not count: caches and buffers are new."""


class PlanTrials(ABC):
    """The order of turns; subclasses decide who drops out, when rounds end and who is best.

    Drive it with `took` after every step and `next` after every turn.

    Attributes
    ----------
    current
        Index of the candidate in force; 0 at first.
    times
        Step times of every candidate.
    left
        Candidates that have not dropped out.
    round
        From 1.
    """

    least_steps: int
    most_steps: float
    turn_s: float
    """Measured steps of a turn: at least `least_steps`, then until `turn_s` seconds are measured
    or `most_steps` are done."""
    warm_up_steps = WARM_UP_STEPS

    def __init__(self, count: int) -> None:
        self.current, self.round = 0, 1
        self.candidates = range(count)
        self.times = StepTimes(count)
        self.left = list(self.candidates)
        self._due = self.left[1:]
        self._turn: list[float] = []
        self._cold = self.warm_up_steps

    def took(self, seconds: float) -> bool:
        """Add a step of the candidate in force; whether its turn is over."""
        if self._cold:
            self._cold -= 1
            return False
        self._turn.append(seconds)
        steps = len(self._turn)
        long_enough = sum(self._turn) >= self.turn_s or steps >= self.most_steps
        return steps >= self.least_steps and long_enough

    def next(self, remaining_steps: float = math.inf) -> int | None:
        """End the turn; the candidate whose turn is next, ``None`` when the trials are over."""
        self.times.add(self.current, self._turn)
        self._turn = []
        if self._broken_off():
            return None
        if not self._due:
            self.left = self._survivors()
            if len(self.left) > 1 and self._another_round(remaining_steps):
                self.round += 1
                self._due = self._order()
        if not self._due:
            return None
        following = self._due.pop(0)
        # A candidate that goes on is warm already.
        self._cold = self.warm_up_steps if following != self.current else 0
        self.current = following
        return following

    @abstractmethod
    def moved(self, seconds: float) -> None:
        """Take in how long it took to bring the current candidate into force."""

    @property
    @abstractmethod
    def best(self) -> int:
        """Index of the candidate to take, as far as is known."""

    def _order(self) -> list[int]:
        """The candidate in force first if it is left: going on with it costs no move."""
        backwards = self.left[::-1] if self.round % 2 == 0 else self.left
        return sorted(backwards, key=lambda k: k != self.current)

    def _broken_off(self) -> bool:
        """Whether the turn that has just ended ends the trials."""
        return False

    @abstractmethod
    def _survivors(self) -> list[int]:
        """Candidates that stay after a round."""

    @abstractmethod
    def _another_round(self, remaining_steps: float) -> bool:
        """Whether another round of those left pays."""


INDIFFERENT = 0.02
"""A candidate drops out when it is sure that it is not ahead by more than this."""

SURE = 2.0
"""Standard errors."""

ONE_TURN = 0.1
"""Smaller differences are not concluded from single turns: the machine may be busy for a second."""

TIE = 0.01
"""A candidate that is ahead by less is not worth a move."""

SHIFT, SHIFT_ERRORS = 0.25, 4.0
"""A turn that differs so much from the same candidate's turns before: the machine has changed."""

ROUNDS = 16
"""At most."""


class SuccessiveElimination(PlanTrials):
    """Trials in the first steps of a run: the fastest candidate stays.

    Those that are surely behind drop out (Even-Dar, Mannor, Mansour, JMLR 7, 2006; our error bounds
    are estimated from the steps, not worst cases). Rounds end when what another candidate may gain
    over the remaining steps no longer pays for a round.

    `disturbed`: whether they ended early because the machine changed.
    """

    least_steps, most_steps, turn_s = 6, 20, 2.0  # short steps scatter most and need many

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.disturbed = False
        self._moves_s: list[float] = []

    def moved(self, seconds: float) -> None:
        """Take in the seconds of a migration."""
        self._moves_s.append(seconds)

    @property
    def best(self) -> int:
        """Index of the fastest candidate; of the one in force where the two are about equal."""
        ahead = self._ahead()
        tried = self.times.turns(self.current) > 0
        tie = tried and self.times.behind(self.current, ahead) < TIE
        return self.current if tie else ahead

    def summary(self) -> str:
        """The outcome in words."""
        best = self.best
        gain = -math.expm1(self.times.behind(best, 0))
        if self.disturbed:
            return "the machine changed meanwhile: the fastest plan so far stays"
        found = f"number {best + 1} is {100 * gain:.1f} % faster"
        outcome = "the first one stays" if best == 0 else found
        return f"{len(self.candidates)} plans tried: {outcome}"

    def _ahead(self) -> int:
        return min((k for k in self.left if self.times.turns(k)), key=self.times.median_s)

    def _broken_off(self) -> bool:
        """Leave out a turn in which the machine changed, and end."""
        # Both are nan at a candidate's first turn; `max` keeps its first argument then, and no nan
        # is larger than that.
        change, error = self.times.shift(self.current)
        self.disturbed = abs(change) > max(SHIFT, SHIFT_ERRORS * error)
        if self.disturbed:
            self.times.forget_last(self.current)
        return self.disturbed

    def _survivors(self) -> list[int]:
        ahead = self._ahead()
        return [k for k in self.left if k == ahead or not self._surely_behind(k, ahead)]

    def _surely_behind(self, k: int, ahead: int) -> bool:
        behind, error = self.times.behind(k, ahead), self.times.error(k, ahead)
        if self.round == 1 and behind < ONE_TURN:
            return False
        return behind + INDIFFERENT > SURE * error

    def _another_round(self, remaining_steps: float) -> bool:
        if self.round >= ROUNDS:
            return False
        ahead = self._ahead()
        saved_s = self._gain(ahead) * self.times.median_s(ahead) * remaining_steps
        return saved_s > self._price_s(ahead)

    def _gain(self, ahead: int) -> float:
        """Expected relative gain of the most promising other candidate."""
        errors = [(self.times.behind(k, ahead), self.times.error(k, ahead)) for k in self.left]
        others = [pair for k, pair in zip(self.left, errors, strict=True) if k != ahead]
        return max(likely_gain(behind, error) for behind, error in others)

    def _price_s(self, ahead: int) -> float:
        """Seconds that another round costs: moves, and turns of candidates that are behind."""
        moves_s = sum(self._moves_s) / max(1, len(self._moves_s)) * len(self.left)
        step_s = self.times.median_s(ahead)
        measured = min(self.most_steps, max(self.least_steps, self.turn_s / step_s))
        behind = sum(max(0.0, math.expm1(self.times.behind(k, ahead))) for k in self.left)
        return moves_s + behind * (WARM_UP_STEPS + measured) * step_s


LEAST_ROUNDS, BUDGET_S = 3, 30.0
"""Of short trials: so many rounds at least, and more of them until so much time is spent."""

FAR = 0.1
"""A candidate drops out whose turns were all this much slower than the best one."""

AHEAD = 0.02
"""Lead over the first candidate, which is predicted to be the best, that another one needs."""


class ShortTrials(PlanTrials):
    """Trials before a run: the fastest turn of each counts, since other load can only add time.

    `fatal`: index of the candidate that ended a worker; it is never the best. -1 for none.
    """

    least_steps, most_steps, turn_s = 4, math.inf, 1.0
    least_rounds, budget_s = LEAST_ROUNDS, BUDGET_S
    lenient_rounds = 1  # in which nobody drops out

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.fatal = -1
        self._spent_s = 0.0

    def took(self, seconds: float) -> bool:
        """Add a step of the candidate in force; whether its turn is over."""
        self._spent_s += seconds
        return super().took(seconds)

    def moved(self, seconds: float) -> None:
        """Take in the seconds of loading a candidate."""
        self._spent_s += seconds

    @property
    def step_s(self) -> tuple[float, ...]:
        """Seconds per step of each in its fastest turn, ``inf`` where it had none."""
        return tuple(map(self.times.least_s, self.candidates))

    @property
    def best(self) -> int:
        """The first candidate, unless it was fatal or another one is clearly faster."""
        step_s = self.step_s
        ahead = min((k for k in self.candidates if k != self.fatal), key=step_s.__getitem__)
        # Then the first one has no claim to its place, whatever the lead.
        if self.fatal == 0:
            return ahead
        return ahead if step_s[ahead] < (1.0 - AHEAD) * step_s[0] < math.inf else 0

    def _survivors(self) -> list[int]:
        limit_s = (1.0 + FAR) * min(self.step_s)
        return [
            k
            for k in self.left
            if self.round <= self.lenient_rounds or self.times.least_s(k) <= limit_s
        ]

    def _another_round(self, remaining_steps: float) -> bool:
        return self.round < self.least_rounds or self._spent_s <= self.budget_s


@dataclass(frozen=True, slots=True)
class TrialOutcome(Generic[Plan]):
    """What trials before a run have measured.

    Attributes
    ----------
    plans
        The candidates, the one predicted to be the best first.
    step_s
        Seconds per step of each in its fastest turn; ``inf`` where it had none.
    best
        Index of the one to take: the fastest, or the first one where that is not clear.
    ended
        What ended the trials early, empty otherwise.
    """

    plans: tuple[Plan, ...]
    step_s: tuple[float, ...]
    best: int
    ended: str = ""

    @property
    def plan(self) -> Plan:
        """The one to take."""
        return self.plans[self.best]

    @property
    def measured(self) -> str:
        """Seconds per step of each in words."""
        return ", ".join(f"{s:.4g} s" if s < math.inf else "not yet" for s in self.step_s)

    def __str__(self) -> str:
        return f"{self.measured}: number {self.best + 1} is taken"


def hold_trials(
    plans: Sequence[Plan],
    load: Callable[[Plan], None],
    step: Callable[[], float],
    progress: Callable[[str], None] = lambda _: None,
    trials: ShortTrials | None = None,
) -> TrialOutcome[Plan]:
    """Execute plans in turns before a run, until it is known which one to take.

    Where a worker dies, what was measured until then counts.

    Raises `KeyboardInterrupt`: Ctrl-C, also in the middle of a step; says what was measured.

    Parameters
    ----------
    plans
        The one predicted to be the best first; a single one is not executed.
    load
        Brings a plan into force.
    step
        Does a step; its seconds.
    progress
        Called with the turn that begins.
    trials
        Where turns are of another kind than those of `ShortTrials`.
    """
    trials, ended = trials or ShortTrials(len(plans)), ""
    try:
        if len(plans) > 1:
            _take_turns(trials, plans, load, step, progress)
    except KeyboardInterrupt as pressed:
        so_far = TrialOutcome(tuple(plans), trials.step_s, trials.best)
        raise KeyboardInterrupt(
            f"while {len(plans)} plans were tried, best predicted first: {so_far.measured}"
        ) from pressed
    except WorkerError as error:
        ended, trials.fatal = str(error), trials.current
    return TrialOutcome(tuple(plans), trials.step_s, trials.best, ended)


def _take_turns(
    trials: ShortTrials,
    plans: Sequence[Plan],
    load: Callable[[Plan], None],
    step: Callable[[], float],
    progress: Callable[[str], None],
) -> None:
    loaded = -1
    following: int | None = 0
    while following is not None:
        progress(f"plan {following + 1} of {len(plans)}, round {trials.round}")
        if following != loaded:
            start = time.perf_counter()
            load(plans[following])
            trials.moved(time.perf_counter() - start)
            loaded = following
        over = False
        while not over:
            over = trials.took(step())
        following = trials.next()


LEAST_SCATTER = 0.01
"""Of steps; four that happen to agree do not prove that a machine is free of noise."""

LEAST_FREEDOM = 3
"""Turns beyond each candidate's first one, in all, from which their scatter is used."""


class StepTimes:
    """Step times of `count` candidates, turn by turn."""

    def __init__(self, count: int) -> None:
        self._turns: list[list[FloatArray]] = [[] for _ in range(count)]

    def add(self, k: int, seconds: Sequence[float]) -> None:
        """Add a turn of candidate `k`, step by step."""
        self._turns[k].append(np.log(np.asarray(seconds, dtype=np.float64)))

    def forget_last(self, k: int) -> None:
        """Remove the last turn of candidate `k`."""
        self._turns[k].pop()

    def turns(self, k: int) -> int:
        """Number of turns of candidate `k`."""
        return len(self._turns[k])

    def median_s(self, k: int) -> float:
        """Median seconds per step, ``inf`` before the first turn."""
        return math.exp(self._median(k)) if self._turns[k] else math.inf

    def least_s(self, k: int) -> float:
        """Median seconds per step of the fastest turn, ``inf`` before the first one."""
        medians = (math.exp(np.median(turn)) for turn in self._turns[k])
        return min(medians, default=math.inf)

    def behind(self, k: int, other: int) -> float:
        """Relative difference to the step time of `other`, over turns that both had."""
        # In turns that both had the machine was equally busy for both.
        both = min(self.turns(k), self.turns(other))
        return self._median(k, both) - self._median(other, both)

    def error(self, k: int, other: int) -> float:
        """Standard error of `behind`."""
        return math.sqrt(self._variance(k) + self._variance(other))

    def shift(self, k: int) -> tuple[float, float]:
        """Relative difference of the last turn to those before, and its standard error.

        Both are ``nan`` where there is none before.
        """
        if self.turns(k) < 2:
            return math.nan, math.nan
        last, before = self._turns[k][-1], np.concatenate(self._turns[k][:-1])
        steps = 1.0 / len(last) + 1.0 / len(before)
        error = MEDIAN_ERROR * self._scatter() * math.sqrt(steps)
        return float(np.median(last) - np.median(before)), error

    def _median(self, k: int, turns: int | None = None) -> float:
        return float(np.median(np.concatenate(self._turns[k][:turns])))

    def _variance(self, k: int) -> float:
        steps = sum(len(turn) for turn in self._turns[k])
        within = (MEDIAN_ERROR * self._scatter()) ** 2 / steps
        return max(within, self._turn_variance() / self.turns(k))

    def _scatter(self) -> float:
        """Relative standard deviation of a step within its turn, robust against outliers."""
        apart = [np.abs(t - np.median(t)) for turns in self._turns for t in turns if len(t) > 1]
        if not apart:
            return math.inf
        lost = np.mean([len(t) / (len(t) - 1) for t in apart])  # the median was taken from them
        return max(LEAST_SCATTER, float(SIGMA_PER_MAD * np.median(np.concatenate(apart)) * lost))

    def _turn_variance(self) -> float:
        """Variance of a turn's median around its candidate's, 0 with too few turns to estimate."""
        sums, freedom = 0.0, 0
        for turns in self._turns:
            if len(turns) > 1:
                medians = np.array([np.median(turn) for turn in turns])
                sums += float(np.sum((medians - medians.mean()) ** 2))
                freedom += len(turns) - 1
        return sums / freedom if freedom >= LEAST_FREEDOM else 0.0


def likely_gain(behind: float, error: float) -> float:
    """Expected relative gain of learning which of two candidates is faster.

    The one that is `behind` may be ahead in truth: the mean of ``max(0, x)`` for x normal around
    ``-behind`` with this standard error.
    """
    if error <= 0:
        return max(0.0, -behind)
    z = behind / error
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return error * density - behind * 0.5 * math.erfc(z / math.sqrt(2.0))
