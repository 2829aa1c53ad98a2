"""One planner's answer in a competition, and how tables show it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, SupportsIndex, overload

from placewright.errors import UnknownNameError
from placewright.io.arguments import NumberOrUnknown, SecondsOrUnknown, checked
from placewright.planning.contract import Direction, Proposal
from placewright.report.text import amount, elapsed, percent, shorten


class Status(StrEnum):
    """How much is known about a plan."""

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    INFEASIBLE = "INFEASIBLE"
    INTERRUPTED = "INTERRUPTED"


class Outcome(StrEnum):
    """What became of one planner.

    The first five gave no plan, or had to stop early (`INTERRUPTED`, which may have one).
    """

    UNSUPPORTED = "unsupported"
    MISSING_PACKAGE = "missing-package"
    FAILED = "failed"
    NOT_RUN = "not-run"
    INTERRUPTED = "interrupted"
    DOES_NOT_FIT = "does-not-fit"
    FITS = "fits"
    OPTIMAL = "optimal"

    @property
    def words(self) -> str:
        """For tables."""
        return self.value.replace("-", " ")


@checked
@dataclass(frozen=True, slots=True)
class Candidate:
    """One planner's answer, as the judge saw it.

    Attributes
    ----------
    planner
        Its name, with the parameters that are not its defaults.
    value
        Infinite where the planner gave no plan; `note` then says why.
    proposal
        Its plan and what it knows about it; ``None`` where it gave none.
    measured_s
        Seconds of a step, or per sample of a stream, where the plan was executed in trials;
        infinite where it was not.
    """

    planner: str
    value: NumberOrUnknown
    outcome: Outcome
    runtime_s: float
    note: str = ""
    proposal: Proposal[Any] | None = None
    measured_s: SecondsOrUnknown = math.inf

    @property
    def plan(self) -> Any:
        """The plan, ``None`` if there is none."""
        return None if self.proposal is None else self.proposal.plan

    @property
    def fits(self) -> bool:
        """Whether there is a plan that keeps every hard constraint."""
        kept = (Outcome.INTERRUPTED, Outcome.FITS, Outcome.OPTIMAL)
        return self.outcome in kept and math.isfinite(self.value)

    @property
    def status(self) -> Status:
        """FEASIBLE or INFEASIBLE: as files say it."""
        return Status.FEASIBLE if self.fits else Status.INFEASIBLE


class Candidates(tuple[Candidate, ...]):
    """What was tried, in that order: ``candidates[0]``, or by the planner, ``candidates["heft"]``.

    Raises `UnknownNameError`: no planner of that name was tried; offers the nearest.
    """

    __slots__ = ()

    @overload
    def __getitem__(self, key: SupportsIndex | str, /) -> Candidate: ...

    @overload
    def __getitem__(self, key: slice, /) -> tuple[Candidate, ...]: ...

    def __getitem__(self, key: SupportsIndex | str | slice, /) -> Candidate | tuple[Candidate, ...]:
        if not isinstance(key, str):
            return super().__getitem__(key)
        found = [c for c in self if c.planner == key]
        if not found:
            raise UnknownNameError("planner", key, [c.planner for c in self], where="candidates")
        return found[-1]


@checked
@dataclass(frozen=True, slots=True)
class TriedPlan:
    """A plan that was executed before another one was taken, or it itself; seconds per sample."""

    planner: str
    predicted_s: float
    measured_s: float
    taken: bool


def trial_words(tried: Sequence[TriedPlan]) -> str:
    """What trials measured, and why one of the plans is taken."""
    times = ", ".join(
        f"{t.planner} {elapsed(t.measured_s)} ({elapsed(t.predicted_s)} predicted)" for t in tried
    )
    fastest = min(tried, key=lambda t: t.measured_s)
    taken = [t.planner for t in tried if t.taken]
    if not taken:
        return f"measured in trials: {times}"
    why = "the fastest" if fastest.taken else "predicted to be the best; no other is surely faster"
    return f"measured in trials: {times}; {taken[0]} is taken: {why}"


def short_list(
    candidates: Sequence[Candidate], planner: str, baselines: Iterable[str], direction: Direction
) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates that a reader wants first, best first, and the others.

    The chosen one, what was measured, the baselines that give a plan (of many the `BEST`), and the
    `BEST` with the best values.
    """
    ordered, named = best_first(candidates, direction), set(baselines)
    best = [c for c in ordered if c.fits][:BEST]
    best += [c for c in ordered if c.planner in named and math.isfinite(c.value)][:BEST]
    shown = [c for c in ordered if c.planner == planner or math.isfinite(c.measured_s) or c in best]
    rest = [c for c in ordered if c not in shown]
    return (shown, rest) if len(rest) > 1 else (ordered, [])


def any_measured(candidates: Iterable[Candidate]) -> bool:
    """Whether a table of these needs a column of what was measured."""
    return any(math.isfinite(c.measured_s) for c in candidates)


BEST = 5
"""Candidates beside the chosen one and the baselines that are shown at once."""


def best_first(candidates: Iterable[Candidate], direction: Direction) -> list[Candidate]:
    """Candidates by value, those that do not fit last."""
    sign = 1 if direction is Direction.MINIMISE else -1
    return sorted(candidates, key=lambda c: (not c.fits, sign * c.value))


def candidate_cells(
    candidate: Candidate, bound: float, unit: str = "s", direction: Direction = Direction.MINIMISE
) -> tuple[str, ...]:
    """Planner, value, gap, time, status and note as text.

    The bound holds for plans that fit: the value of one that does not may be far below it.
    """
    gap = direction.gap(candidate.value, bound) if candidate.fits else math.inf
    return (
        candidate.planner,
        amount(candidate.value, unit),
        percent(gap),
        elapsed(candidate.runtime_s),
        candidate.outcome.words,
        shorten(candidate.note),
    )
