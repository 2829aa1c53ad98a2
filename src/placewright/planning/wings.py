"""The registry of wings: an explicit list, entry points, and wings registered at run time."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from numbers import Real
from typing import TYPE_CHECKING, Any, Generic, cast, final

from placewright.errors import InfeasibleError, InputError, UnknownNameError, UnsupportedError
from placewright.io.arguments import checked, described_value
from placewright.planning.contract import (
    Judgement,
    JudgementT,
    Objective,
    OwnJudgement,
    Planner,
    Problem,
)
from placewright.planning.wing import Planning, Wing

if TYPE_CHECKING:
    from placewright.numerics.arrays import FloatArray

OWN = ("operators", "samples", "layers", "requests")
"""Wings of this distribution: subpackages of `placewright` with a `WING`, in the order in which
they are listed and tried."""

ENTRY_POINTS = "placewright.wings"
"""Group under which other distributions offer wings: ``name = "package.module:WING"``."""

_registered: dict[str, Wing] = {}


@checked
def wings() -> dict[str, Wing]:
    """Every wing by name: registered ones hide others of their name."""
    own = {name: _own_wing(name) for name in OWN}
    return own | {name: wing for name, wing in _plugged().items() if name not in own} | _registered


def families() -> Iterator[tuple[str, Wing]]:
    """Every wing, and the families of problems within it, by the name of their command group."""
    for name, wing in wings().items():
        yield from ((name, each) for each in _with_families(wing))


def find_wing(name: str) -> Wing:
    """The wing of this name.

    Raises `UnknownNameError`: there is none; offers the nearest.
    """
    known = wings()
    if name not in known:
        raise UnknownNameError("wing", name, known)
    return known[name]


def wing_of(problem: Any) -> Wing:
    """The wing that takes problems of this type.

    Raises `UnsupportedError`: no wing does; names the types that are taken.
    """
    for wing in _lookup_order():
        if isinstance(problem, wing.problem_type()):
            return wing
    known = ", ".join(wing.problem_type().__name__ for wing in wings().values())
    raise UnsupportedError(
        f"no wing takes a {type(problem).__name__}",
        where="problem",
        by=f"got {described_value(problem)}",
        hint=f"give one of: {known}",
    )


def unit_of(problem: Any) -> str:
    """The unit of the values of a problem's plans, empty for one whose costs have none."""
    return "" if getattr(problem, "dimensionless", False) else wing_of(problem).unit


@checked
def judge(problem: Problem[Any, JudgementT], plan: Any) -> JudgementT:
    """The value of a plan, whether it fits, and its schedule: what the problem's judge computes.

    `plan`: as `Judge` takes it.
    """
    return cast(JudgementT, wing_of(problem).planning().judge(problem, plan_of(problem, plan)))


def plan_of(problem: Any, given: Any) -> Any:
    """A plan of the problem's wing: itself, that of a result, or made of what the wing accepts."""
    wing = wing_of(problem)
    kind, make = wing.plan_type(), getattr(wing.planning(), "plan_of", None)
    plan = getattr(given, "plan", given)
    if isinstance(plan, kind):
        return plan
    if make is None or plan is None:
        by = f"got {described_value(given)}"
        raise InputError(f"must be of type {kind.__name__}", where="plan", by=by)
    from placewright.io.boundary import errors_in  # loads YAML, which the command line need not

    with errors_in("plan"):
        return make(problem, plan)


def judge_by(planning: Planning, objective: Objective | None) -> Callable[[Any, Any], Judgement]:
    """The judge of a wing; with an objective of one's own, its values are those of that."""
    if objective is None:
        return planning.judge
    return lambda problem, plan: valued(planning.judge(problem, plan), objective)


def valued(judgement: Judgement, objective: Objective) -> Judgement:
    """The judgement with the value that an objective gives it.

    Raises `InputError`: that is no number.
    """
    value = objective(judgement)
    try:
        found = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # a whole number that no float is as large as
        found = math.nan
    if math.isnan(found):
        by, hint = f"got {described_value(value)}", "return a number, math.inf for a useless plan"
        raise InputError("must return a number", where="objective", by=by, hint=hint)
    return OwnJudgement(judgement, found)


