"""What no plan that is as good as a known one can choose."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray
from placewright.operators.problem import OperatorProblem
from placewright.operators.structure.ceft import ceft
from placewright.operators.structure.groups import Groups, groups_of


class Choices:
    """Which group may still be on which device. All times are in units of `scale_s`.

    Attributes
    ----------
    most
        Plans that are longer do not count.
    allowed
        Shape (groups, m).
    head, tail
        Shape (n,): an operator starts no earlier, and from its end it is no less to the end of all.
    """

    def __init__(self, problem: OperatorProblem, scale_s: float, most: float) -> None:
        self.problem, self.scale_s, self.most = problem, scale_s, most
        self.groups: Groups = groups_of(problem)
        self.allowed: BoolArray = self.groups.allowed.copy()
        self.head = self.tail = np.zeros(problem.n)
        self.by_path()

    def by_price(self, value: float, price: FloatArray) -> BoolArray:
        """What is forbidden from now on, shape (groups, m).

        `value`: a bound on the end.
        `price`: Shape (groups, m): how much higher it is with the group on the device.
        """
        return self._forbid(self.allowed & (value + price > self.most))

    def by_path(self) -> BoolArray:
        """What makes a path too long, wherever all others are; heads and tails are recomputed."""
        p, own = self.problem, self.groups.group
        found = np.zeros_like(self.allowed)
        while True:
            allowed = self.allowed[own]
            tables = ceft(p.replace(compute_s=np.where(allowed, p.compute_s, np.inf)))
            through = tables.through_s / self.scale_s
            long = np.zeros_like(self.allowed)
            np.logical_or.at(long, own, allowed & (through > self.most))
            new = self._forbid(long & self.allowed)
            if not new.any():
                work = np.where(allowed, p.compute_s, 0.0)
                self.head = self._least(tables.ceft_s - work, allowed)
                self.tail = self._least(tables.ceft_up_s - work, allowed)
                return found
            found |= new

    def _forbid(self, wrong: BoolArray) -> BoolArray:
        """All but what would leave a group without a device."""
        somewhere = np.any(self.allowed & ~wrong, axis=1)
        found: BoolArray = wrong & np.reshape(somewhere, (-1, 1))
        self.allowed &= ~found
        return found

    def _least(self, seconds: FloatArray, allowed: BoolArray) -> FloatArray:
        least: FloatArray = np.where(allowed, seconds, np.inf).min(axis=1) / self.scale_s
        return np.where(np.isfinite(least), np.maximum(0.0, least), 0.0)
