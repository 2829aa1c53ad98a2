"""Summaries of a plan by module: every operator once, in few lines."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.operators.conformance import tiny
from placewright.operators.judge import judge
from placewright.operators.pipeline import Pipeline
from placewright.operators.placement_summary import (
    MOST_ROWS,
    PlacementSummary,
    placement_summary,
)
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem


def stack(layers: int, parts: Sequence[str] = ("attention", "mlp")) -> OperatorProblem:
    """Embedding, numbered layers of a few operators each, head; a chain of 8-byte tensors."""
    modules = ["embed", *(f"layers.{k}.{p}" for k in range(layers) for p in parts), "head"]
    n = len(modules)
    return tiny(
        [[1.0, 2.0]] * n,
        [(k, 8.0, [k + 1]) for k in range(n - 1)],
        resident_bytes=np.full(n, 4.0),
        operator_modules=tuple(modules),
    )


def summarised(problem: OperatorProblem, plan: OperatorPlan) -> PlacementSummary:
    """Of a plan that is judged here."""
    return placement_summary(judge(problem, plan), plan)


def test_consecutive_layers_on_one_device_are_a_range() -> None:
    """Two devices, cut between two layers: two lines tell all of it."""
    problem = stack(36)
    place = (np.arange(problem.n) > 36).astype(np.int64)
    summary = summarised(problem, OperatorPlan(place))
    first, second = summary.devices
    assert first.modules == ("embed", "layers.0-17")
    assert second.modules == ("layers.18-35", "head")
    assert (first.operators, second.operators) == (37, 37)
    assert (first.resident_bytes, first.seconds, second.seconds) == (148.0, 37.0, 74.0)
    assert summary.split == ()
    (crossing,) = summary.crossings
    assert (crossing.source, crossing.target, crossing.tensors, crossing.bytes) == (
        "dev0",
        "dev1",
        1,
        8.0,
    )
    text = str(summary)
    assert "layers.0-17" in text
    assert "per step dev0 -> dev1: 8 B in 1 tensor" in text


def test_a_layer_that_is_cut_is_told_with_its_shares() -> None:
    """Small shared modules stay folded, with what each device has of their seconds."""
    problem = stack(36)
    place = (np.arange(problem.n) > 37).astype(np.int64)
    summary = summarised(problem, OperatorPlan(place))
    (split,) = summary.split
    assert split.module == "layers.18"
    assert split.seconds == {"dev0": 1.0, "dev1": 2.0}
    assert "split layers.18: dev1 66.7 %, dev0 33.3 % of its seconds" in str(summary)


def test_a_layer_that_is_elsewhere_is_not_in_the_row_of_the_others() -> None:
    """However small its share of the list is."""
    problem = stack(60)
    place = np.array([m.startswith("layers.7.") for m in problem.operator_modules])
    summary = summarised(problem, OperatorPlan(place.astype(np.int64)))
    first, second = summary.devices
    assert first.modules == ("embed", "layers.0-6", "layers.8-59", "head")
    assert second.modules == ("layers.7",)


def test_a_module_that_is_nearly_all_on_one_device_is_marked() -> None:
    """An operator that takes seconds and holds nothing is elsewhere: the row says so."""
    problem = stack(1, [f"p{k}" for k in range(40)])
    problem = problem.replace(resident_bytes=np.where(np.arange(problem.n) == 5, 0.0, 4.0))
    summary = summarised(problem, OperatorPlan((np.arange(problem.n) == 5).astype(np.int64)))
    assert summary.devices[0].modules == ("the whole model (mostly)",)


def test_one_device_has_the_whole_model_and_unknown_modules_have_no_column() -> None:
    """The extremes: nothing crosses, and a problem without modules still has devices."""
    problem = stack(3)
    summary = summarised(problem, OperatorPlan(np.zeros(problem.n)))
    assert summary.devices[0].modules == ("the whole model",)
    assert summary.crossings == ()
    bare = problem.replace(operator_modules=())
    text = str(summarised(bare, OperatorPlan(np.arange(bare.n) % 2)))
    assert "modules" not in text
    assert len(text.splitlines()) == 5


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_operator_is_on_one_device_and_the_text_is_short(
    seed: int, layers: int, devices: int
) -> None:
    """Random placements: counts, bytes and seconds add up; crossings as counted by brute force."""
    rng = np.random.default_rng(seed)
    base = stack(layers)
    n = base.n
    problem = tiny(
        rng.uniform(0.5, 2.0, size=(n, devices)).tolist(),
        [(k, float(rng.integers(0, 9)), [k + 1, min(k + 2, n - 1)]) for k in range(n - 1)],
        resident_bytes=rng.integers(0, 9, size=n).astype(float),
        operator_modules=base.operator_modules,
    )
    place = rng.integers(0, devices, size=n)
    summary = summarised(problem, OperatorPlan(place))
    assert sum(d.operators for d in summary.devices) == n
    assert math.isclose(
        sum(d.resident_bytes for d in summary.devices), problem.resident_bytes.sum()
    )
    expected: dict[tuple[str, str], float] = {}
    for k in range(problem.t):
        readers = problem.consumers[problem.consumer_offsets[k] : problem.consumer_offsets[k + 1]]
        for target in {int(place[r]) for r in readers} - {int(place[k])}:
            pair = (f"dev{place[k]}", f"dev{target}")
            expected[pair] = expected.get(pair, 0.0) + float(problem.tensor_bytes[k])
    found = {(c.source, c.target): c.bytes for c in summary.crossings}
    assert found == {pair: total for pair, total in expected.items() if total}
    rows = sum(len(d.modules) for d in summary.devices) + len(summary.split)
    assert rows <= MOST_ROWS
    assert len(str(summary).splitlines()) <= 2 + devices + 9 + 9  # the map and the header first
    named = re.findall(r"layers\.(\d+)", " ".join(s.module for s in summary.split))
    assert all(int(k) < layers for k in named)


def test_the_map_says_in_one_line_which_layers_are_where() -> None:
    """Layers by device in their order, a layer that is cut, and what is sent per step."""
    problem = stack(32)
    for first, words in (
        (37, "layers 0-17 on dev0, 18-31 on dev1; 8 B per step between them"),
        (38, "layers 0-17 on dev0, 18 on dev0 and dev1, 19-31 on dev1; 8 B per step between them"),
        (problem.n, "the whole model on dev0"),
        (1, "layers 0-31 on dev1, other modules on dev0; 8 B per step between them"),
    ):
        place = (np.arange(problem.n) >= first).astype(np.int64)
        summary = summarised(problem, OperatorPlan(place))
        assert summary.module_map == words
        assert str(summary).splitlines()[0] == words
        assert summary.as_json()["module_map"] == words


def test_the_map_of_a_model_without_layers_lists_modules_and_pairs() -> None:
    """Three devices, each with modules; nothing where modules are not known."""
    problem = tiny(
        [[1.0, 1.0, 1.0]] * 4,
        [(k, 2048.0, [k + 1]) for k in range(3)],
        operator_modules=("stem", "body", "neck", "head"),
    )
    place = OperatorPlan(np.array([0, 0, 1, 2]))
    words = "stem to body on dev0, neck on dev1, head on dev2; per step 2 KiB between dev0 and dev1"
    found = summarised(problem, place).module_map
    assert found == f"{words}, 2 KiB between dev1 and dev2"
    unknown = problem.replace(operator_modules=())
    assert summarised(unknown, place).module_map == ""


def test_a_device_with_copies_has_the_operators_of_its_stage() -> None:
    """Two devices take turns with the first layers; the copy's seconds are of its own speed."""
    base = stack(4, ("mlp",))
    problem = tiny(
        [[1.0, 2.0, 4.0]] * base.n,
        [(k, 8.0, [k + 1]) for k in range(base.n - 1)],
        resident_bytes=base.resident_bytes,
        operator_modules=base.operator_modules,
        objective="throughput",
        pipeline=Pipeline(replication=True, by_speed=True),
    )
    half = OperatorPlan(np.array([0, 0, 0, 2, 2, 2]), replica_of=np.array([0, 0, 2]))
    first, copy, _ = summarised(problem, half).devices
    assert (copy.operators, copy.resident_bytes, copy.modules) == (3, 12.0, first.modules)
    assert (first.copy_of, copy.copy_of, first.seconds, copy.seconds) == (None, "dev0", 3.0, 6.0)
    text = str(summarised(problem, half))
    assert "layers 0-1 on dev0, 2-3 on dev2, copies on dev1" in text
    assert "(copy of dev0)" in text
    whole = OperatorPlan(np.zeros(base.n), replica_of=np.array([0, 0, 0]))
    words = "a copy of the whole model on each of dev0, dev1, dev2"
    assert summarised(problem, whole).module_map == words
