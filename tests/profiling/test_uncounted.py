"""Operators without a cost formula are named where that matters."""

from __future__ import annotations

import warnings

import pytest

from placewright.cluster.cluster import Cluster, Device
from placewright.graph.graph import Graph, Operator
from placewright.profiling.profile_warnings import UncountedWarning, uncounted_shares
from placewright.profiling.profiler import profile

GPUS = Cluster((Device("g", kind="gpu", peak_flops=1e12, memory_bandwidth=1e9),))


def graph(*unknown: Operator) -> Graph:
    """A product that moves 9,990 bytes, and what nobody has a formula for."""
    return Graph("model", (Operator("mm", "aten.mm.default", 1e9, 9990), *unknown), ())


def test_shares_are_of_all_bytes() -> None:
    """Summed over the operators of a kind."""
    odd = [Operator(f"odd{k}", "aten.odd.default", 0, 5, uncounted=True) for k in range(2)]
    assert uncounted_shares(graph(*odd)) == {"aten.odd.default": pytest.approx(0.001)}
    assert uncounted_shares(graph()) == {}


@pytest.mark.parametrize(
    ("kind", "moved", "named", "advice"),
    [
        ("aten.odd.default", 1000, True, "register_flop_formula"),
        ("aten.odd.default", 5, False, ""),
        ("mine.scan.default", 5, True, "register_flop_formula"),
        ("onnx.acme.Scan", 5, True, "--table"),
    ],
)
def test_they_are_named_where_it_matters(kind: str, moved: float, named: bool, advice: str) -> None:
    """PyTorch's from 0.1 % of the bytes on, anybody else's always, with what can be done."""
    captured = graph(Operator("odd", kind, 0, moved, uncounted=True))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        profile(captured, GPUS)
    found = [str(w.message) for w in caught if w.category is UncountedWarning]
    assert len(found) == named
    assert all(kind in text and "On g " in text and advice in text for text in found)


def test_no_warning_where_nothing_is_computed() -> None:
    """Every operator with a formula, moves with none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncountedWarning)
        profile(graph(Operator("cat", "aten.cat.default", 0, 1000)), GPUS)
