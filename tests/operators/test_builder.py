"""Problems built by name: equal to those made of arrays and read from files; wrong calls."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, PlacewrightError, UnknownNameError
from placewright.operators.builder import ProblemBuilder
from placewright.operators.conformance import named_instances, random_problem, with_random_views
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.neural_networks import read_msr
from placewright.operators.readers.task_graphs import read_dag
from placewright.operators.readers.tasks import from_networkx, tasks
from tests.published import ROOT, published


def rebuilt(p: OperatorProblem) -> OperatorProblem:
    """The same problem, said by name."""
    devices = dict(zip(p.device_names, p.memory_bytes.tolist(), strict=True))
    builder = OperatorProblem.builder(devices, p.name)
    for channel in p.channel_names:  # in their order, which hashes tell apart
        for i, j in np.argwhere(p.channel == p.channel_names.index(channel)).tolist():
            per_byte = float(p.seconds_per_byte[i, j])
            builder.add_link(
                p.device_names[i],
                p.device_names[j],
                bandwidth=1.0 / per_byte if per_byte else math.inf,
                latency_s=float(p.latency_s[i, j]),
                channel=channel,
                duplex=False,
            )
    for i, name in enumerate(p.operator_names):
        pin = int(p.pinned[i])
        builder.add_operator(
            name,
            dict(zip(p.device_names, p.compute_s[i].tolist(), strict=True)),
            resident_bytes=float(p.resident_bytes[i]),
            pin=p.device_names[pin] if pin >= 0 else None,
            kind=p.operator_kinds[i] if p.operator_kinds else "",
            backward=bool(p.is_backward[i]),
        )
    for k, name in enumerate(p.tensor_names):
        base = int(p.alias_of[k])
        builder.add_tensor(
            p.operator_names[p.tensor_producer[k]],
            [p.operator_names[j] for j in p.readers(k)],
            float(p.tensor_bytes[k]),
            name=name,
            view_of=None if base == -1 else "" if base == -2 else p.tensor_names[base],
        )
    for group in np.unique(p.colocation):
        builder.colocate(*(p.operator_names[i] for i in np.flatnonzero(p.colocation == group)))
    kept = ("objective", "links", "overlap", "contiguous", "communication", "calls")
    more = ("host_seconds_per_byte", "dimensionless", "pipeline")
    return builder.build(**{key: getattr(p, key) for key in (*kept, *more)})


def with_numbered_groups(p: OperatorProblem) -> OperatorProblem:
    """Groups numbered in the order of their first operators, channels without those of no link."""
    numbers: dict[int, int] = {}
    groups = [numbers.setdefault(group, len(numbers)) for group in p.colocation.tolist()]
    used = [k for k in range(len(p.channel_names)) if (p.channel == k).any()]
    renamed = np.array([used.index(k) if k in used else -1 for k in range(len(p.channel_names))])
    channel = np.where(p.channel < 0, -1, renamed[p.channel]) if used else p.channel
    names = tuple(p.channel_names[k] for k in used)
    return p.replace(colocation=groups, channel=channel, channel_names=names)


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_random_problems_are_built_equal(seed: int) -> None:
    """With groups, pins, refusals, views, shared channels and memory limits."""
    problem = random_problem(seed)
    problem = with_random_views(problem, seed) if seed % 3 == 0 else problem
    speeds = [x for x in problem.seconds_per_byte.ravel().tolist() if x]
    exact = all(1.0 / (1.0 / x) == x for x in speeds)
    built, wanted = rebuilt(problem), with_numbered_groups(problem)
    if exact:
        assert built.hash() == wanted.hash()
    np.testing.assert_allclose(built.seconds_per_byte, wanted.seconds_per_byte, rtol=1e-15)


@pytest.mark.parametrize("name", [name for name in named_instances() if name != "unlinked"])
def test_named_instances_are_built_equal(name: str) -> None:
    """The cases that planners get wrong."""
    problem = named_instances()[name]
    assert rebuilt(problem).hash() == with_numbered_groups(problem).hash()


@pytest.mark.parametrize(
    "name",
    [
        "layered_n100_ccr0.2_s0",
        "layered_n100_ccr1.0_s0",
        "layered_n100_ccr5.0_s0",
        "layered_n1000_ccr1.0_s0",
        "layered_n10000_ccr1.0_s0",
        "narrow_n100_ccr1.0_s7",
        "narrow_n1000_ccr1.0_s7",
    ],
)
def test_task_graphs_in_files_are_built_equal(name: str) -> None:
    """What the reader makes of a file, and what the same names make of a builder."""
    path = published(f"dag/{name}.json")
    data = json.loads(path.read_text())
    builder = OperatorProblem.builder([node["name"] for node in data["nodes"]], path.stem)
    for link in data["links"]:
        builder.add_link(link["source"], link["target"], bandwidth=link["speed"])
    for task in data["tasks"]:
        times = {node["name"]: task["cost"] / node["speed"] for node in data["nodes"]}
        builder.add_operator(task["name"], times, kind=task.get("kind", ""))
    for edge in data["dependencies"]:
        builder.add_tensor(edge["source"], [edge["target"]], edge["size"])
    wanted = read_dag(path)
    built = builder.build(links="free", dimensionless=True)
    assert built.hash() == wanted.hash()
    assert rebuilt(wanted).hash() == wanted.hash()


def test_star_problems_are_built_equal() -> None:
    """Options that a builder does not know are fields of the problem."""
    wanted = read_msr(published("msr/latency/op_bert3_inference.json"))
    assert rebuilt(wanted).hash() == with_numbered_groups(wanted).hash()


def two() -> ProblemBuilder:
    """Two operators on two devices, and a tensor."""
    builder = OperatorProblem.builder(["cpu", "gpu"], "two")
    first = builder.add_operator("a", {"cpu": 1.2, "gpu": 0.1})
    second = builder.add_operator("b", {"cpu": 0.3, "gpu": math.inf}, resident_bytes=5)
    builder.add_tensor(first, [second], nbytes=4e6)
    return builder


WRONG: list[tuple[Callable[[ProblemBuilder], Any], str]] = [
    (lambda b: b.add_operator("a", 1.0), "operator 'a': is there twice"),
    (lambda b: b.add_operator("c", {"cpu": 1.0}), "'c': has no seconds on device 'gpu'.*cpu"),
    (lambda b: b.add_operator("c", {"cpu": 1, "gpuu": 1}), "unknown device 'gpuu'.*mean 'gpu'"),
    (lambda b: b.add_operator("c", {"cpu": -1, "gpu": 1}), "'c' on 'cpu': seconds must be >= 0"),
    (lambda b: b.add_operator("c", {"cpu": math.nan, "gpu": 1}), "seconds.cpu.*must be"),
    (lambda b: b.add_operator("c", [1.0]), "wrong number of seconds.*1 for 2 devices"),
    (lambda b: b.add_operator("c", -1.0), "'c' on 'cpu': seconds must be >= 0.*-1"),
    (lambda b: b.add_operator("c", 1.0, pin="cqu"), "unknown device 'cqu'.*mean 'cpu'"),
    (lambda b: b.add_operator("c", 1.0, resident_bytes=-1), "resident_bytes.*must be"),
    (lambda b: b.add_tensor("a", ["bb"], 1.0), "tensor 'a->bb': unknown operator 'bb'.*'b'"),
    (lambda b: b.add_tensor("a", "a", 1.0), "its producer reads it"),
    (lambda b: b.add_tensor("a", "b", -1.0), "nbytes.*must be a number >= 0.*-1"),
    (lambda b: b.add_tensor("a", "b", 1.0, name="a->b"), "tensor 'a->b': is there twice"),
    (lambda b: b.add_link("cpu", "npu"), "unknown device 'npu'"),
    (lambda b: b.add_link("cpu", "cpu"), "joins a device with itself"),
    (lambda b: b.add_link("cpu", "gpu", bandwidth=0), "bandwidth must be above 0"),
    (lambda b: (b.link_all(), b.add_link("cpu", "gpu")), "link 'cpu' to 'gpu': is there twice"),
    (lambda b: b.pin("a", "gpo"), "pin: unknown device 'gpo'.*mean 'gpu'"),
    (lambda b: b.colocate("a", "x"), "colocate: unknown operator 'x'"),
    (lambda b: b.limit_memory("gqu", 1), "limit_memory: unknown device"),
    (lambda b: b.build(), "read tensors, and no link says.*1 tensor.*bandwidth=math.inf"),
    (lambda b: (b.add_tensor("a", "b", 0.0), b.build()), "and no link says.*2 tensors"),
    (lambda b: b.build(objektive="latency"), "unknown option 'objektive'.*'objective'"),
    (lambda b: (b.link_all(), b.build(objective="latenzy")), "unknown objective.*'latency'"),
    (
        lambda b: (b.link_all(), b.add_tensor("b", "a", 1.0, name="back"), b.build()),
        r"cycle through operator 'a' \(a -> b -> a\)",
    ),
    (
        lambda b: (b.link_all(), b.add_operator("c", math.inf), b.build()),
        "'c': no device can run it",
    ),
    (
        lambda b: (b.link_all(), b.add_tensor("b", [], 1.0, view_of="a->bb"), b.build()),
        "tensor 'b': unknown tensor 'a->bb'.*mean 'a->b'",
    ),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_wrong_calls_are_refused_by_name(call: Callable[[ProblemBuilder], Any], words: str) -> None:
    """Each says what is wrong, where, and what to do next."""
    with pytest.raises(PlacewrightError, match=f"(?s){words}") as error:
        call(two())
    assert error.value.where
    assert error.value.hint


def test_seconds_by_kind_and_alike_are_divided_by_speeds() -> None:
    """A device's own time counts as it is."""
    cluster = Cluster.preset("edge-duo")
    first, second = cluster.devices
    builder = OperatorProblem.builder(cluster)
    builder.add_operator("kind", {first.kind: 3.0})
    builder.add_operator("all", 2.0)
    builder.add_operator("own", {first.kind: 3.0, second.name: 5.0})
    problem = builder.build()
    assert problem.compute_s.tolist() == [
        [3.0 / first.speed, 3.0 / second.speed],
        [2.0 / first.speed, 2.0 / second.speed],
        [3.0 / first.speed, 5.0],
    ]
    assert problem.memory_bytes.tolist() == [first.memory_bytes, second.memory_bytes]
    with pytest.raises(InputError, match="has its own links"):
        builder.add_link(first.name, second.name)


