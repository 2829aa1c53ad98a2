"""LNS: large-neighbourhood search, windows of a schedule re-planned by CP-SAT.

The model of a window has the device and the time of each of its operators. What comes before the
window and after it stays as it is: the model knows when devices and channels are through with the
one, when its tensors arrive, and the longest ways through the other (`sequences.moves`). Times are
whole units, rounded up.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.sequences.decode import (
    CRITICAL,
    HIGH,
    LOW,
    PENDING,
    VALUE,
    SequenceInstance,
    SequenceState,
    decode,
    start_state,
)
from placewright.operators.planners.sequences.moves import close_window, list_critical, open_window
from placewright.operators.planners.sequences.search import (
    OrderSearch,
    SearchState,
    dispatches,
    fully_linked,
    start_order,
    start_search_state,
)
from placewright.operators.problem import (
    Objective,
    OperatorProblem,
    Overlap,
    pairwise_only,
)
from placewright.planning.contract import Context, Count, Proposal
from placewright.solvers.programs import require, run_cp_sat

UNITS = 1_000_000
"""Whole units in the makespan that is to be beaten."""


@final
@dataclass(frozen=True, slots=True)
class Lns:
    """Stretches of the best plan's sequence, about critical operators, re-planned by CP-SAT.

    Large-neighbourhood search after Shaw, CP 1998 (doi 10.1007/3-540-49481-2_30), with windows in
    time as in job-shop scheduling; the model of a window is ours:
    devices and order of its operators, transfers on their channels, heads from what comes before,
    longest ways from what comes after. A window that looks better is decoded and judged in every
    dispatch; it is kept if the decoder finds it no worse. Starts from `Context.incumbent` or the
    best list schedule.

    The work is fixed by CP-SAT's deterministic time with one worker: the same seed gives the same
    plan unless a deadline cuts it short.

    Parameters
    ----------
    windows
        At most; each of `smallest` to `largest` operators.
    work
        Deterministic time of CP-SAT for one window, about seconds.
    patience
        Windows without a better makespan after which it ends.
    """

    name: ClassVar[str] = "lns"
    windows: int = 400
    smallest: Count = 8
    largest: Count = 32
    work: float = 0.3
    patience: int = 60

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Latency in which devices work side by side, every pair of them linked."""
        if problem.objective is not Objective.LATENCY or problem.overlap is not Overlap.PARALLEL:
            return "plans for latency with parallel overlap"
        if problem.contiguous:
            return "does not keep plans contiguous"
        if problem.m < 2 or not fully_linked(problem):
            return "needs two devices or more, and a link between every two"
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The best plan found.

        Raises `InfeasibleError` (no start has a link for every tensor) or `MissingDependencyError`
        (OR-tools is not installed).
        """
        require("ortools", "the planner lns")
        search_state = start_search_state(problem, context)
        try:
            self._walk(search_state)
        except KeyboardInterrupt:
            return Proposal(search_state.best.plan(), interrupted=True)
        return Proposal(search_state.best.plan())

    def _walk(self, search_state: SearchState) -> None:
        """Window after window."""
        rng = np.random.default_rng(search_state.context.seed)
        orders = OrderSearch(search_state.problem, search_state.groups)
        state = _state_of(search_state, orders)
        idle = 0
        for w in range(self.windows):
            if idle >= self.patience or search_state.done():
                return
            low, high = self._window(search_state, orders, state, rng)
            before = float(state.score[VALUE])
            better = solve_window(
                orders.instance,
                state,
                low,
                high,
                seed=int(rng.integers(2**31)),
                work=self.work,
                deadline_s=search_state.context.deadline_s,
            )
            _take(orders, state, low, better, before)
            idle = 0 if state.score[VALUE] < before else idle + 1
            if better is not None:
                _offer(search_state, state)
            search_state.report(f"window {w}")

    def _window(
        self,
        search_state: SearchState,
        orders: OrderSearch,
        state: SequenceState,
        rng: np.random.Generator,
    ) -> tuple[int, int]:
        """First and last position, about a critical operator."""
        n = search_state.problem.n
        list_critical(orders.instance, state)
        size = min(n, int(rng.integers(self.smallest, self.largest + 1)))
        i = state.critical[rng.integers(state.counts[CRITICAL])]
        low = int(np.clip(state.position[i] - rng.integers(size), 0, n - size))
        return low, low + size - 1


def _state_of(search_state: SearchState, orders: OrderSearch) -> SequenceState:
    sequence = start_order(search_state.judge(search_state.best.plan()))
    return start_state(
        orders.instance,
        search_state.problem.t,
        orders.channels,
        sequence,
        search_state.best.place,
        0,
    )


def _take(
    orders: OrderSearch, state: SequenceState, low: int, better: Better | None, before: float
) -> None:
    """Write a window's new plan into the state; back if the whole is longer then."""
    if better is None:
        return
    stretch = slice(low, low + len(better.sequence))
    old = state.sequence[stretch].copy()
    old_place = state.place[old].copy()
    # The model is not exact (whole units, channels in any order): if decoding disagrees, the
    # second turn puts the old window back.
    for sequence, place in ((better.sequence, better.place), (old, old_place)):
        state.sequence[stretch] = sequence
        state.place[sequence] = place
        state.position[sequence] = np.arange(stretch.start, stretch.stop)
        state.score[VALUE] = decode(orders.instance, state, low, float("inf"))
        if state.score[VALUE] <= before:
            return


