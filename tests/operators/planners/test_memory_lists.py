"""m-TOPO, m-ETF, m-SCT and METIS: by hand, valid, within memory."""

from __future__ import annotations

import pytest

from placewright.operators.conformance import tiny
from placewright.operators.planners import planners
from placewright.operators.planners.lists.insertion import set_up
from placewright.operators.planners.lists.ready import favourite_children
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context
from placewright.testing import PlannerConformance

CHAIN = [(0, 1.0, [1]), (1, 1.0, [2]), (2, 1.0, [3])]


class TestMetis(PlannerConformance):
    """METIS, where it is installed."""

    named = "metis"

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("pymetis")


def places(problem: OperatorProblem, name: str) -> list[int]:
    """Devices by operator."""
    plan = planners(problem)[name](problem, Context())
    result: list[int] = plan.placement.tolist()
    return result


def test_m_topo_fills_even_shares() -> None:
    """Share: half of 3 + 3 + 3 + 2 bytes, and one operator more: 8.5, which two operators fit."""
    problem = tiny([[1.0, 1.0]] * 4, CHAIN, resident_bytes=[2.0] * 4)
    assert places(problem, "m-topo") == [0, 0, 1, 1]


def test_m_etf_starts_what_it_can() -> None:
    """Two free operators start at once on two devices, though one device is slower."""
    assert sorted(places(tiny([[1.0, 9.0]] * 2), "m-etf")) == [0, 1]


def test_m_etf_keeps_to_the_memory() -> None:
    """A device without room for a second operator does not get it."""
    problem = tiny([[1.0, 9.0]] * 3, resident_bytes=[3.0] * 3, memory_bytes=[4.0, 9.0])
    assert places(problem, "m-etf").count(0) == 1


def test_m_sct_keeps_a_device_for_the_favourite_child() -> None:
    """The dearest transfer decides who that is, and each child has one such parent."""
    problem = tiny([[1.0, 1.0]] * 4, [(0, 9.0, [2]), (1, 5.0, [2]), (0, 1.0, [3]), (1, 1.0, [3])])
    assert favourite_children(set_up(problem)).tolist() == [2, 3, -1, -1]


def test_metis_cuts_the_thin_edge() -> None:
    """Two heavy triangles joined by a thin edge fall apart at the edge."""
    pytest.importorskip("pymetis")
    heavy = [(0, 50.0, [1, 2]), (1, 50.0, [2]), (3, 50.0, [4, 5]), (4, 50.0, [5])]
    found = places(tiny([[1.0, 1.0]] * 6, [*heavy, (2, 1.0, [3])]), "metis")
    assert len(set(found[:3])) == len(set(found[3:])) == 1
    assert found[0] != found[3]


def test_metis_prints_nothing_among_results(capfd: pytest.CaptureFixture[str]) -> None:
    """One group takes nearly all of the time: parts are left without a group, which METIS says."""
    pytest.importorskip("pymetis")
    edges = [(k, 1.0, [k + 1]) for k in range(8)]
    places(tiny([[1e3] * 4, *[[1.0] * 4] * 8], edges), "metis")
    printed = capfd.readouterr()
    assert (printed.out, "0 vertices" in printed.err) == ("", True)
