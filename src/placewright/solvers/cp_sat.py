"""CP-SAT, as it is inside OR-tools, run so that it can be stopped.

A solver works in a thread of its own while the main thread waits, so that Ctrl-C reaches it: the
solver is told to stop and its best answer so far is taken.
"""

from __future__ import annotations

import importlib.util
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MISSING = "ortools is not installed (pip install 'placewright[exact]')"
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """What a solver claims.

    Attributes
    ----------
    values
        The value of a variable; ``None`` where there is no solution.
    bound
        Of the objective, in its unit; zero where nothing was proved.
    infeasible
        Whether it claims that there is no solution at all.
    interrupted
        Whether somebody pressed Ctrl-C.
    proved
        Whether it claims that no solution of its model is better.
    """

    values: Callable[[Any], float] | None
    bound: float
    infeasible: bool = False
    interrupted: bool = False
    proved: bool = False


def installed() -> bool:
    """Whether OR-tools is there."""
    return importlib.util.find_spec("ortools") is not None


def run_cp_sat(
    model: Any,
    *,
    seed: int,
    deadline_s: float,
    workers: int,
    presolve: bool = True,
    work: float = math.inf,
    gap: float = 0.0,
) -> Answer:
    """Solve a CP-SAT model; the same answer every time where it ends before the deadline.

    It also ends after `work`, CP-SAT's deterministic time, about seconds, and where value and
    bound are within the relative `gap`.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.random_seed = seed % 2**31
    parameters.num_workers = workers
    parameters.cp_model_presolve = presolve
    parameters.interleave_search = workers > 1
    parameters.catch_sigint_signal = False
    parameters.relative_gap_limit = gap
    left = deadline_s - time.perf_counter()
    if left <= 0:
        return Answer(None, 0.0)
    if math.isfinite(left):
        parameters.max_time_in_seconds = left
    if math.isfinite(work):
        parameters.max_deterministic_time = work
    status, interrupted = waited(lambda: solver.solve(model), solver.stop_search)
    solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Answer(
        values=solver.value if solved else None,
        bound=max(0.0, solver.best_objective_bound) if solved else 0.0,
        infeasible=status == cp_model.INFEASIBLE,
        interrupted=interrupted,
        proved=status == cp_model.OPTIMAL,
    )


def waited(work: Callable[[], Any], stop: Callable[[], Any]) -> tuple[Any, bool]:
    """What `work` returns, and whether Ctrl-C came: then `stop` was called."""
    done, found = threading.Event(), list[Any]()

    def body() -> None:
        try:
            found.append(work())
        except BaseException as error:  # handed on to the waiting thread
            found.append(error)
        finally:
            done.set()

    threading.Thread(target=body, daemon=True).start()
    interrupted = False
    try:
        while not done.wait(_TICK_S):
            pass
    except KeyboardInterrupt:
        interrupted = True
        stop()
        done.wait()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0], interrupted
