"""Files of measured plans: fields that are read or ignored, and prediction errors."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from benchmarks.measured_strategies.fields import UnknownFieldWarning, warn_unknown
from benchmarks.measured_strategies.reader import read_strategy

from placewright.errors import InputError
from placewright.layers.judge import judge
from tests.published import published

HIDDEN = ("source", "measured", "suspect", "reference")


def stripped(path: Path, folder: Path) -> Path:
    """A file as it is handed over for scoring."""
    data = {k: v for k, v in json.loads(path.read_text()).items() if k not in HIDDEN}
    copy = folder / path.name
    copy.write_text(json.dumps(data))
    return copy


def scored(name: str, folder: Path) -> tuple[list[float], list[float], list[float]]:
    """Measured and predicted steps, and relative errors of memory."""
    measured, predicted, memory = [], [], []
    for path in sorted(published(f"strategies/{name}").glob("*.json")):
        truth = json.loads(path.read_text())["measured"]
        if truth["step_s"] is None:
            continue
        judged = judge(*read_strategy(stripped(path, folder)))
        measured.append(truth["step_s"])
        predicted.append(judged.value)
        if judged.peak_memory_bytes is not None and truth.get("peak_memory_bytes"):
            memory.append(abs(judged.peak_memory_bytes / truth["peak_memory_bytes"] - 1))
    return measured, predicted, memory


def spearman(one: list[float], other: list[float]) -> float:
    """Rank correlation without ties."""
    ranks = [np.argsort(np.argsort(x)) for x in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize(
    ("name", "error", "correlation"),
    [
        ("sailor/opt-350-gh200", 0.06, 0.955),  # its authors: 0.060 and 0.957
        ("amp/homogeneous", 0.20, 0.95),
        ("amp/het_model", 0.10, 0.90),
    ],
)
def test_predictions_are_near_other_peoples_measurements(
    name: str, error: float, correlation: float, tmp_path: Path
) -> None:
    """Median error of the step, rank correlation, and memory where it was measured."""
    measured, predicted, memory = scored(name, tmp_path)
    errors = [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)]
    assert statistics.median(errors) <= error
    assert spearman(measured, predicted) >= correlation
    assert not memory or statistics.median(memory) <= 0.05


def test_what_was_measured_is_never_read(tmp_path: Path) -> None:
    """The same prediction with and without, and with absurd figures in its place."""
    path = published("strategies/sailor/opt-350-gh200/N2_D1.json")
    data = json.loads(path.read_text())
    data["measured"] = {"step_s": 1e9}
    absurd = tmp_path / "absurd.json"
    absurd.write_text(json.dumps(data))
    found = [judge(*read_strategy(x)).value for x in (path, stripped(path, tmp_path), absurd)]
    assert len(set(found)) == 1


def test_unknown_memory_is_null_and_links_share_the_card() -> None:
    """AMP's files keep no activations; four replicas on one node share its network."""
    p, plan = read_strategy(published("strategies/amp/het_model/mbs1_tp1_dp4_pp4.json"))
    assert judge(p, plan).peak_memory_bytes is None
    link = p.links[int(p.link_index[0, 1])]
    assert link.seconds(1e9, 4) == pytest.approx(4 * link.seconds(1e9, 1))
    assert math.isclose(link.seconds(1.25e9), 1.0)


def test_files_that_are_none_are_refused_by_field(tmp_path: Path) -> None:
    """By the file and the key."""
    path = tmp_path / "x.json"
    path.write_text('{"format": "strategy-exam/2"}')
    with pytest.raises(InputError, match="is no measured plan"):
        read_strategy(path)
    path.write_text('{"format": "strategy-exam/1", "model": {}}')
    with pytest.raises(InputError, match="'layers' is missing"):
        read_strategy(path)


def test_links_between_unlike_devices_without_a_curve_are_the_slower_of_their_own(
    tmp_path: Path,
) -> None:
    """A node of a second kind, half as fast, whose curves to the first were not measured."""
    data = json.loads(published("strategies/sailor/opt-350-gh200/N4_D2.json").read_text())
    for table in (data["profile"]["times"], data["profile"]["optimizer"]):
        table["rows"] += [["slow", *row[1:]] for row in table["rows"]]
    data["cluster"]["devices"]["slow"] = data["cluster"]["devices"]["GH-96"]
    data["cluster"]["nodes"][1] = {"device": "slow", "count": 4}
    links = data["cluster"]["links"]
    for table, names in ((links["between_nodes"], (0, 2)), (links["within_node"], (0,))):
        first = table["columns"].index("a2_bytes_per_s")
        for row in list(table["rows"]):
            half = [x / 2 if k >= first else x for k, x in enumerate(row)]
            table["rows"].append(["slow" if k in names else x for k, x in enumerate(half)])
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps(data))
    p, plan = read_strategy(path)
    own, across = p.links[int(p.link_index[0, 2])], p.links[int(p.link_index[0, 1])]
    assert across.seconds(1e8, 4) == pytest.approx(2 * own.seconds(1e8, 4))
    assert judge(p, plan).value > judge(p, plan).times.passes_s > 0  # type: ignore[union-attr]


