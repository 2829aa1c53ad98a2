"""A unit of time in which a problem's times are about 1: solvers' tolerances are absolute."""

from __future__ import annotations

import math

import numpy as np

from placewright.samples.problem import SampleProblem

NEAR = 4
"""Powers of two from 1 that are near enough: the unit stays a second."""

LARGEST = 1000
"""Exponent of 2 that no time exceeds; what is rounded to nothing at the other end makes plans
faster, and bounds no less true."""


def in_units(problem: SampleProblem) -> tuple[SampleProblem, float]:
    """The same problem in another unit of time, and how many of these units a second has.

    The unit is about what a typical node takes for a sample, all epochs together; a second where
    that is near enough, else a power of two: apart from times next to 0 nothing is rounded.
    """
    units = _per_second(problem)
    if units == 1.0:
        return problem, units
    scaled = problem.replace(
        seconds_per_sample=problem.seconds_per_sample * units,
        fixed_s=problem.fixed_s * units,
        send_s=problem.send_s * units,
        receive_s=problem.receive_s * units,
        price_s=problem.price_s * units,
        sync_s=problem.sync_s * units,
    )
    return scaled, units


def _per_second(problem: SampleProblem) -> float:
    """A power of two; 1 where nothing takes any time."""
    linked = problem.send_s + problem.receive_s
    for times in (problem.work_s, linked[np.isfinite(linked)]):
        if (times > 0).any():
            wanted = -round(math.log2(float(np.median(times[times > 0]))))
            near = abs(wanted) <= NEAR
            return 1.0 if near else math.ldexp(1.0, min(wanted, LARGEST - _exponent(problem)))
    return 1.0


def _exponent(problem: SampleProblem) -> int:
    """Of the power of two that no time of the problem exceeds, 0 where that is less than 1."""
    p = problem
    tables = (p.seconds_per_sample, p.fixed_s, p.price_s, p.send_s, p.receive_s)
    largest_s = max(float(t[np.isfinite(t)].max(initial=p.sync_s)) for t in tables)
    return max(0, math.frexp(largest_s)[1])