def test_a_group_grows_by_every_call() -> None:
    """Also through an operator that is in one already."""
    builder = OperatorProblem.builder(["cpu"])
    for name in "abcde":
        builder.add_operator(name, 1.0)
    builder.colocate("d", "e")
    builder.colocate("b", "c")
    builder.colocate("c", "e")
    assert builder.build().colocation.tolist() == [0, 1, 1, 1, 1]


def test_plans_go_by_names_there_and_back() -> None:
    """Placement and order; a name that is wrong is refused with the nearest."""
    problem = named_instances()["diamond"]
    names = dict(zip(problem.operator_names, ["dev0", "dev1", "dev1", "dev0"], strict=True))
    plan = OperatorPlan.of(problem, names, order=["op0", "op2", "op1", "op3"])
    assert plan.placement.tolist() == [0, 1, 1, 0]
    assert plan.order is not None
    assert plan.order.tolist() == [0, 2, 1, 3]
    assert plan.devices(problem) == names
    with pytest.raises(UnknownNameError, match="unknown device 'dev9'"):
        OperatorPlan.of(problem, names | {"op1": "dev9"})
    with pytest.raises(InputError, match="operator 'op1' has no device"):
        OperatorPlan.of(problem, {key: value for key, value in names.items() if key != "op1"})


