"""Chains of layers described by hand."""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any

import pytest

from placewright.cluster.cluster import Cluster
from placewright.cluster.devices import analytic_seconds
from placewright.errors import PlacewrightError
from placewright.graph.graph import Operator
from placewright.layers.builder import layer_chain
from placewright.planning.solving import solve
from tests.published import ROOT

LAYERS = {
    f"block{k}": {"parameters": 1e6, "seconds": 0.01, "output_bytes": 4e4, "activation_bytes": 1e5}
    for k in range(6)
}


def test_seconds_are_over_speeds_and_grow_with_the_batch() -> None:
    """Twice as long backward; memory, links and nodes are those of the cluster."""
    cluster = Cluster.preset("edge-duo")
    problem = layer_chain(LAYERS, cluster, 16)
    assert problem.is_chain
    assert problem.worker_names == cluster.device_names
    assert problem.memory_bytes.tolist() == [device.memory_bytes for device in cluster.devices]
    for worker, device in enumerate(cluster.devices):
        table = problem.forward_s[problem.worker_kind[worker], 0]
        assert table[-1] == pytest.approx([16 * 0.01 / device.speed] * 6)
        assert table[0] == pytest.approx([0.01 / device.speed] * 6)
    assert problem.backward_s == pytest.approx(2 * problem.forward_s)


def test_a_chain_is_planned_and_flops_are_computed() -> None:
    """One worker takes the sum of its layers; `dp` is no worse.

    A pass of a micro-batch is one product, which starts and reads its weights once.
    """
    flops = {name: {"flops": 1e6, "output_bytes": 4e4, "parameters": 5e6} for name in "abcd"}
    cluster = Cluster.preset("edge-duo")
    problem = layer_chain(flops, cluster, 12, name="flops")
    assert problem.sizes.tolist() == [1, 2, 4, 8, 12]
    for size, taken in zip(problem.sizes.tolist(), problem.forward_s[0, 0], strict=True):
        one = Operator("a", "aten.mm.default", 1e6 * size, 4e4 * size + 2e7)
        assert taken == pytest.approx(analytic_seconds([one], cluster.devices[0])[0])
    single, best = solve(problem, "single"), solve(problem, "dp", time_limit_s=5)
    assert best.value <= single.value * (1 + 1e-9)


ALIKE = [("a0", "a1"), ("b0", "b1"), ("a0", "b0"), ("a0", "b1"), ("a1", "b0"), ("a1", "b1")]


@pytest.mark.parametrize("slow", ALIKE)
@pytest.mark.parametrize("missing", [False, True])
def test_links_between_nodes_are_no_faster_than_their_slowest_pair(
    slow: tuple[str, str], missing: bool
) -> None:
    """Whichever workers come first; where a pair has no link a stage cannot send over it."""
    devices = [{"name": f"{node}{k}", "node": node} for node in "ab" for k in (0, 1)]
    links = [
        {
            "from": a,
            "to": b,
            "bandwidth": "1MB/s" if (a, b) == slow else "1GB/s",
            "latency": "1ms",
            "duplex": not (missing and (a, b) == slow),
        }
        for a, b in ALIKE
    ]
    cluster = Cluster.from_text(json.dumps({"devices": devices, "links": links}), where="cluster")
    problem = layer_chain(LAYERS, cluster, 4)
    latency, per_byte, _, _ = cluster.link_arrays()
    for one, other in itertools.permutations(range(4), 2):
        link = problem.link(one, other)
        if math.isinf(per_byte[one, other]):
            assert link is None
        elif link is not None:
            least = latency[one, other] + 1e6 * per_byte[one, other]
            assert link.seconds(1e6) >= least * (1 - 1e-9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"layers": {"a": {"secs": 1.0}}}, "layer 'a': unknown key 'secs'"),
        ({"layers": {"a": {"seconds": -1.0}}}, "layers.a.seconds.*must be a number >= 0.*-1"),
        ({"layers": {"a": {"seconds": 1.0, "flops": 1.0}}}, "either flops or seconds"),
        ({"layers": {"a": {}}}, "either flops or seconds.*nothing"),
        ({"layers": {}}, "there is no layer"),
        ({"cluster": "edge-du"}, "did you mean 'edge-duo'"),
        ({"global_batch": 0}, "global_batch"),
        ({"recompte": True}, "unknown option 'recompte'.*'recompute'"),
    ],
)
def test_wrong_layers_are_refused_by_name(given: dict[str, Any], words: str) -> None:
    """The layer, the key and the value."""
    right: dict[str, Any] = {"layers": LAYERS, "cluster": "edge-duo", "global_batch": 4}
    with pytest.raises(PlacewrightError, match=f"(?s){words}"):
        layer_chain(**(right | given))


def test_the_how_to_runs_as_it_stands() -> None:
    """The block that describes a chain."""
    page = (ROOT / "docs" / "how-to" / "plan-layers.md").read_text(encoding="utf-8")
    block = next(x for x in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "chain" in x)
    made: dict[str, Any] = {}
    exec(compile(block, "plan-layers.md", "exec"), made)
    assert made["chain"].n == 12
