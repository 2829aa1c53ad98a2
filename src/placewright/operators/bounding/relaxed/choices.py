"""What no plan that is better than a known one can choose."""

from __future__ import annotations

import numpy as np

from placewright.arrays import BoolArray, FloatArray
from placewright.operators.bounding.relaxed.program import Program
from placewright.operators.structure.ceft import ceft


class Choices:
    """Which group may still be on which device, in plans no longer than `Program.most`.

    Attributes
    ----------
    allowed
        Shape (groups, m).
    head, tail
        Shape (n,), in the program's unit: an operator starts no earlier, and from its end it is no
        less to the end of all.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.allowed: BoolArray = program.groups.allowed.copy()
        self.head = self.tail = np.zeros(program.problem.n)

    def by_price(self, value: float, reduced: FloatArray) -> BoolArray:
        """Groups and devices, shape (groups, m), that reduced costs forbid: newly, and for good.

        Parameters
        ----------
        value
            A bound on T for the multipliers that the reduced costs belong to.
        reduced
            Of every column.
        """
        place = self.program.of_group
        price = np.where(place >= 0, reduced[place], 0.0)
        return self._forbid(self.allowed & (value + price > self.program.most))

    def by_path(self) -> BoolArray:
        """Those that make a path too long, wherever all others are; heads and tails anew."""
        p, own = self.program.problem, self.program.groups.group
        found = np.zeros_like(self.allowed)
        while True:
            allowed = self.allowed[own]
            tables = ceft(p.asked(compute_s=np.where(allowed, p.compute_s, np.inf)))
            through = tables.through_s / self.program.scale_s
            long = np.zeros_like(self.allowed)
            np.logical_or.at(long, own, allowed & (through > self.program.most))
            new = self._forbid(long & self.allowed)
            if not new.any():
                work = np.where(allowed, p.compute_s, 0.0)
                self.head = self._least(tables.ceft_s - work, allowed)
                self.tail = self._least(tables.ceft_up_s - work, allowed)
                return found
            found |= new

    def _forbid(self, wrong: BoolArray) -> BoolArray:
        """All but what would leave a group without a device."""
        somewhere: BoolArray = (self.allowed & ~wrong).any(axis=1, keepdims=True)
        found: BoolArray = wrong & somewhere
        self.allowed &= ~found
        return found

    def _least(self, seconds: FloatArray, allowed: BoolArray) -> FloatArray:
        least: FloatArray = np.where(allowed, seconds, np.inf).min(axis=1) / self.program.scale_s
        return np.where(np.isfinite(least), np.maximum(0.0, least), 0.0)