TIMES = {"a": {"cpu": 1.2, "gpu": 0.1}, "b": {"cpu": 0.3, "gpu": 0.2}}


def test_tasks_are_a_thin_call_on_the_builder() -> None:
    """Memory of tasks and devices, pins, groups, links, options."""
    options = {"memory": {"a": 5.0, "gpu": 8.0}, "pin": {"a": "gpu"}, "colocate": [["a", "b"]]}
    problem = tasks(TIMES, {("a", "b"): 4e6}, **options, bandwidth=1e9, links="free")  # type: ignore[arg-type]
    builder = OperatorProblem.builder({"cpu": math.inf, "gpu": 8.0}, "tasks")
    builder.link_all(bandwidth=1e9)
    builder.add_operator("a", TIMES["a"], resident_bytes=5.0, pin="gpu")
    builder.add_operator("b", TIMES["b"])
    builder.add_tensor("a", "b", 4e6)
    builder.colocate("a", "b")
    assert problem.hash() == builder.build(links="free").hash()


def sent(nbytes: Any) -> Any:
    """A graph of networkx whose only edge has these bytes."""
    graph = networkx.DiGraph()
    for name, times in TIMES.items():
        graph.add_node(name, **times)
    graph.add_edge("a", "b", bytes=nbytes)
    return graph


