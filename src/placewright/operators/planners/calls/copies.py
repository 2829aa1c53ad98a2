"""Several calls per accelerator as accelerators of one call each, and back."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star.kernels import calls_of, most_calls, play
from placewright.operators.simulation.star.latency import accelerators, units


def one_call_each(problem: OperatorProblem) -> OperatorProblem:
    """Every call on a copy of its accelerator, with all of its memory, at any time.

    A relaxation: every plan of `problem` is one of this problem, and takes no longer there.
    """
    source = sources(problem)
    cost = np.where(problem.allowed(), problem.compute_s, np.inf)
    return problem.replace(
        device_names=tuple(f"{problem.device_names[d]}#{x}" for x, d in enumerate(source)),
        device_kinds=(),
        compute_s=cost[:, source],
        memory_bytes=problem.memory_bytes[source],
        host_seconds_per_byte=problem.host_seconds_per_byte[source],
        latency_s=np.zeros((len(source), len(source))),
        seconds_per_byte=np.zeros((len(source), len(source))),
        channel=np.zeros((len(source), len(source)), dtype=np.int64),
        channel_names=("host memory",),
        pinned=np.full(problem.n, -1),
        calls=1,
    )


def sources(problem: OperatorProblem) -> IntArray:
    """The device that each device of `one_call_each` is, or is a copy of."""
    copies = np.where(accelerators(problem), most_calls(problem), 1)
    return np.repeat(np.arange(problem.m), copies)


def packed(problem: OperatorProblem, copied: OperatorPlan) -> OperatorPlan | None:
    """The calls of a plan for `one_call_each` on the accelerators themselves.

    Largest first, each to the accelerator with least room that can take it; ``None`` where
    that leaves one over. Calls of an accelerator follow each other as they began.
    """
    p, source = problem, sources(problem)
    called = accelerators(p)
    copies = one_call_each(p)
    begin_s = play(calls_of(copies), copied.placement, units(copies, copied))[1]
    need = np.bincount(copied.placement, np.ceil(p.resident_bytes), len(source))
    room, left = np.floor(p.memory_bytes), np.where(called, most_calls(p), 0)
    cost = np.where(p.allowed(), p.compute_s, np.inf)
    home = np.full(len(source), -1)
    home[~called[source]] = source[~called[source]]
    used = np.unique(copied.placement[called[source][copied.placement]])
    for x in sorted(used.tolist(), key=lambda x: (-need[x], x)):
        ops = np.flatnonzero(copied.placement == x)
        alike = (cost[ops] == cost[ops][:, [source[x]]]).all(axis=0) & called
        fits = np.flatnonzero(alike & (left > 0) & (room >= need[x]))
        if len(fits) == 0:
            return None
        home[x] = fits[np.argmin(room[fits])]
        room[home[x]] -= need[x]
        left[home[x]] -= 1
    call = _in_turn(home, begin_s, used, len(source))
    return OperatorPlan(home[copied.placement], call=call[copied.placement])


def _in_turn(home: IntArray, begin_s: FloatArray, used: IntArray, count: int) -> IntArray:
    """Shape (count,): the number of each copy among those of its accelerator, as they began."""
    call = np.zeros(count, dtype=np.int64)
    for d in np.unique(home[used]).tolist():
        here = used[home[used] == d]
        call[here[np.argsort(begin_s[here], kind="stable")]] = np.arange(len(here))
    return call
