"""The limit on the number of calls."""

from __future__ import annotations

import pytest

from placewright.operators.judge import judge
from placewright.operators.planners.calls.reductions import one_call_each
from placewright.operators.planners.exact_latency import ExactLatency
from placewright.planning.contract import Context
from tests.operators.star_instances import star_problem


def test_calls_are_limited_by_the_number_of_operators() -> None:
    """With 2^53 calls the plans are worth what they are with one per operator, and as proved."""
    for seed in range(12):
        few = star_problem(seed, operators=5, accelerators=2)
        few = few.replace(calls=few.n)
        many = few.replace(calls=2**53)
        assert one_call_each(many).m == one_call_each(few).m
        proposals = [ExactLatency()(p, Context()) for p in (few, many)]
        assert judge(many, proposals[1].plan).value == judge(few, proposals[0].plan).value
        assert proposals[1].bound == pytest.approx(proposals[0].bound)