def _offer(search_state: SearchState, state: SequenceState) -> None:
    """Let the judge see the state as it is."""
    place, sequence = state.place.copy(), state.sequence.copy()
    for plan in dispatches(place, sequence):
        search_state.offer(plan)


@dataclass(frozen=True, slots=True, eq=False)
class Better:
    """A window's operators in their new sequence, and the device of each."""

    sequence: IntArray
    place: IntArray


@dataclass(slots=True)
class _WindowModel:
    """CP-SAT's model while it is built; times in units.

    `on` is 1 where a window's operator runs on a device, `sent` the interval in which a tensor
    travels from device to device, `channel` and `device` what must not overlap, `readers` the
    operators of the window that read a tensor.
    """

    f: SequenceInstance
    state: SequenceState
    operators: list[int]
    unit_s: float
    cp: Any
    top: int
    on: dict[tuple[int, int], Any] = field(default_factory=dict)
    start: dict[int, Any] = field(default_factory=dict)
    end: dict[int, Any] = field(default_factory=dict)
    device: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    channel: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    there: dict[int, Any] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    worst: Any = None

    @property
    def m(self) -> int:
        """Number of devices."""
        return int(self.f.allowed.shape[1])

    def units(self, seconds: float) -> int:
        """Rounded up; just too many where it is longer than all may be, by however much."""
        if seconds > self.top * self.unit_s:
            return self.top + 1
        return int(np.ceil(seconds / self.unit_s))


def solve_window(
    f: SequenceInstance,
    state: SequenceState,
    low: int,
    high: int,
    *,
    seed: int,
    work: float,
    deadline_s: float,
) -> Better | None:
    """A better window between two positions of a decoded state, ``None`` if none was found in time.

    `work`: CP-SAT's deterministic time: the same answer on every machine.
    """
    makespan = open_window(f, state, low, high)
    # The paths behind the window stay; channels and arrivals go back to before it, which is
    # what transfers of the model start from.
    state.counts[LOW], state.counts[HIGH] = low, low - 1
    decode(f, state, low, float("inf"))
    try:
        model = _build(f, state, low, high, makespan, deadline_s)
        if model is None:
            return None
        answer = run_cp_sat(model.cp, seed=seed, deadline_s=deadline_s, workers=1, work=work)
        if answer.interrupted:
            raise KeyboardInterrupt
        return None if answer.values is None else _read(model, answer.values)
    finally:
        # Also where the model is not solved: the state is decoded to its end again.
        state.score[VALUE] = close_window(f, state, float("inf"))


def _build(
    f: SequenceInstance,
    state: SequenceState,
    low: int,
    high: int,
    makespan_s: float,
    deadline_s: float,
) -> _WindowModel | None:
    """``None``: the time was over before the model was built."""
    from ortools.sat.python import cp_model

    operators = state.sequence[low : high + 1].tolist()
    top = UNITS - 1
    model = _WindowModel(f, state, operators, makespan_s / UNITS, cp_model.CpModel(), top)
    model.worst = model.cp.new_int_var(0, top, "makespan")
    inside = frozenset(operators)
    for i in operators:
        _add_operator(model, i, low)
        for k in dict.fromkeys(f.in_tensor[f.in_start[i] : f.in_start[i + 1]].tolist()):
            model.readers[k].append(i)
    _tie_groups(model)
    for d in range(model.m):
        model.cp.add_no_overlap(model.device[d])
    for i in operators:
        if time.perf_counter() > deadline_s:
            return None
        _add_inputs(model, i, inside)
    _add_what_follows(model, inside)
    for intervals in model.channel.values():
        model.cp.add_no_overlap(intervals)
    _hint(model)
    model.cp.minimize(model.worst)
    return model


def _add_operator(model: _WindowModel, i: int, low: int) -> None:
    """One of its devices, not before that is free, and early enough for the device's later ones."""
    f, state, cp, m = model.f, model.state, model.cp, model.m
    start = cp.new_int_var(0, model.top, "")
    end = cp.new_int_var(0, model.top, "")
    options = []
    for d in range(m):
        if not f.allowed[f.group[i], d]:
            continue
        here = cp.new_bool_var("")
        took = model.units(f.compute_s[i * m + d])
        model.device[d].append(cp.new_optional_interval_var(start, took, end, here, ""))
        cp.add(start >= model.units(state.free_s[low, d])).only_enforce_if(here)
        cp.add(model.worst >= end + model.units(state.after_device_s[d])).only_enforce_if(here)
        model.on[i, d] = here
        options.append(here)
    cp.add_exactly_one(options)
    cp.add(model.worst >= end + model.units(f.tail_s[i]))
    model.start[i], model.end[i] = start, end


