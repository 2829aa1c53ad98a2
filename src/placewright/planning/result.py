"""Result of planning: plan, value, bound, status, candidates, provenance; what its files hold."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from pydantic import Field

from placewright.errors import MissingDependencyError, UnsupportedError
from placewright.io.arguments import AnyNumber, checked
from placewright.io.boundary import FileModel
from placewright.io.stored import finite, write_data, write_file
from placewright.planning.candidates import (
    Candidate,
    Candidates,
    Outcome,
    Status,
    TriedPlan,
    trial_words,
)
from placewright.planning.contract import Direction, JudgementT, PlanT, Proposal
from placewright.version import __version__

if TYPE_CHECKING:
    from placewright.measurement import Measurement
    from placewright.report.trace import Trace


@dataclass(frozen=True, slots=True)
class Provenance:
    """What is needed to get the same answer again."""

    problem_hash: str
    seed: int
    placewright: str = __version__
    python: str = field(default_factory=platform.python_version)


@checked
@dataclass(frozen=True, slots=True, eq=False)
class Result(Generic[PlanT, JudgementT]):
    """A plan with its value, what no plan can beat, and the way there.

    Attributes
    ----------
    problem, plan, judgement
        Of the wing of the problem; `plan` is the best found. The judgement's value is the judge's,
        also where the caller gave an objective.
    value
        Of the plan, by the judge (seconds for latency and throughput) or the caller's objective.
    bound
        No plan is better: none has a smaller value, or a larger one where the wing maximises.
    candidates
        All plans that were tried, in the order in which they were, and by name:
        ``candidates["heft"]``.
    planner
        The planner whose plan was chosen.
    compile_s
        Seconds of `runtime_s` in which kernels were compiled: on the first run only.
    interrupted
        Whether Ctrl-C ended the search, also where the plan is proved optimal.
    own_objective
        Whether values are those of a function that the caller gave: without a unit or a bound.
    """

    problem: Any
    plan: PlanT
    judgement: JudgementT
    planner: str
    objective: str
    value: AnyNumber
    bound: AnyNumber
    status: Status
    runtime_s: float
    candidates: Candidates
    provenance: Provenance
    bound_names: Mapping[str, AnyNumber] = field(default_factory=dict)
    note: str = ""
    compile_s: float = 0.0
    direction: Direction = Direction.MINIMISE
    interrupted: bool = False
    own_objective: bool = False

    def demand_finished(self) -> Self:
        """The result itself, for callers whose work begins with the plan: Ctrl-C ends that too.

        Raises `KeyboardInterrupt`: the search was interrupted; says what it had found.
        """
        if self.interrupted:
            raise KeyboardInterrupt(
                f"while {self.problem.name} was planned: the best plan so far is that of "
                f"{self.planner}, {self.value:.4g}; nothing was executed by it"
            )
        return self

    @property
    def proposal(self) -> Proposal[PlanT]:
        """The chosen planner's own answer."""
        chosen = (c.proposal for c in self.candidates if c.plan is self.plan)
        return next((p for p in chosen if p is not None), Proposal(self.plan))

    @property
    def unit(self) -> str:
        """Of the values: ``s``, ``bytes`` or another; empty where they have none."""
        from placewright.planning.wings import unit_of

        return "" if self.own_objective else unit_of(self.problem)

    @property
    def lower_bound(self) -> float:
        """The best value is not below it: the bound, or where the wing maximises this plan's."""
        return self.bound if self.direction is Direction.MINIMISE else self.value

    @property
    def upper_bound(self) -> float:
        """The best value is not above it: this plan's, or where the wing maximises the bound."""
        return self.value if self.direction is Direction.MINIMISE else self.bound

    @property
    def gap(self) -> float:
        """``upper_bound / lower_bound - 1``."""
        return self.direction.gap(self.value, self.bound)

    def after_trials(self, tried: Sequence[TriedPlan]) -> Result:
        """The result, chosen by executing plans: candidates and note say what was measured."""
        if not tried:
            return self
        took = {each.planner: each for each in tried}
        known = [
            replace(c, measured_s=took[c.planner].measured_s) if c.planner in took else c
            for c in self.candidates
        ]
        new = [
            Candidate(t.planner, t.predicted_s, Outcome.FITS, 0.0, measured_s=t.measured_s)
            for t in took.values()
            if t.planner not in {c.planner for c in self.candidates}
        ]
        note = "; ".join(filter(None, [self.note, trial_words(tried)]))
        return replace(self, candidates=Candidates((*known, *new)), note=note)

    @checked
    def report(
        self,
        path: str | Path,
        measurement: Measurement | None = None,
        graph: Any = None,
        run: Any = None,
    ) -> Path:
        """Write a self-contained HTML page.

        Parameters
        ----------
        measurement
            Of a run of the plan: drawn beside the prediction.
        graph
            The graph that the problem was made of: adds phases and FLOPs to the drawing.
        run
            The timeline of an adaptive run.
        """
        from placewright.planning.views import views_of

        return write_file(path, views_of(self.problem).page(self, measurement, graph, run))

    @checked
    def report_beside(self, other: Result, path: str | Path) -> Path:
        """Write a self-contained HTML page of this result and another, of any problem."""
        from placewright.planning.side_by_side import side_by_side_page, side_of

        names = [self.planner, other.planner]
        if names[0] == names[1]:
            names = [f"first, {names[0]}", f"second, {names[1]}"]
        sides = (side_of(result, name) for result, name in zip((self, other), names, strict=True))
        return write_file(path, side_by_side_page(*sides))

    @checked
    def explain(self, name: str) -> Any:
        """Where an operator or a module runs, and what moving it would change."""
        from placewright.planning.wings import wing_of

        wing = wing_of(self.problem)
        if wing.explain is None:
            raise UnsupportedError(f"plans of {wing.name} are not explained")
        return wing.explain(self.problem, self.plan, name)

    @checked
    def trace(self, path: str | Path, measurement: Measurement | None = None) -> Path:
        """Write a Perfetto/Chrome trace (``.json.gz``)."""
        from placewright.report.trace import write_trace

        measured = None if measurement is None else measurement.trace
        return write_trace(path, predicted=self._predicted(), measured=measured)

    @checked
    def gantt(self, path: str | Path) -> Path:
        """Draw the simulated timeline of the plan as an SVG file.

        Raises `UnsupportedError`: its plans have no timeline.
        """
        from placewright.report.gantt import gantt
        from placewright.report.page import svg_file
        from placewright.report.text import bare_numbers

        with bare_numbers(getattr(self.problem, "dimensionless", False)):
            drawn = gantt(self._predicted(), title=f"{self.problem.name}, by {self.planner}")
        return write_file(path, svg_file(drawn))

    @checked
    def frame(self, of: Literal["candidates", "schedule"] = "candidates") -> Any:
        """A table of pandas: the candidates, or the plan's simulated schedule.

        Candidates have the columns ``planner``, ``value``, ``gap``, ``outcome``, ``runtime_s`` and
        ``note``; the schedule ``track`` (a device or a link), ``label`` (an operator or a tensor),
        ``start_s`` and ``end_s``.

        Raises `MissingDependencyError`: pandas is not installed.
        """
        if of == "candidates":
            return data_frame([_candidate_row(self, c) for c in self.candidates])
        found = self._predicted()
        columns = {
            "track": [found.tracks[k] for k in found.track],
            "label": [found.labels[k] for k in found.label],
            "start_s": found.start_s,
            "end_s": found.end_s,
        }
        return data_frame(columns)

    def _predicted(self) -> Trace:
        """The simulated timeline."""
        predicted: Trace | None = self.judgement.trace()
        if predicted is None:
            raise UnsupportedError("has no timeline", where=f"the plan of {self.problem.name}")
        return predicted

    def as_json(self) -> dict[str, Any]:
        """What ``-f json`` prints and `save` writes; infinite numbers are ``null``."""
        from placewright.planning.wings import wing_of

        return wing_of(self.problem).files().result_json(self)

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON."""
        return write_data(self.as_json(), path)

    def __repr__(self) -> str:
        from placewright.planning.views import result_table

        return result_table(self)

    def _repr_html_(self) -> str:
        from placewright.planning.views import views_of

        return views_of(self.problem).fragment(self)


def head_json(result: Result) -> dict[str, Any]:
    """A result as data, all but its plan; infinite numbers are ``null``."""
    from placewright.planning.wings import wing_of

    provenance = result.provenance
    baselines = set(wing_of(result.problem).planning().baselines(result.problem))
    return {
        "schema_version": 1,
        "problem": result.problem.name,
        "problem_hash": provenance.problem_hash,
        "planner": result.planner,
        "objective": result.objective,
        "value": finite(result.value),
        "unit": result.unit,
        "direction": str(result.direction),
        "lower_bound": finite(result.lower_bound),
        "upper_bound": finite(result.upper_bound),
        "gap": finite(result.gap),
        "status": str(result.status),
        "runtime_s": result.runtime_s,
        "compile_s": result.compile_s,
        "seed": provenance.seed,
        "placewright": provenance.placewright,
        "python": provenance.python,
        "note": result.note,
        "bounds": {name: finite(value) for name, value in result.bound_names.items()},
        "candidates": [
            {
                "planner": c.planner,
                "value": finite(c.value),
                "status": str(c.status),
                "outcome": str(c.outcome),
                "runtime_s": c.runtime_s,
                "measured_s": finite(c.measured_s),
                "note": c.note,
                "baseline": c.planner in baselines,
            }
            for c in result.candidates
        ],
    }


def _candidate_row(result: Result, c: Candidate) -> dict[str, Any]:
    gap = result.direction.gap(c.value, result.bound) if c.fits else math.inf
    return {
        "planner": c.planner,
        "value": c.value,
        "gap": gap,
        "outcome": str(c.outcome),
        "runtime_s": c.runtime_s,
        "note": c.note,
    }


def data_frame(content: Any) -> Any:
    """A ``pandas.DataFrame``.

    Raises `MissingDependencyError`: pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ModuleNotFoundError as error:
        raise MissingDependencyError.of(error, "frame") or error from None
    return DataFrame(content)


def relative_gap(value: float, lower_bound: float) -> float:
    """``value / lower_bound - 1``; zero when both are zero, ``inf`` without a bound."""
    return Direction.MINIMISE.gap(value, lower_bound)


class CandidateEntry(FileModel):
    """One planner's answer."""

    planner: str
    value: float | None
    status: Status
    outcome: Outcome | None = None
    runtime_s: float
    measured_s: float | None = None
    note: str = ""
    baseline: bool = False


class ResultFile(FileModel):
    """All but the plan, which a wing adds; nothing of it is needed to read a plan back."""

    schema_version: Literal[1] = 1
    problem: str = ""
    problem_hash: str = ""
    planner: str = ""
    objective: str = ""
    value: float | None = None
    unit: str = ""
    direction: Direction = Direction.MINIMISE
    lower_bound: float | None = None
    upper_bound: float | None = None
    gap: float | None = None
    status: str = ""
    runtime_s: float = 0.0
    compile_s: float = 0.0
    seed: int = 0
    placewright: str = ""
    python: str = ""
    note: str = ""
    bounds: dict[str, float | None] = Field(default_factory=dict)
    candidates: tuple[CandidateEntry, ...] = ()