def test_a_device_without_backward_times_is_extended_beside_one_with_them(tmp_path: Path) -> None:
    """Two samples at once are profiled there: half of it is one sample."""
    data = json.loads(published("strategies/sailor/opt-350-gh200/N4_D2.json").read_text())
    times = data["profile"]["times"]
    twice = [row for row in times["rows"] if row[2] == 2]
    times["rows"] += [["forward", *row[1:5], None] for row in twice]
    data["cluster"]["devices"]["forward"] = data["cluster"]["devices"]["GH-96"]
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps(data))
    p, _ = read_strategy(path)
    kind, full = p.kind_names.index("forward"), p.kind_names.index("GH-96")
    at, block = p.sizes.tolist().index(2.0), p.layer_kinds.index("block")
    assert p.forward_s[kind, 0, at, block] == pytest.approx(
        p.forward_s[full, 0, at, block], rel=0.3
    )
    assert p.backward_s[kind, 0, at, block] > p.forward_s[kind, 0, at, block]


def test_entries_of_another_kind_are_named(tmp_path: Path) -> None:
    """A node that is no object, and an unknown bandwidth inside a node, which its card bounds."""
    data = json.loads(published("strategies/amp/het_model/mbs1_tp2_dp2_pp4.json").read_text())
    path = tmp_path / "x.json"
    for node in data["cluster"]["nodes"]:
        node["internal_bytes_per_s"] = None
    path.write_text(json.dumps(data))
    p, plan = read_strategy(path)
    assert judge(p, plan).value > 0
    assert p.links[int(p.link_index[0, 0])].seconds(1.25e9) == pytest.approx(1.0)
    data["cluster"]["nodes"][1] = 7
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match="a field has a value that cannot be read"):
        read_strategy(path)


@pytest.mark.parametrize("devices", [-1, 0.5, math.inf, 10**18])
def test_counts_that_are_none_are_refused(devices: float, tmp_path: Path) -> None:
    """Devices of a node, and which of them a replica has: none is counted from the end."""
    text = published("strategies/amp/het_model/mbs1_tp2_dp2_pp4.json").read_text()
    path = tmp_path / "x.json"
    data = json.loads(text)
    data["cluster"]["nodes"][0]["count"] = devices
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"nodes\[0\].count: must be"):
        read_strategy(path)
    data = json.loads(text)
    data["plan"]["stages"][1]["replicas"][0]["devices"][0] = devices
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"plan.stages\[1\]"):
        read_strategy(path)


@pytest.mark.parametrize(
    ("at", "value", "match"),
    [
        (("model", "layers"), [], "model.layers: must name at least one layer"),
        (("plan", "schedule"), "zigzag", "plan.schedule: no such schedule"),
        (("plan", "stages", 0, "replicas", 0, "devices"), [], "a device that does not exist"),
        (("plan", "stages", 0, "replicas", 0, "tensor_parallel"), 3, "the number of devices"),
        (("plan", "stages", 0, "last_layer"), "all", "last_layer: must be a whole number"),
        (("training", "zero_stage"), "two", "zero_stage: must be a whole number"),
    ],
)
def test_wrong_fields_of_a_plan_are_named(
    at: tuple[str | int, ...], value: object, match: str, tmp_path: Path
) -> None:
    """Where it is and what it may be."""
    data = json.loads(published("strategies/amp/het_model/mbs1_tp2_dp2_pp4.json").read_text())
    entry = data
    for key in at[:-1]:
        entry = entry[key]
    entry[at[-1]] = value
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=match):
        read_strategy(path)


def test_faster_nodes_never_lengthen_a_step(tmp_path: Path) -> None:
    """More and more nodes of another kind whose passes take less than half."""
    data = json.loads(published("strategies/amp/homogeneous/mbs2_tp2_dp2_pp4.json").read_text())
    times = data["profile"]["times"]
    times["rows"] += [["V100", *row[1:4], 0.4 * row[4], None] for row in times["rows"]]
    data["cluster"]["devices"]["V100"] = data["cluster"]["devices"]["T4"]
    path, steps = tmp_path / "mixed.json", []
    for node in (None, *data["cluster"]["nodes"]):
        if node is not None:
            node["device"] = "V100"
        path.write_text(json.dumps(data))
        steps.append(judge(*read_strategy(path)).value)
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[0] / 2


def test_unknown_fields_of_published_files_are_told() -> None:
    """By place, with the nearest field that the format has."""
    data = {"nodes": [{"cont": 1, "count": 2}], "plan": {}, "plans": 3}
    with pytest.warns(UnknownFieldWarning) as found:
        warn_unknown(data, {"": "nodes plan", "nodes.*": "count", "plan.*": "x"}, "f")
    assert [str(w.message).partition(" ")[2] for w in found] == [
        "plans is not read: the format has no such field; did you mean 'plan'?",
        "nodes[0].cont is not read: the format has no such field; did you mean 'count'?",
    ]