def _tie_groups(model: _WindowModel) -> None:
    """Operators of one group share a device; a group that reaches out of the window stays."""
    f, state = model.f, model.state
    first: dict[int, int] = {}
    inside = frozenset(model.operators)
    for i in model.operators:
        g = int(f.group[i])
        members = f.members[f.group_start[g] : f.group_start[g + 1]].tolist()
        if not inside.issuperset(members):
            model.cp.add(model.on[i, int(state.place[i])] == 1)
        elif g in first:
            for d in range(model.m):
                if (i, d) in model.on:
                    model.cp.add(model.on[i, d] == model.on[first[g], d])
        first.setdefault(g, i)


def _add_inputs(model: _WindowModel, i: int, inside: frozenset[int]) -> None:
    """It waits for its tensors on whichever device it runs."""
    f = model.f
    for e in range(f.in_start[i], f.in_start[i + 1]):
        p, k = int(f.producer[e]), int(f.in_tensor[e])
        if p in inside:
            model.cp.add(model.start[i] >= model.end[p])
        for d in range(model.m):
            if (i, d) in model.on:
                there = _arrival(model, k, d, inside)
                model.cp.add(model.start[i] >= there).only_enforce_if(model.on[i, d])


def _arrival(model: _WindowModel, k: int, d: int, inside: frozenset[int]) -> Any:
    """When tensor `k` can be on device `d` at the earliest, if it is read there."""
    f, state, m = model.f, model.state, model.m
    kd, p = k * m + d, int(f.tensor_producer[k])
    if kd in model.there:
        return model.there[kd]
    # Made before the window, and there or on its way: when it arrives is a constant.
    if p not in inside and (state.place[p] == d or state.arrival_s[kd] >= 0.0):
        at_s = state.end_s[p] if state.place[p] == d else state.arrival_s[kd]
        model.there[kd] = model.units(at_s)
        return model.there[kd]
    there = model.cp.new_int_var(0, 2 * model.top, "")
    model.there[kd] = there
    if p not in inside:
        _send(model, k, int(state.place[p]), d, there, model.units(state.end_s[p]), None)
        return there
    for s in range(m):
        if (p, s) in model.on:
            here = model.on[p, s]
            if s == d:
                model.cp.add(there >= model.end[p]).only_enforce_if(here)
            else:
                _send(model, k, s, d, there, model.end[p], here)
    return there


def _send(
    model: _WindowModel, k: int, source: int, target: int, there: Any, ready: Any, here: Any
) -> None:
    """A transfer of `k` on its channel, if its producer runs `here` and it is read there."""
    f, state, cp = model.f, model.state, model.cp
    pair = source * model.m + target
    took = model.units(f.latency_s[pair] + f.size_bytes[k] * f.seconds_per_byte[pair])
    only = [] if here is None else [here]
    if not f.contended:
        cp.add(there >= ready + took).only_enforce_if(only)
        return
    channel = int(f.channel[pair])
    wanted = cp.new_bool_var("")
    readers = [model.on[i, target] for i in model.readers[k] if (i, target) in model.on]
    # Read on the device after the window: it must be sent wherever its producer runs.
    if state.after_s[k * model.m + target] >= 0.0:
        cp.add(wanted == 1).only_enforce_if(only)
    for reader in readers:
        cp.add_bool_or([wanted, reader.negated()]).only_enforce_if(only)
    if here is not None:
        cp.add_implication(wanted, here)
    start = cp.new_int_var(0, 2 * model.top, "")
    end = cp.new_int_var(0, 2 * model.top, "")
    model.channel[channel].append(cp.new_optional_interval_var(start, took, end, wanted, ""))
    free = model.units(state.channel_s[channel])
    cp.add(start >= free).only_enforce_if(wanted)
    cp.add(start >= ready).only_enforce_if(wanted)
    cp.add(there >= end).only_enforce_if(wanted)
    cp.add(model.worst >= end + model.units(state.after_channel_s[channel])).only_enforce_if(wanted)


def _add_what_follows(model: _WindowModel, inside: frozenset[int]) -> None:
    """The makespan is no less than a tensor's arrival and the path of its readers to the end."""
    state, m = model.state, model.m
    for kd in state.pending[: state.counts[PENDING]].tolist():
        if int(model.f.tensor_producer[kd // m]) in inside:
            there = _arrival(model, kd // m, kd % m, inside)
            model.cp.add(model.worst >= there + model.units(state.after_s[kd]))


def _hint(model: _WindowModel) -> None:
    """Where the operators are now."""
    for (i, d), here in model.on.items():
        model.cp.add_hint(here, int(model.state.place[i] == d))


def _read(model: _WindowModel, value: Any) -> Better:
    """The window in the order of starts; among equals producers first."""
    by = sorted(
        range(len(model.operators)),
        key=lambda x: (
            value(model.start[model.operators[x]]),
            value(model.end[model.operators[x]]),
            x,
        ),
    )
    sequence = [model.operators[x] for x in by]
    place = [
        next(d for d in range(model.m) if (i, d) in model.on and value(model.on[i, d]))
        for i in sequence
    ]
    return Better(np.array(sequence, dtype=np.int64), np.array(place, dtype=np.int64))
