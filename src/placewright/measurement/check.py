"""Check: a placed run compared with plain eager PyTorch, tensor by tensor and step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from placewright.errors import CheckError
from placewright.io.arguments import Unlimited, checked

Role = Literal["output", "parameter", "buffer", "input"]
"""An input is compared where the model changes it in place."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a placed run may be from eager PyTorch, and why.

    Attributes
    ----------
    relative
        Of the largest magnitude in a tensor. 0: every bit must be equal.
    update
        Added for a parameter, in its own unit and per step: what an optimizer makes of a
        gradient that is nothing but rounding.
    reason
        Why it is not smaller, or why it can be 0.
    steps
        Compared at most: a training step that starts from rounded parameters amplifies them.
    """

    relative: float = 0.0
    update: float = 0.0
    reason: str = ""
    steps: int | None = None

    def absolute(self, role: Role, largest: float, step: int) -> float:
        """Largest difference that is allowed in a tensor whose largest magnitude is `largest`."""
        return self.relative * largest + (self.update * step if role == "parameter" else 0.0)


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor after one step.

    Attributes
    ----------
    step
        Counted from 1.
    tensor
        Name of the output, or qualified name of the parameter or buffer.
    max_abs_error
        Largest absolute difference of an element; ``inf`` where a value is missing, not a number
        on one side only, or of another shape or type.
    tolerance
        The largest difference that would have passed.
    """

    step: int
    role: Role
    tensor: str
    max_abs_error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether it is within the tolerance."""
        return self.max_abs_error <= self.tolerance

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"passed": self.passed}

    def __str__(self) -> str:
        return (
            f"{self.role} {self.tensor!r} after step {self.step} differs by "
            f"{self.max_abs_error:g}, tolerance {self.tolerance:g}"
        )


@checked
@dataclass(frozen=True, slots=True)
class Check:
    """All that was compared.

    Attributes
    ----------
    steps
        Compared, each from the state that the step before it left.
    compared
        Tensors by role, in each step.
    max_abs_error
        Largest difference of any tensor in any step.
    first
        Of the first step in which a tensor is beyond its tolerance, the tensor that is furthest
        beyond; ``None`` if all are within.
    failed
        Tensors beyond their tolerance in that step, furthest first, at most `LISTED`.
    beyond
        How many there are.
    reference
        What the run was compared with.
    """

    steps: int
    tolerance: Tolerance
    compared: Mapping[str, int]
    max_abs_error: Unlimited
    failed: tuple[Difference, ...] = ()
    beyond: int = 0
    note: str = ""
    reference: str = "plain eager PyTorch"

    @classmethod
    @checked
    def of(
        cls,
        differences: Sequence[Difference],
        tolerance: Tolerance,
        reference: str,
        roles: Sequence[Role] = ("output",),
    ) -> Check:
        """Steps whose differences are all known, in the order of the steps.

        Parameters
        ----------
        roles
            Of the tensors that were compared, counted in the last step.
        """
        failed = [d for d in differences if not d.passed]
        first = [d for d in failed if d.step == failed[0].step]
        first.sort(key=lambda d: d.tolerance - d.max_abs_error)
        last = max(d.step for d in differences)
        counted = [d.role for d in differences if d.step == last]
        return cls(
            steps=last,
            tolerance=tolerance,
            compared={role: counted.count(role) for role in roles},
            max_abs_error=max(d.max_abs_error for d in differences),
            failed=tuple(first[:LISTED]),
            beyond=len(first),
            reference=reference,
        )

    @property
    def first(self) -> Difference | None:
        """See above."""
        return self.failed[0] if self.failed else None

    @property
    def passed(self) -> bool:
        """Whether every tensor was within its tolerance in every step."""
        return not self.failed

    def demand(self) -> None:
        """Raise if it failed.

        Raises
        ------
        CheckError
            Names the tensor, the step, the difference and the tolerance.
        """
        if self.first is None:
            return
        raise CheckError(
            f"the placed run differs from {self.reference}",
            where=f"{self.first.role} {self.first.tensor!r} after step {self.first.step}",
            by=f"by {self.first.max_abs_error:g}, tolerance {self.first.tolerance:g}: "
            f"{self.tolerance.reason}; {_counted(self.beyond, 'tensor')} beyond it in that step",
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data: what ``-f json`` prints as ``check``."""
        return {
            "passed": self.passed,
            "steps": self.steps,
            "compared": dict(self.compared),
            "max_abs_error": self.max_abs_error,
            "tolerance": self.tolerance.relative,
            "tolerance_update": self.tolerance.update,
            "reason": self.tolerance.reason,
            "first": None if self.first is None else self.first.as_json(),
            "beyond": self.beyond,
            "failed": [difference.as_json() for difference in self.failed],
            "note": self.note,
        }

    def __str__(self) -> str:
        what = f"{self.max_abs_error:g} ({self.amount})"
        note = f" ({self.note})" if self.note else ""
        reference = self.reference.removeprefix("plain ")
        return f"largest difference from {reference}: {what}; {self._verdict()}{note}"

    @property
    def amount(self) -> str:
        """How much was compared."""
        counted = (_counted(n, role) for role, n in self.compared.items() if n)
        return f"{', '.join(counted)} after each of {_counted(self.steps, 'step')}"

    def _verdict(self) -> str:
        allowed = self.tolerance
        if self.first is not None:
            more = f" ({self.beyond} tensors are beyond theirs)" if self.beyond > 1 else ""
            return f"FAILED: {self.first}{more}; promised: {allowed.reason}"
        bound = f"{allowed.relative:g} of a tensor's largest value" if allowed.relative else "0"
        return f"passed, tolerance {bound}: {allowed.reason}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


LISTED = 8
"""Tensors that a failed check names."""


Array = np.ndarray[Any, Any]


def distance(made: Array | None, wanted: Array) -> tuple[float, float]:
    """Largest absolute difference, and the largest finite magnitude of `wanted`.

    The difference is ``inf`` where `made` is missing, of another shape or type, or not finite in
    another way. What is not finite has no magnitude that a tolerance could be a share of.
    """
    kind = np.complex128 if np.iscomplexobj(wanted) else np.float64
    b = wanted.astype(kind)
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    if made is None or made.shape != wanted.shape or made.dtype != wanted.dtype:
        return math.inf, largest
    a = made.astype(kind)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    apart = np.abs(a[~same] - b[~same])
    return float(np.where(np.isfinite(apart), apart, np.inf).max(initial=0.0)), largest
