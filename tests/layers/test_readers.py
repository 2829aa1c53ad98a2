"""Piper's inputs: published values, and refusals."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.cli.console import Console
from placewright.errors import InfeasibleError, InputError
from placewright.layers.commands import find_problem
from placewright.layers.files import read_piper, topological
from placewright.layers.judge import judge
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.planners.piper import best_plan
from placewright.layers.views import explain
from placewright.planning.solving import solve
from tests.published import published


def test_gnmt_reaches_the_published_load() -> None:
    """263.354 on two devices of 2.5 GB; the rest is in benchmarks/layers_planners.py."""
    p = read_piper(published("piper/gnmt.json"), devices=2, memory_bytes=2.5 * 2**30)
    result = solve(p, "dp", time_limit_s=600)
    assert result.value <= 263.355
    assert result.judgement.feasible
    assert result.bound <= result.value


def small(**changes: Any) -> dict[str, Any]:
    """Three nodes in a chain with two variants."""

    def node(i: int, time: float) -> dict[str, Any]:
        variants = [
            {
                "id": name,
                "timePerSample": time * factor,
                "parameterSize": 4.0,
                "memoryUsageA": kept,
                "memoryUsageB": 10.0,
                "syncTimeFw": {str(i - 1): 0.0} if i else {},
                "syncTimeBw": {str(i + 1): 0.0} if i < 2 else {},
            }
            for name, factor, kept in (("vanilla", 1.0, 10.0), ("again", 1.5, 1.0))
        ]
        return {"id": i, "name": f"n{i}", "TMPCs": {"1": variants}}

    edges = [{"sourceId": i, "destId": i + 1, "communicationCost": 0.0} for i in range(2)]
    usual = {
        "maxDevices": 3,
        "maxMemoryPerDevice": 1e9,
        "bandwidth": 1e9,
        "mbsInBatch": 4,
        "nodes": [node(0, 1.0), node(1, 2.0), node(2, 3.0)],
        "edges": edges,
    }
    return usual | changes


def test_a_chain_by_hand(tmp_path: Path) -> None:
    """The first layer alone, two replicas of the others; memory forces variants."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(small()))
    p = read_piper(path)
    assert solve(p, "dp").value == pytest.approx((2.0 + 3.0) / 2)
    tight = p.replace(memory_bytes=[26.0] * 3)
    found = solve(tight, "dp")
    assert found.judgement.feasible
    assert 1 in found.plan.variants
    with pytest.raises(InfeasibleError, match=r"needs .* more"):
        best_plan(p.replace(memory_bytes=[5.0] * 3))
    alone = read_piper(path, devices=1, memory_bytes=26.0)  # each layer has room, not all three
    with pytest.raises(InfeasibleError, match=r"all layers need 7 B more"):
        best_plan(alone)
    # Each layer has room, and so would all three: but two of them on one device have not.
    two = read_piper(path, devices=2, memory_bytes=20.0)
    with pytest.raises(InfeasibleError, match=r"needs least memory needs 2\S* B more on device0"):
        best_plan(two)


def test_layers_without_common_costs_have_no_plan(tmp_path: Path) -> None:
    """No memory is enough where costs are missing: the search for it ends."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(small()))
    p = read_piper(path)
    assert p.variants is not None
    never = replace(p.variants, time_s=np.full_like(p.variants.time_s, math.inf))
    with pytest.raises(InfeasibleError, match="no stages on 3 devices have costs for all layers"):
        best_plan(p.replace(variants=never))


def test_variants_of_problems_and_plans_are_checked(tmp_path: Path) -> None:
    """Shapes and numbers by name; a plan has one known variant per layer."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(small()))
    p = read_piper(path)
    assert p.variants is not None
    for changes, match in (
        ({"time_s": np.ones((1, 1, 2))}, "variants: time_s has the wrong shape"),
        ({"fixed_bytes": np.full((3, 1, 2), math.nan)}, "fixed_bytes must be numbers"),
        ({"bandwidth": 0.0}, "bandwidth above 0"),
        ({"batch_samples": 0}, "batch_samples of at least 1"),
        ({"batch_samples": 5}, "batch_samples are the global batch.*5 samples, global_batch 4"),
    ):
        with pytest.raises(InputError, match=match):
            p.replace(variants=replace(p.variants, **changes))
    one = LayerPlan((Stage(0, 2, (Replica((0,), 1),)),))
    assert judge(p, replace(one, variants=(0, 1, 0))).value > 0
    for variants, match in (((), "0 variants for 3 layers"), ((0, 0, 2), "known are 0 to 1")):
        with pytest.raises(InputError, match=match):
            judge(p, replace(one, variants=variants))
    with pytest.raises(InputError, match="objective of layers with variants"):
        p.replace(variants=None)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"recompute": True}, "stage 0: layers of a full pipeline differ by their variants"),
        ({"zero_stage": 1}, "differ by their variants"),
        ({"replicas": (Replica((0,), 2),)}, r"shares and micro_batches of \[1, 2\]"),
        ({"replicas": tuple(Replica((w,), 1) for w in range(3))}, r"\[3\] replicas, 4 samples"),
    ],
)
def test_what_a_load_does_not_count_is_no_part_of_a_full_pipeline(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    """Options of steps would be shown beside a value that does not know them."""
    (tmp_path / "p.json").write_text(json.dumps(small()))
    stage = replace(Stage(0, 2, (Replica((0,), 1),)), **changes)
    with pytest.raises(InputError, match=match):
        judge(read_piper(tmp_path / "p.json"), LayerPlan((stage,), variants=(0, 0, 0)))


def test_a_full_pipeline_is_shown_by_its_variants(tmp_path: Path) -> None:
    """Micro-batches of a batch, samples of a replica, and what a smaller batch changes."""
    (tmp_path / "p.json").write_text(json.dumps(small()))
    source = f"piper:{tmp_path / 'p.json'}?memory=45"
    result = solve(find_problem(source, Console()), "dp")
    shown = str(result)
    assert "a full pipeline of 4 micro-batches of one sample" in shown
    assert re.search(r"2 x 1 .* data, vanilla +1/2 ", shown)
    assert explain(result.problem, result.plan, "device2").facts["share"] == "1 of 2 samples"
    other = replace(result.plan, variants=(1, 0, 0))
    assert explain(result.problem, other, "0.n0").facts["variant"] == "again"
    assert solve(find_problem(source, Console(), batch=2), "dp").problem.global_batch == 2
    with pytest.raises(InputError, match=r"got --approximate"):
        find_problem(source, Console(), exact=False)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    """Missing fields, cycles."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps({k: v for k, v in small().items() if k != "bandwidth"}))
    with pytest.raises(InputError, match="'bandwidth' is missing"):
        read_piper(path)
    for key, value, says in (
        ("maxDevices", 10**18, "at most 65536"),  # not that many names
        ("maxDevices", math.inf, "whole number"),
        ("bandwidth", None, f"^{path}: bandwidth: must be a number"),
        ("nodes", [small()["nodes"][0]] * 2, "the node .0. is there twice"),
    ):
        path.write_text(json.dumps(small() | {key: value}))
        with pytest.raises(InputError, match=says):
            read_piper(path)
    with pytest.raises(InputError, match="cycle"):
        topological([0, 1], [(0, 1), (1, 0)], "x")
    assert topological([2, 0, 1], [(0, 1), (1, 2)], "x") == [0, 1, 2]
