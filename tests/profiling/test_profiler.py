"""Seconds of one device: measured, scaled once, else computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.cluster.devices import analytic_seconds
from placewright.errors import InputError, WorkerError
from placewright.graph.graph import Graph
from placewright.numerics.arrays import FloatArray
from placewright.profiling import measuring, message_cost, profile_warnings
from placewright.profiling.message_cost import KEY, MessageCost, MessagesNotMeasuredWarning
from placewright.profiling.profile_warnings import TooFewCoresWarning
from placewright.profiling.profiler import Profiler, ProfileTable, profile, profile_key
from tests.profiling.conftest import GIVEN
from tests.runtime.chain import diamond

LARGE = Device("large", cores=16)
KNOWN = Device("known", cores=16, peak_flops=1e12)


@pytest.fixture
def measured_cores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine of two cores, on which an operator takes a second a core; the first refuses."""
    found: list[int] = []

    def measured(graph: Graph, *, cores: int) -> FloatArray:
        found.append(cores)
        return np.array([np.nan, *[float(cores)] * (len(graph.operators) - 1)])

    monkeypatch.setattr(profile_warnings, "cpu_cores", lambda: 2)
    monkeypatch.setattr(measuring, "isolated_seconds", measured)
    return found


def costs(*devices: Device, table: ProfileTable | None = None) -> tuple[Graph, FloatArray]:
    """A graph of four operators and their seconds, a row per device."""
    graph, _ = diamond()
    problem = profile(graph, Cluster(devices), method="isolated", table=table)
    return graph, problem.compute_s.T


def test_the_formula_is_scaled_once_and_is_each_devices_own(measured_cores: list[int]) -> None:
    """What refuses to be measured costs what the formula says of that very device."""
    slow = Device("slow", speed=0.1, speed_by_kind={"relu": 0.5})
    table = ProfileTable()
    for _ in range(2):
        graph, found = costs(slow, Device("fast"), table=table)
        for device, seconds, times in zip((slow, Device("fast")), found, (10, 1), strict=True):
            assert seconds[0] == analytic_seconds(graph.operators, device)[0]
            assert seconds[1:] == pytest.approx([times] * 3)
    assert measured_cores == [1]


