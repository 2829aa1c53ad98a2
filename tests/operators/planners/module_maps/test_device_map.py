"""The device map equals accelerate's, module by module."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from placewright.capturing.assembly import module_tree
from placewright.errors import InfeasibleError
from placewright.graph.graph import ModuleTree
from placewright.operators.planners.module_maps.device_map import DISK, device_map
from placewright.operators.planners.module_maps.sizes import balanced, module_sizes
from tests.operators.planners.module_maps.models import NAMES, model

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
