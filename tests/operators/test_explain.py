"""Explanations of an operator's or a module's device, and the value of moving it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.errors import UnknownNameError
from placewright.operators.conformance import tiny
from placewright.operators.explain import (
    ModuleExplanation,
    critical_operators,
    explain,
    module_names,
)
from placewright.operators.judge import judge
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.problem import OperatorProblem

DIAMOND = [(0, 1.0, [1, 2]), (1, 1.0, [3]), (2, 1.0, [3])]


def test_the_long_branch_is_critical_and_the_short_one_is_not() -> None:
    """A diamond whose first branch takes longer."""
    problem = tiny([[1.0, 1.0], [5.0, 5.0], [1.0, 1.0], [1.0, 1.0]], DIAMOND)
    plan = OperatorPlan(np.array([0, 0, 1, 0]))
    assert critical_operators(judge(problem, plan)).tolist() == [True, True, False, True]


def test_a_transfer_carries_criticality() -> None:
    """What waits for a tensor from elsewhere makes its sender critical."""
    problem = tiny([[1.0, 1.0], [1.0, 1.0]], [(0, 3.0, [1])])
    found = explain(problem, OperatorPlan(np.array([0, 1])), "op0")
    assert found.critical
    assert found.sent == {"tensor0": ("dev1",)}
    assert found.value_s == 5.0
    back = explain(problem, OperatorPlan(np.array([0, 1])), "op1")
    assert back.received == {"tensor0": "dev0"}


def test_one_at_a_time_everything_is_critical() -> None:
    """Whatever runs keeps all others waiting, also on another device."""
    problem = tiny([[1.0, 1.0], [2.0, 2.0]], overlap="serial")
    plan = OperatorPlan(np.array([0, 1]))
    assert critical_operators(judge(problem, plan)).tolist() == [True, True]
    assert [limit.share for limit in explain(problem, plan, "op0").limits] == [2 / 3, 1 / 3]


def test_an_order_that_another_device_contradicts_is_no_alternative() -> None:
    """A reader may stand before its producer in the order only while they are apart."""
    problem = tiny([[1.0, 1.0], [1.0, 1.0]], [(0, 1.0, [1])])
    plan = OperatorPlan(np.array([0, 1]), np.array([1, 0]), Dispatch.IN_ORDER)
    (other,) = explain(problem, plan, "op1").alternatives
    assert (other.value_s, other.device) == (math.inf, "dev0")
    assert "the order contradicts the graph" in other.note


def test_alternatives_are_what_the_judge_says() -> None:
    """Best first; a group moves as one; what cannot be says why."""
    problem = tiny(
        [[2.0, 1.0, math.inf], [2.0, 3.0, 1.0]],
        [(0, 1.0, [1])],
        colocation=[0, 0],
        resident_bytes=[4.0, 4.0],
        memory_bytes=[100.0, 100.0, 1.0],
    )
    found = explain(problem, OperatorPlan(np.array([0, 0])), "op0")
    assert found.group == 2
    assert [a.device for a in found.alternatives] == ["dev1", "dev2"]
    assert found.alternatives[0].value_s == 4.0
    assert math.isinf(found.alternatives[1].value_s)
    assert "cannot run" in found.alternatives[1].note


def test_too_little_memory_is_said() -> None:
    """A move that does not fit has no value and names the bytes."""
    problem = tiny([[2.0, 1.0]], resident_bytes=[8.0], memory_bytes=[10.0, 5.0])
    (other,) = explain(problem, OperatorPlan(np.array([0])), "op0").alternatives
    assert other.note == "'dev1' needs 3 B more than it has"


def test_a_copy_of_a_stage_is_no_alternative() -> None:
    """It has no operators of its own; the other devices are judged as ever."""
    problem = tiny(
        [[2.0, 2.0, 2.0]] * 2,
        objective="throughput",
        communication="star",
        pipeline=Pipeline(replication=True),
    )
    plan = OperatorPlan(np.array([0, 0]), replica_of=np.array([0, 0, 2]))
    found = explain(problem, plan, "op0").alternatives
    assert [(a.device, a.value_s) for a in found] == [("dev2", 2.0), ("dev1", math.inf)]
    assert found[1].note == "it is a copy of 'dev0'"


def test_an_unknown_operator_offers_the_nearest() -> None:
    """Names are the identity."""
    with pytest.raises(UnknownNameError, match="did you mean 'op1'"):
        explain(tiny([[1.0]] * 2), OperatorPlan(np.array([0, 0])), "opp1")


def test_the_binding_limit_is_reported() -> None:
    """A pin, a device that has no room, or the time that the next best costs."""
    pinned = tiny([[1.0, 2.0]], pinned=[0])
    assert "pinned" in explain(pinned, OperatorPlan(np.array([0])), "op0").binding
    small = tiny([[2.0, 1.0]], resident_bytes=[8.0], memory_bytes=[10.0, 5.0])
    found = explain(small, OperatorPlan(np.array([0])), "op0").binding
    assert "no other device" in found
    assert "needs 3 B more" in found
    free = explain(tiny([[1.0, 3.0]]), OperatorPlan(np.array([0])), "op0").binding
    assert free == "time: on dev1, the next best, the plan takes 2 s more"
    worse = explain(tiny([[1.0, 3.0]]), OperatorPlan(np.array([1])), "op0").binding
    assert worse == "nothing: on dev0 the plan would take 2 s less"


def test_what_limits_the_plan_adds_up() -> None:
    """Two operators and the transfer between them fill the makespan; a full memory is named."""
    problem = tiny(
        [[1.0, 1.0], [1.0, 1.0]],
        [(0, 3.0, [1])],
        resident_bytes=[1.0, 99.0],
        memory_bytes=[1000.0, 105.0],
    )
    found = explain(problem, OperatorPlan(np.array([0, 1])), "op0").limits
    assert [limit.kind for limit in found] == ["link", "compute", "compute", "memory"]
    assert sum(limit.share for limit in found[:3]) == pytest.approx(1.0)
    assert found[-1].name == "dev1"
    assert "60 % of the critical path" in str(found[0])


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.integers(0, 10_000))
def test_on_one_device_everything_is_critical(n: int, seed: int) -> None:
    """Nothing waits, and the sum of the times is the makespan."""
    rng = np.random.default_rng(seed)
    tensors = [(i, 1.0, [j]) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.3]
    problem = tiny(rng.random((n, 2)).tolist(), tensors)
    judgement = judge(problem, OperatorPlan(np.zeros(n, dtype=np.int64)))
    assert critical_operators(judgement).all()


def test_it_prints_itself() -> None:
    """Where it runs, whether it is critical, and a line per alternative."""
    problem = tiny([[1.0, 2.0], [1.0, 1.0]], [(0, 3.0, [1])])
    lines = str(explain(problem, OperatorPlan(np.array([0, 1])), "op0")).splitlines()
    assert lines[0] == "op0 runs on dev0 for 1 s"
    assert lines[1].endswith("on the critical path")
    assert lines[-1].split()[0] == "dev1"


MODULES = ("embed", "layers.0", "layers.0.mlp", "layers.1", "layers.10", "head")


def chain(**changes: object) -> OperatorProblem:
    """Six operators in a row; dev1 is twice as slow."""
    return tiny(
        [[1.0, 2.0]] * 6,
        [(k, 3.0, [k + 1]) for k in range(5)],
        resident_bytes=np.full(6, 4.0),
        operator_modules=MODULES,
        **changes,
    )


def explained(problem: OperatorProblem, place: list[int], name: str) -> ModuleExplanation:
    """Of a plan with that placement."""
    found = explain(problem, OperatorPlan(np.array(place)), name)
    assert isinstance(found, ModuleExplanation)
    return found


def test_a_module_is_all_that_is_below_it_and_nothing_else() -> None:
    """``layers.1`` is not ``layers.10``; parents without operators of their own are modules."""
    problem = chain()
    assert list(module_names(problem)) == [
        "embed",
        "layers",
        "layers.0",
        "layers.0.mlp",
        "layers.1",
        "layers.10",
        "head",
    ]
    assert explained(problem, [0] * 6, "layers.1").operators == 1
    assert explained(problem, [0] * 6, "layers").operators == 4
    found = explained(problem, [0, 0, 1, 1, 1, 0], "layers.0")
    assert {name: part.operators for name, part in found.parts.items()} == {"dev0": 1, "dev1": 1}
    assert found.parts["dev1"].seconds == 2.0
    assert (found.bytes_in, found.bytes_out) == ({"dev0": 3.0}, {"dev1": 3.0})


def test_alternatives_of_modules_are_what_the_judge_says() -> None:
    """The whole module on each device on which it is not wholly, best first."""
    problem, place = chain(), [0, 0, 1, 1, 1, 0]
    found = explained(problem, place, "layers.0")
    assert found.value_s == judge(problem, OperatorPlan(np.array(place))).value
    for alternative in found.alternatives:
        d = problem.device_names.index(alternative.device)
        moved = judge(problem, OperatorPlan(np.array([0, d, d, 1, 1, 0])))
        assert alternative.value_s == moved.value
        assert alternative.compute_s == 2.0 * (1 + d)
    assert [a.device for a in found.alternatives] == ["dev0", "dev1"]
    assert len(explained(problem, [0] * 6, "layers.0").alternatives) == 1


def test_groups_move_along_and_what_does_not_fit_says_so() -> None:
    """Operators outside that share a group are counted; memory is named."""
    problem = chain(colocation=[0, 1, 2, 3, 4, 1], memory_bytes=[100.0, 10.0])
    found = explained(problem, [0] * 6, "layers.0")
    assert found.together == 1
    (other,) = found.alternatives
    assert math.isinf(other.value_s)
    assert "more than it has" in other.note


def test_an_unknown_name_offers_the_nearest() -> None:
    """Among modules and operators."""
    plan = OperatorPlan(np.zeros(6))
    with pytest.raises(UnknownNameError, match=r"did you mean 'layers.10'"):
        explain(chain(), plan, "layer.10")
    with pytest.raises(UnknownNameError, match="did you mean 'op3'"):
        explain(chain(), plan, "opp3")


def test_the_text_has_place_traffic_and_moves() -> None:
    """One short table each."""
    text = str(explained(chain(), [0, 0, 1, 1, 1, 0], "layers.0"))
    for words in (
        "module layers.0: 2 operators on dev0, dev1",
        "bytes in: 3 B from dev0",
        "bytes out: 3 B to dev1",
        "moved whole to",
        "%",
    ):
        assert words in text


def test_times_of_a_stream_are_those_of_one_sample() -> None:
    """Which ends after the period of the stream; numbers of a problem without units have none."""
    problem = tiny([[1.0, 9.0], [9.0, 3.0]], [(0, 4.0, [1])], objective="throughput").replace(
        dimensionless=True, operator_modules=("first", "second")
    )
    for name in ("op1", "second"):
        found = explain(problem, OperatorPlan([0, 1]), name)
        assert (found.value_s, found.makespan_s) == (4.0, 8.0)
        assert "from 5 to 8 of 8 (of a stream, 4 each)," in str(found)
        assert " s\n" not in str(found)


def test_a_stream_is_limited_by_its_busiest_device_or_link() -> None:
    """Shares of the period, which add up to more than one; free links limit nothing."""
    problem = tiny([[1.0, 9.0], [9.0, 3.0]], [(0, 4.0, [1])], objective="throughput")
    plan = OperatorPlan(np.array([0, 1]))
    found = [(x.kind, x.name, x.share) for x in explain(problem, plan, "op0").limits]
    assert found == [
        ("link", "dev0->dev1", 1.0), ("compute", "dev1", 0.75), ("compute", "dev0", 0.25),
    ]  # fmt: skip
    assert "link on dev0->dev1: 100 % of the period" in str(explain(problem, plan, "op0"))
    free = explain(problem.replace(links="free"), plan, "op0").limits
    assert [(x.name, x.share) for x in free] == [("dev1", 1.0), ("dev0", 1 / 3)]