def started() -> ProblemBuilder:
    """A builder with two operators."""
    builder = OperatorProblem.builder(["cpu", "gpu"])
    for name, times in TIMES.items():
        builder.add_operator(name, times)
    return builder


def test_a_graph_of_networkx_is_a_task_graph() -> None:
    """Attributes of nodes are seconds, one of each edge is bytes."""
    graph = networkx.DiGraph(name="two")
    for name, times in TIMES.items():
        graph.add_node(name, **times)
    graph.add_edge("a", "b", bytes=4e6)
    wanted = tasks(TIMES, {("a", "b"): 4e6}, bandwidth=1e9, name="two")
    assert from_networkx(graph, bandwidth=1e9).hash() == wanted.hash()
    graph.nodes["a"]["colour"] = "red"
    cluster = Cluster.preset("server-4gpu")
    assert from_networkx(graph, cluster).m == len(cluster.devices)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tasks({"a": 1.0}), "task 'a': seconds name no device"),
        (lambda: tasks(TIMES, memory={"c": 1.0}), "memory: unknown task or device 'c'"),
        (lambda: tasks({"cpu": {"cpu": 1.0}}, memory={"cpu": 1.0}), "is a task and a device"),
        (lambda: tasks(TIMES, cluster="edge-duo", bandwidth=1e9), "has its own links"),
        (lambda: tasks(TIMES, {("a", "c"): 1.0}), "unknown operator 'c'"),
        (lambda: tasks(TIMES, {"ab": 1.0}), "edges"),  # type: ignore[dict-item]
        (lambda: from_networkx(networkx.Graph()), "must be a directed graph"),
        (lambda: from_networkx(networkx.DiGraph([("a", "b")])), "has no attribute 'bytes'"),
        (lambda: from_networkx(sent("4e6")), r"'bytes' must be a number >= 0 \(got '4e6'\)"),
        (lambda: from_networkx(sent(True)), "'bytes' must be a number"),
        (lambda: from_networkx(sent(10**400)), "'bytes' must be a number"),
        (lambda: from_networkx(networkx.DiGraph), "must be a directed graph"),
        (lambda: from_networkx(sent(1.0), edges={}), "is what the graph has"),
        (lambda: tasks(TIMES, {("a", "b"): 0.0}, latency_s=1.0), "is of no link"),
        (lambda: tasks(TIMES, cluster="server-4gpu", latency_s=1.0), "is of no link"),
        (lambda: tasks(TIMES, colocate=[["a", 1]]), "colocate"),  # type: ignore[list-item]
        (lambda: started().colocate(["a", "b"]), "must be names of operators"),  # type: ignore[arg-type]
    ],
)
def test_wrong_task_graphs_are_refused(call: Callable[[], Any], words: str) -> None:
    """With the task, the device or the edge."""
    with pytest.raises(PlacewrightError, match=words) as error:
        call()
    assert error.value.where


def test_the_how_to_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its blocks, one after another."""
    page = (ROOT / "docs" / "how-to" / "plan-a-task-graph.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "plan-a-task-graph.md", "exec"), made)
    assert made["result"].value == pytest.approx(made["result"].lower_bound)
    assert made["on_server"].m == 5
    assert (tmp_path / "plan.html").exists()