def test_what_was_not_measured_survives_a_file(measured_cores: list[int], tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A kept profile leaves out what it does not know, and is read back so."""
    table = ProfileTable()
    _, first = costs(Device("a"), table=table)
    kept = ProfileTable.read(table.write(tmp_path / "profile.json"))
    _, again = costs(Device("a"), table=kept)
    assert np.array_equal(first, again)
    assert measured_cores == [1]


def test_cpus_with_more_cores_are_computed_or_measured_with_those_here(
    measured_cores: list[int],
) -> None:
    """By the formula where the peak is known, else with two threads; both give a warning."""
    with pytest.warns(TooFewCoresWarning) as warned:
        graph, found = costs(LARGE, KNOWN)
    assert measured_cores == [2]
    assert found[0, 1:].tolist() == [2.0] * 3
    assert np.array_equal(found[1], analytic_seconds(graph.operators, KNOWN))
    computed, measured = (str(w.message) for w in warned if w.category is TooFewCoresWarning)
    assert "for known (16)" in computed
    assert "for large (16)" in measured


def test_a_profile_from_a_larger_machine_is_believed(measured_cores: list[int]) -> None:
    """Sixteen cores that were measured elsewhere are neither computed nor warned of."""
    graph, _ = diamond()
    table = ProfileTable()
    table.add(profile_key(graph, "isolated", 16), graph, np.full(4, 0.25))
    _, found = costs(LARGE, KNOWN, table=table)
    assert found.tolist() == [[0.25] * 4] * 2
    assert measured_cores == []


def test_links_between_measured_cpus_deliver_as_the_executor_does(
    measured_cores: list[int], message_cost: MessageCost
) -> None:
    """Given ones take a message's cost more, once; others are memory, as measured; kept."""
    graph, _ = diamond()
    devices = (Device("a"), Device("b"), Device("c", node="there"), Device("g", kind="gpu"))
    links = (Link("a", "c", 1e9, 1e-3), Link("c", "g", 1e9, 1e-3))
    cluster, table = Cluster(devices, links), ProfileTable()
    problem = profile(graph, cluster, method="isolated", table=table)
    plain, *_ = cluster.link_arrays()
    expected = plain.copy()
    expected[0, 2] = 1e-3 + message_cost.extra_s
    expected[0, 1] = expected[1, 0] = message_cost.real_s
    expected[1, 2] = expected[1, 0] + expected[0, 2]  # by way of "a"
    expected[3, 2] = expected[3, 0] + expected[0, 2]
    assert problem.latency_s == pytest.approx(expected, nan_ok=True)
    assert problem.seconds_per_byte[0, 1] == pytest.approx(message_cost.real_s_per_byte)
    assert table.entries[KEY] == message_cost.as_entries()


def test_links_stay_as_given_where_no_message_is_measured() -> None:
    """Where costs are computed, and where only one CPU is measured."""
    graph, _ = diamond()
    pair = Cluster((Device("a"), Device("b")))
    computed = profile(graph, pair, method="analytic")
    assert np.array_equal(computed.latency_s, pair.link_arrays()[0])
    table = ProfileTable()
    Profiler(graph, "isolated", None, table).delivered(Cluster((Device("a"),)))
    assert table.entries == {}
    profiler = Profiler(graph, "isolated", None, table)
    assert profiler.delivered(pair, measure=False) == pair
    assert table.entries == {}


def test_workers_that_do_not_start_leave_links_as_given_and_are_told(
    measured_cores: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile is made nevertheless, and nothing is kept that was not measured."""

    def broken() -> MessageCost:
        raise WorkerError("the worker process died", where="device 'a'")

    monkeypatch.setattr(message_cost, "measured_messages", broken)
    graph, _ = diamond()
    pair, table = Cluster((Device("a"), Device("b"))), ProfileTable()
    with pytest.warns(MessagesNotMeasuredWarning, match="the worker process died"):
        problem = profile(graph, pair, method="isolated", table=table)
    assert np.array_equal(problem.latency_s, pair.link_arrays()[0])
    assert KEY not in table.entries


BOARDS = Cluster(
    (Device("a", node="a", memory_bytes=1e9), Device("b", node="b", speed=0.5)),
    (Link("a", "b", 1e8, 1e-4), Link("b", "a", 1e8, 1e-4)),
)


def test_the_problem_mirrors_the_graph() -> None:
    """Names, tensors, links and memory are carried over; half the speed is twice the time."""
    graph, state = diamond()
    problem = profile(graph, BOARDS, state=state)
    assert problem.operator_names == graph.operator_names
    assert problem.tensor_names == tuple(t.name for t in graph.tensors)
    assert problem.operator_kinds == tuple(op.kind for op in graph.operators)
    assert problem.output_shapes == tuple(op.outputs[0].shape for op in graph.operators)
    assert np.array_equal(problem.tensor_bytes, [128, 128, 128])
    assert problem.compute_s[:, 1] == pytest.approx(2 * problem.compute_s[:, 0])
    assert (problem.compute_s > 0).all()
    assert problem.latency_s[0, 1] == 1e-4 + GIVEN.extra_s
    assert problem.memory_bytes.tolist() == [1e9, np.inf]


@pytest.mark.parametrize("method", ["isolated", "analytic"])
def test_every_method_gives_positive_finite_costs(method: str) -> None:
    """Without weights there is still an answer."""
    graph, _ = diamond()
    problem = profile(graph, BOARDS, method=method)  # type: ignore[arg-type]
    assert np.isfinite(problem.compute_s).all()
    assert (problem.compute_s > 0).all()


def test_a_kept_profile_is_used_again(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Costs from a file are equal to the ones that were measured."""
    graph, _ = diamond()
    table = ProfileTable()
    first = profile(graph, BOARDS, method="isolated", table=table)
    kept = ProfileTable.read(table.write(tmp_path / "profile.json"))
    assert np.array_equal(
        first.compute_s, profile(graph, BOARDS, method="isolated", table=kept).compute_s
    )


def test_a_broken_profile_names_the_field(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A negative time and an unknown key are errors with the place."""
    path = tmp_path / "p.json"
    path.write_text('{"schema_version": 1, "machine": "m", "entries": {"k": {"a": -1}}}')
    with pytest.raises(InputError, match=r"entries\.k\.a"):
        ProfileTable.read(path)
    path.write_text('{"schema_version": 1, "machine": "m", "entries": {}, "extra": 1}')
    with pytest.raises(InputError, match="extra"):
        ProfileTable.read(path)


def test_in_place_without_weights_says_what_to_do() -> None:
    """The error names the other methods."""
    graph, _ = diamond()
    with pytest.raises(InputError, match="isolated"):
        profile(graph, BOARDS, method="in-place")


def test_graphs_that_only_their_operators_tell_apart_are_measured_apart() -> None:
    """Without signatures the key of a kept profile knows what is called and what it gives."""
    graph, _ = diamond()
    kinds, _ = diamond("aten.abs.default")
    (first, *others) = graph.operators
    wider = replace(first, outputs=(replace(first.outputs[0], shape=(4, 9)),))
    shapes = replace(graph, operators=(wider, *others))
    assert len({profile_key(g, "isolated", 1) for g in (graph, kinds, shapes)}) == 3
    assert profile_key(diamond()[0], "isolated", 1) == profile_key(graph, "isolated", 1)
