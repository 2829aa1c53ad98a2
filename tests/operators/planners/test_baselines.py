"""accelerate's map as a plan: operators follow the map, and its limits are reported."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from placewright.capturing.assembly import module_tree
from placewright.capturing.model import capture
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InfeasibleError
from placewright.graph.graph import Graph, ModuleTree
from placewright.operators.conformance import tiny
from placewright.operators.files import read_problem, write_problem
from placewright.operators.judge import judge
from placewright.operators.planners.baselines import (
    DISK,
    AccelerateAuto,
    balanced,
    device_map,
    module_sizes,
)
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context, proposal_of
from placewright.profiling.profiler import profile
from tests.operators.planners.module_models import NAMES, model


@pytest.fixture(scope="module")
def llama() -> Graph:
    """A small Llama on 16 tokens, captured without weights."""
    return capture(model("llama"), {"input_ids": torch.zeros(1, 16, dtype=torch.long)})


def problem_of(graph: Graph, memory: dict[str, float]) -> OperatorProblem:
    """The graph on GPUs and CPUs (by the first letters of their names) with these memories."""
    devices = tuple(
        Device(name, kind=name[:3], memory_bytes=size, peak_flops=1e12, memory_bandwidth=1e11)
        for name, size in memory.items()
    )
    return profile(graph, Cluster(devices), method="analytic")


def total(graph: Graph) -> int:
    """Bytes of the model."""
    return graph.resident_bytes


@pytest.mark.filterwarnings("ignore:Current model requires:UserWarning")
@pytest.mark.parametrize("share", [(0.6, 0.9, 9), (0.7, 0.4, 0.6), (9, 0.4, 0.4), (9, 0.4, 9)])
def test_parameters_are_where_accelerate_puts_them(llama: Graph, share: Any) -> None:
    """Every parameter's operator is on the device of the parameter in the library's own map."""
    pytest.importorskip("accelerate", minversion="1.15")
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    names = ("cpu-a", "gpu-a", "gpu-b")
    memory = {n: float(int(s * total(llama))) for n, s in zip(names, share, strict=True)}
    problem = problem_of(llama, memory)
    made = model("llama")
    memory_limits: Any = {
        0: int(memory["gpu-a"]),
        1: int(memory["gpu-b"]),
        "cpu": int(memory["cpu-a"]),
    }
    logging.disable(logging.WARNING)
    limits = get_balanced_memory(made, memory_limits, sorted(made._no_split_modules))  # type: ignore[arg-type]
    found = infer_auto_device_map(made, limits, sorted(made._no_split_modules))  # type: ignore[arg-type]
    logging.disable(logging.NOTSET)
    plan = AccelerateAuto()(problem, Context())
    operator = {name: i for i, name in enumerate(problem.operator_names)}
    assert problem.modules is not None
    used = set()
    for module in problem.modules.modules:
        for tensor in module.tensors:
            if tensor.buffer or not tensor.operator:
                continue
            key = module.key(tensor)
            parts = key.split(".")
            near = next(p for k in range(len(parts), -1, -1) if (p := ".".join(parts[:k])) in found)
            device = problem.device_names[plan.placement[operator[tensor.operator]]]
            assert device == {0: "gpu-a", 1: "gpu-b", "cpu": "cpu-a"}[found[near]]
            used.add(device)
    assert len(used) > 1


def test_operators_without_parameters_follow_their_module(llama: Graph) -> None:
    """All operators of a layer are on one device, but views of what is made outside of it."""
    problem = problem_of(llama, {"gpu-a": 0.6 * total(llama), "gpu-b": 1.0 * total(llama)})
    place = AccelerateAuto()(problem, Context()).placement
    by_layer: dict[str, set[int]] = {}
    for i, path in enumerate(problem.operator_modules):
        group = problem.colocation == problem.colocation[i]
        inside = all(problem.operator_modules[j].startswith(path) for j in np.flatnonzero(group))
        if path.startswith("model.layers.") and inside:
            by_layer.setdefault(path.split(".")[2], set()).add(int(place[i]))
    assert all(len(devices) == 1 for devices in by_layer.values())
    assert len({min(devices) for devices in by_layer.values()}) == 2
    assert judge(problem, AccelerateAuto()(problem, Context())).feasible


def test_gpus_come_before_cpus_and_one_cpu_is_used(llama: Graph) -> None:
    """Whatever the order of the cluster; a second CPU stays idle."""
    room = 9.0 * total(llama)
    problem = problem_of(llama, {"cpu-a": room, "cpu-b": room, "gpu-a": room})
    assert set(AccelerateAuto()(problem, Context()).placement.tolist()) == {2}
    tight = problem_of(llama, {"cpu-a": room, "cpu-b": room, "gpu-a": 0.7 * total(llama)})
    assert set(AccelerateAuto()(tight, Context()).placement.tolist()) == {0, 2}
    alone = problem_of(llama, {"cpu-a": room, "cpu-b": room})
    assert set(AccelerateAuto()(alone, Context()).placement.tolist()) == {0}


def test_what_would_go_to_disk_is_an_error(llama: Graph) -> None:
    """It names the first module and how much it is."""
    problem = problem_of(llama, {"gpu-a": 0.3 * total(llama), "gpu-b": 0.3 * total(llama)})
    with pytest.raises(InfeasibleError, match=r"model\.layers\..* on disk"):
        AccelerateAuto()(problem, Context())


def test_problems_without_modules_are_refused(llama: Graph) -> None:
    """Published instances have none; the reason says what is missing."""
    planner = AccelerateAuto()
    assert "modules" in str(planner.unsupported_reason(tiny([[1.0, 1.0]])))
    problem = problem_of(llama, {"gpu-a": 9.0 * total(llama)})
    assert planner.unsupported_reason(problem) is None
    assert "kinds" in str(planner.unsupported_reason(problem.replace(device_kinds=())))


def test_modules_survive_a_problem_file(llama: Graph, tmp_path: Path) -> None:
    """The plan of the file's problem is the same, and so is the hash."""
    problem = problem_of(llama, {"gpu-a": 0.6 * total(llama), "gpu-b": 1.0 * total(llama)})
    again = read_problem(write_problem(problem, tmp_path / "p.json"))
    assert again.modules == problem.modules
    assert again.hash() == problem.hash() != problem.replace(modules=None).hash()
    planner = AccelerateAuto()
    assert np.array_equal(
        proposal_of(planner(problem, Context())).plan.placement,
        proposal_of(planner(again, Context())).plan.placement,
    )


