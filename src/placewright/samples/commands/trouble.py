"""Disturbances that `samples run --adapt` causes on purpose: --slow and --kill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from placewright.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from placewright.samples.adaptive.replanning import Trouble
    from placewright.samples.problem import SampleProblem


def troubles(
    problem: SampleProblem, slow: Sequence[str], kill: Sequence[str]
) -> tuple[Trouble, ...]:
    """``NODE:EPOCH:TIMES`` and ``NODE:EPOCH``, epochs counted from 1.

    Raises
    ------
    InputError
        Something else, or an epoch that the run does not have.
    UnknownNameError
        No node of this name.
    """
    return (
        *(_trouble(problem, written, "--slow", ("EPOCH", "TIMES")) for written in slow),
        *(_trouble(problem, written, "--kill", ("EPOCH",)) for written in kill),
    )


def _trouble(problem: SampleProblem, written: str, option: str, parts: tuple[str, ...]) -> Trouble:
    from placewright.samples.adaptive.replanning import Trouble

    name, *given = written.rsplit(":", len(parts))
    numbers = [_number(part) for part in given]
    if len(numbers) < len(parts) or not all(x > 0 for x in numbers) or numbers[0] % 1:
        form = ":".join(("NODE", *parts))
        hint = "epochs count from 1; TIMES is a number above 0"
        raise InputError(f"{written!r} is not {form}", where=option, hint=hint)
    if name not in problem.node_names:
        raise UnknownNameError("node", name, problem.node_names, where=option)
    epoch, times = (*numbers, math.inf)[:2]
    if epoch > problem.epochs:
        raise InputError(
            f"{written!r} is after the last epoch",
            where=option,
            by=f"the run has {problem.epochs}",
            hint="name an earlier epoch, or raise --epochs",
        )
    return Trouble(int(epoch) - 1, problem.node_names.index(name), times)


def _number(written: str) -> float:
    """A number that has an end, ``nan`` for everything else."""
    try:
        number = float(written)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
