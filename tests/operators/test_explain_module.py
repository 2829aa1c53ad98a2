"""Explanations of a module's device, and the value of moving the module."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placewright.errors import UnknownNameError
from placewright.operators.conformance import tiny
from placewright.operators.explain import ModuleExplanation, explain, module_names
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem

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


def test_alternatives_are_what_the_judge_says() -> None:
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
