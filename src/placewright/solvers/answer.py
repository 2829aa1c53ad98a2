"""Answers of solver back ends, and a way to run them that Ctrl-C can stop.

A solver works in a thread of its own while the main thread waits: on Ctrl-C the
solver is stopped and its best answer so far is taken.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MISSING = "ortools is not installed (pip install 'placewright[exact]')"
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """Solution, bound and status that a solver claims.

    Attributes
    ----------
    values
        The value of a variable; ``None`` where there is no solution.
    bound
        Of the objective, in its unit; zero where nothing was proved.
    infeasible
        Whether it claims that there is no solution at all.
    interrupted
        Whether Ctrl-C ended it.
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


def waited(work: Callable[[], Any], stop: Callable[[], Any]) -> tuple[Any, bool]:
    """The result of `work`, and whether Ctrl-C came; `stop` is called then."""
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
        # The solver ends by itself soon after: its answer so far is wanted, so wait for it.
        stop()
        done.wait()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0], interrupted