def test_a_layer_taken_apart_keeps_sums_where_their_input_is() -> None:
    """Without classes that are never split, operators between parts follow what they read."""
    made = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=30, n_positions=32)
    )
    made._no_split_modules = set()
    graph = capture(made, {"input_ids": torch.zeros(1, 8, dtype=torch.long)}, training=True)
    weights = sum(p.nbytes for p in made.parameters())
    problem = problem_of(graph, {"gpu-a": 0.55 * weights, "gpu-b": 9.0 * weights, "cpu-a": weights})
    place = AccelerateAuto(balance=False)(problem, Context()).placement
    assert set(place.tolist()) == {0, 1}
    assert np.isfinite(judge(problem, AccelerateAuto()(problem, Context())).value)


pytest.importorskip("accelerate", minversion="1.15")
pytestmark = pytest.mark.filterwarnings("ignore:Current model requires:UserWarning")

CPU = 100
"""The number that stands for ``"cpu"`` here."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Accelerate says of every GPU number that this machine has no such GPU."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def theirs(made: Any, memory: dict[int | str, int], no_split: list[str] | None, way: str) -> Any:
    """The map of accelerate; ``None`` where it ends in an `IndexError`."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    limits: Any = dict(memory)
    if way != "sequential":
        limits = get_balanced_memory(made, limits, no_split, low_zero=way == "balanced_low_0")
    try:
        found = infer_auto_device_map(made, limits, no_split, clean_result=False)
    except IndexError:
        return None
    return dict(found)


def ours(tree: ModuleTree, memory: dict[int | str, int], way: str) -> Any:
    """The same by our rule."""
    sizes = module_sizes(tree)
    gpus: dict[int, float] = {k: v for k, v in memory.items() if isinstance(k, int)}
    limits = dict(gpus)
    if way != "sequential":
        limits = balanced(sizes, gpus, low_zero=way == "balanced_low_0")
    cpus = {CPU: memory["cpu"]} if "cpu" in memory else {}
    try:
        found = device_map(sizes, limits | cpus, [*list(gpus)[:1], *cpus])
    except InfeasibleError:
        return None
    return {name: {DISK: "disk", CPU: "cpu"}.get(d, d) for name, d in found.items()}


def clusters(total: float, count: int) -> Iterator[dict[int | str, int]]:
    """None to four GPUs, with and without a CPU, from a twentieth of the model to twice of it."""
    rng = random.Random(7)
    for _ in range(count):
        memory: dict[int | str, int] = {
            d: int(total * rng.choice([0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2]))
            for d in range(rng.randint(0, 4))
        }
        if not memory or rng.random() < 0.7:
            memory["cpu"] = int(total * rng.choice([0.1, 0.5, 2]))
        yield memory


@pytest.mark.parametrize("name", NAMES)
def test_the_map_is_accelerates(name: str) -> None:
    """Every module and parameter on the same device, or on disk, with and without whole layers."""
    made = model(name)
    tree = module_tree(made, {})
    no_split: list[str] = sorted(made._no_split_modules)  # type: ignore[arg-type]
    assert tree.no_split == tuple(no_split)
    split = 0
    for memory in clusters(module_sizes(tree).bytes_of[""], 12):
        for kept in (no_split, None):
            splittable = tree if kept else replace(tree, no_split=())
            for way in ("auto", "sequential", "balanced_low_0"):
                found = ours(splittable, memory, way)
                assert found == theirs(made, memory, kept, way), (memory, kept, way)
                split += found is not None and len(set(found.values())) > 1
    assert split > 20


@pytest.mark.parametrize("name", ["llama-8b", "t5"])
def test_the_sizes_are_accelerates(name: str) -> None:
    """Bytes of every module, parameter and buffer, in the same order."""
    from accelerate.utils import compute_module_sizes

    made = model(name)
    assert list(module_sizes(module_tree(made, {})).bytes_of.items()) == list(
        compute_module_sizes(made).items()
    )


def test_a_bool_is_a_bit_for_accelerate() -> None:
    """Buffers of bool count an eighth of their bytes."""
    import torch
    from accelerate.utils import compute_module_sizes
    from torch import nn

    made = nn.Linear(3, 3)
    made.register_buffer("mask", torch.zeros(7, dtype=torch.bool))
    assert dict(module_sizes(module_tree(made, {})).bytes_of) == dict(compute_module_sizes(made))
