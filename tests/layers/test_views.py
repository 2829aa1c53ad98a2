"""Pages and explanations say what the judge says."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.layers.conformance import tiny
from placewright.layers.files import read_proposal
from placewright.layers.judge import judge
from placewright.layers.plan import LayerPlan, Replica, Stage, Strategy
from placewright.layers.problem import Training
from placewright.layers.views import explain, layer_strip, parts
from placewright.planning.solving import judged_plan, solve
from placewright.report.text import seconds


def test_boxes_have_their_strategy_s_colour() -> None:
    """The style sheet fills class span inside of a colour's class; the legend names those used."""
    p = tiny([1.0, 1.0], 2, 1)
    strategies = (Strategy.TENSOR, Strategy.REPLICATED)
    plan = LayerPlan((Stage(0, 1, (Replica((0, 1), 4),), 2, strategies),))
    drawn = layer_strip(p, plan)
    boxes = re.findall(r'<g class="(d\d)"[^>]*><rect[^>]* class="span"', drawn)
    order = tuple(Strategy)
    assert boxes == [f"d{order.index(s)}" for s in strategies] * 2  # layers, then the legend
    assert drawn.count("<rect") == len(boxes)
    assert "replicated" in drawn
    assert "sharded" not in drawn


def test_curves_of_memory_reach_what_workers_hold() -> None:
    """Replicas of two and of one worker: halves of the weights, and all of them."""
    p = tiny([1.0, 2.0], 3, 2)
    plan = LayerPlan((Stage(0, 1, (Replica((0, 1), 2), Replica((2,), 2)), 2),))
    judged = judge(p, plan)
    trace = judged.trace()
    assert trace is not None
    for curve in trace.memory:
        held = judged.held_bytes[p.worker_names.index(trace.tracks[curve.track])]
        assert curve.held_bytes.max() == pytest.approx(held)
        assert curve.held_bytes.min() == pytest.approx(curve.held_bytes[0])


def test_times_of_a_layer_are_those_of_its_passes() -> None:
    """Of all replicas, and as fast as workers are while others are idle."""
    tables = np.array([1.0, 3.0])[:, None, None, None] * np.ones((1, 2, 1, 1))
    p = tiny(
        [1.0],
        3,
        forward_s=tables,
        backward_s=2 * tables,
        kind_names=("fast", "slow"),
        worker_kind=[0, 1, 0],
        alone=0.5,
    )
    plan = LayerPlan((Stage(0, 0, (Replica((0,), 3), Replica((1,), 1))),))
    trace = judge(p, plan).trace()
    assert trace is not None
    facts = explain(p, plan, "l0").facts
    for what in ("forward", "backward"):
        passes = trace.label == trace.labels.index(f"{what} 0")
        taken = (trace.end_s - trace.start_s)[passes]
        assert facts[what] == " to ".join(dict.fromkeys(map(seconds, sorted(taken))))


def test_a_layer_is_moved_as_a_planner_moves_cuts() -> None:
    """Gradients of plain stages are exchanged in buckets, before and after; other stages stay."""
    training = Training(bucket_bytes=100.0, overlap_sync=False)
    p = tiny([1.0] * 6, 8, 2, training=training, pack_s=[0.01])
    halves = tuple(Replica((w, w + 1), 1) for w in (0, 2))
    mixed = (Strategy.REPLICATED, Strategy.TENSOR, Strategy.DATA)
    for strategies in ((), mixed):
        plan = LayerPlan(
            (
                Stage(0, 2, halves, 2, strategies),
                Stage(3, 5, tuple(Replica((w,), 1) for w in (4, 5))),
            ),
            2,
        )
        for name, last, left in (("l2", 1, strategies[:2]), ("l3", 3, (*strategies, *mixed[2:]))):
            one, two = plan.stages
            own = left if strategies else ()
            moved = (
                replace(one, last_layer=last, strategies=own),
                replace(two, first_layer=last + 1),
            )
            value = judge(p, replace(plan, stages=moved)).value
            assert seconds(value) in explain(p, plan, name).changes.values()


def test_a_plan_names_the_strategies_that_are_judged(tmp_path: Path) -> None:
    """Of every layer, for people; written by hand it may leave them out, not contradict them."""
    p, path = tiny([1.0, 1.0, 1.0], 2, 1), tmp_path / "plan.json"
    data: Any = json.loads(solve(p, "tensor").save(path).read_text())
    assert {parts(data)[name] for name in p.layer_names} == {"tensor on w0 + w1 (4)"}
    stage = data["plan"]["stages"][0]
    stage["layer_strategies"]["l1"] = "data"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"stages\[0\].*'l1' has another strategy.*data here"):
        read_proposal(path, p)
    del stage["layer_strategies"]
    path.write_text(json.dumps(data))
    assert math.isfinite(judge(p, read_proposal(path, p).plan).value)
    assert parts(data)["l0 .. l2"] == "tensor on w0 + w1 (4)"


def test_a_table_of_many_stages_says_how_many_it_leaves_out() -> None:
    """Of forty."""
    p = tiny([1.0] * 40, 40)
    stages = tuple(Stage(k, k, (Replica((k,), 4),)) for k in range(40))
    assert "... and 8 more stages" in str(judged_plan(p, LayerPlan(stages)))