@final
class Judge(Generic[JudgementT]):
    """The judge of a problem, laid out once: for a search of one's own.

    Threads may share one.

    Parameters
    ----------
    problem
        Of any wing.
    objective
        A function of a judgement whose value is used in place of the problem's own objective;
        smaller is better, or larger where the wing maximises.
    """

    @checked
    def __init__(
        self, problem: Problem[Any, JudgementT], objective: Callable[[Any], float] | None = None
    ) -> None:
        self.problem, self._objective = problem, objective
        wing = wing_of(problem)
        planning, self._worst = wing.planning(), wing.direction.worst
        prepare = getattr(planning, "prepared_judge", None)
        self._prepared: Any = None if prepare is None else prepare(problem)
        self._judge: Callable[[Any], Judgement] = self._prepared or partial(planning.judge, problem)

    def __call__(self, plan: Any) -> JudgementT:
        """The value of a plan, whether it fits, and its schedule.

        Parameters
        ----------
        plan
            Of the wing's type, a `Result` with one, or, where operators are placed, a device by
            operator or an array of the indices of devices.

        Raises
        ------
        InfeasibleError
            It cannot be executed at all: a device that cannot run an operator, a missing link.
        """
        judgement = self._judge(plan_of(self.problem, plan))
        found = judgement if self._objective is None else valued(judgement, self._objective)
        return cast(JudgementT, found)

    def many(self, plans: Any) -> FloatArray:
        """The value of each of many plans, shape (k,); the worst one where a plan does not fit.

        Parameters
        ----------
        plans
            Each as for a call. Fastest for placements of operators as an array of shape (k, n),
            without an objective of one's own: a kernel judges them on all cores.
        """
        if not isinstance(plans, Iterable) or isinstance(plans, str | Mapping):
            by, hint = f"got {described_value(plans)}", "give a list of plans, also of one"
            raise InputError("must be plans", where="plans of Judge.many()", by=by, hint=hint)
        import numpy as np

        if self._prepared is not None and self._objective is None:
            array = isinstance(plans, np.ndarray)
            given = plans if array else [getattr(plan, "plan", plan) for plan in plans]
            values: FloatArray = self._prepared.values(given)
            return values
        return np.array([self._value(plan) for plan in plans], dtype=np.float64)

    def _value(self, plan: Any) -> float:
        try:
            judgement = self(plan)
        except InfeasibleError:
            return self._worst
        return judgement.value if judgement.feasible else self._worst


@checked
def planners(problem: Any) -> dict[str, Planner]:
    """Every planner of a problem by name, those that cannot take it too."""
    return dict(wing_of(problem).planning().planners(problem))


@checked
def bounds(problem: Any) -> dict[str, float]:
    """Bounds on the value of every plan by name, those that are quick to compute."""
    return dict(wing_of(problem).planning().bounds(problem))


@checked
def register_wing(wing: Wing) -> None:
    """Add a wing to this process, or replace the one of its name."""
    _registered[wing.name] = wing


@contextmanager
def registered(wing: Wing) -> Iterator[Wing]:
    """Register a wing until the end of the block; for tests."""
    before = dict(_registered)
    register_wing(wing)
    try:
        yield wing
    finally:
        _registered.clear()
        _registered.update(before)


def plug_ins(group: str) -> Iterator[tuple[str, Any]]:
    """Objects that other distributions offer under an entry-point group, by name.

    One that cannot be imported is left out with a warning: it must not take the others with it.
    """
    for point in _points(group, tuple((path, _changed_ns(path)) for path in sys.path)):
        try:
            offered = point.load()
        except Exception as error:
            _left_out(point.name, group, f"{type(error).__name__}: {error}")
            continue
        yield point.name, offered


@lru_cache(maxsize=64)
def _points(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """A group's entry points.

    Reading those of all distributions takes as long as many a plan: they are read again only where
    `folders`, the import path and when each was changed, differ.
    """
    return tuple(entry_points(group=group))


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path or os.curdir).st_mtime_ns
    except OSError:
        return -1


def with_plug_ins(wing: str, own: Iterable[Planner]) -> dict[str, Planner]:
    """A wing's own planners by name, and those of other distributions.

    These offer classes that take no arguments under the group ``placewright.WING.planners``.
    """
    found, group = {planner.name: planner for planner in own}, f"placewright.{wing}.planners"
    for name, kind in plug_ins(group):
        try:
            planner: Planner = kind()
        except Exception as error:
            _left_out(name, group, f"{type(error).__name__}: {error}")
        else:
            found[planner.name] = planner
    return found


def _lookup_order() -> Iterator[Wing]:
    """Registered wings, own ones, plug-ins: those are not looked for before they are needed.

    The families of each come right after it.
    """
    for wing in _registered.values():
        yield from _with_families(wing)
    for name in OWN:
        if name not in _registered:
            yield from _with_families(_own_wing(name))
    for wing in _plugged().values():
        yield from _with_families(wing)


def _with_families(wing: Wing) -> Iterator[Wing]:
    yield wing
    yield from (family() for family in wing.families)


def _own_wing(name: str) -> Wing:
    wing: Wing = import_module(f"placewright.{name}").WING
    return wing


@cache
def _plugged() -> dict[str, Wing]:
    found: dict[str, Wing] = {}
    for name, wing in plug_ins(ENTRY_POINTS):
        if not isinstance(wing, Wing):
            _left_out(name, ENTRY_POINTS, f"a {type(wing).__name__} is no Wing")
        elif wing.name in found or wing.name in OWN:
            _left_out(name, ENTRY_POINTS, f"there is a wing {wing.name!r} already")
        else:
            found[wing.name] = wing
    return found


def _left_out(name: str, group: str, why: str) -> None:
    warnings.warn(
        f"entry point {name!r} of {group!r} is left out: {why}", RuntimeWarning, stacklevel=3
    )
