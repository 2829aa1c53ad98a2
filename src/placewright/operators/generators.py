"""Random task graphs of the shapes that list schedulers are compared on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal

import numpy as np

from placewright.errors import InputError
from placewright.io.arguments import Count, Range, checked
from placewright.operators.problem import Links, OperatorProblem

Shape = Literal["layered", "fork-join", "fft", "gaussian"]
Size = Annotated[int, Range(2, 1_000_000)]
Edges = tuple[int, list[tuple[int, int]]]
"""How many tasks there are, and ``(producer, consumer)``, producers first."""


@checked
def generate_tasks(
    shape: Shape,
    size: Size,
    devices: Count = 4,
    *,
    ccr: Annotated[float, Range(0, 1e300)] = 1.0,
    heterogeneity: Annotated[float, Range(0, 2)] = 1.0,
    links: Literal["free", "contended"] = "free",
    seed: int = 0,
) -> OperatorProblem:
    """A random task graph on heterogeneous devices, as in Topcuoglu et al. 2002, section 5.

    A task's mean time is uniform in [0, 2], its time on a device uniform within
    ``1 +- heterogeneity / 2`` of that; a transfer between devices is uniform in [0, 2 ccr]. Times
    have no unit. The same arguments give the same problem.

    Parameters
    ----------
    shape
        ``layered``: `size` tasks in layers of random width, each reading up to three of the layer
        before. ``fork-join``: three times `size` parallel tasks between single ones. ``fft``: the
        recursive calls and butterflies of a transform of `size` points, a power of two.
        ``gaussian``: the elimination of a matrix of `size` rows.
    ccr
        Mean transfer over mean time of a task.

    Raises
    ------
    InputError
        A size that is no power of two for ``fft``.
    """
    rng = np.random.default_rng([list(SHAPES).index(shape), size, seed])
    n, edges = SHAPES[shape](size, rng)
    mean = rng.uniform(0, 2, n)
    spread = rng.uniform(1 - heterogeneity / 2, 1 + heterogeneity / 2, (n, devices))
    m, arcs = devices, np.array(edges, dtype=np.int64).reshape(-1, 2)
    channel = np.arange(m * m).reshape(m, m)
    name = f"{shape}-{size}-ccr{ccr:g}-s{seed}"
    return OperatorProblem(
        name=name,
        operator_names=tuple(f"t{i}" for i in range(n)),
        device_names=tuple(f"p{d}" for d in range(m)),
        compute_s=mean[:, None] * spread,
        tensor_names=tuple(f"t{i}->t{j}" for i, j in edges),
        tensor_producer=arcs[:, 0],
        tensor_bytes=rng.uniform(0, 2 * ccr, len(arcs)),
        consumer_offsets=np.arange(len(arcs) + 1),
        consumers=arcs[:, 1],
        latency_s=np.zeros((m, m)),
        seconds_per_byte=1.0 - np.eye(m),
        channel=np.where(np.eye(m, dtype=bool), -1, channel),
        channel_names=tuple(f"p{a}->p{b}" for a in range(m) for b in range(m)),
        resident_bytes=np.zeros(n),
        memory_bytes=np.full(m, np.inf),
        colocation=np.arange(n),
        pinned=np.full(n, -1),
        links=Links(links),
        dimensionless=True,
    )


def _layered(size: int, rng: np.random.Generator) -> Edges:
    """About as many layers as tasks in one."""
    edges, before, done = [], range(0), 0
    mean_width = max(1, int(size**0.5))
    while done < size:
        layer = range(done, min(size, done + int(rng.integers(1, 2 * mean_width + 1))))
        for task in layer if before else ():
            count = min(len(before), int(rng.integers(1, 4)))
            read = rng.choice(len(before), count, replace=False)
            edges += [(before[k], task) for k in sorted(read.tolist())]
        before, done = layer, layer.stop
    return size, edges


STAGES = 3


def _fork_join(size: int, rng: np.random.Generator) -> Edges:
    edges, last = [], 0
    for _ in range(STAGES):
        middle, join = range(last + 1, last + 1 + size), last + 1 + size
        edges += [(last, task) for task in middle] + [(task, join) for task in middle]
        last = join
    return last + 1, edges


def _fft(size: int, rng: np.random.Generator) -> Edges:
    """2 size - 1 calls, a tree, and size log2(size) butterflies."""
    if size & (size - 1):
        by, hint = f"got {size}", f"take {1 << size.bit_length() - 1} or {1 << size.bit_length()}"
        raise InputError("must be a power of two", where="size of an fft", by=by, hint=hint)
    # Calls as a heap: the children of `k` are 2 k + 1 and 2 k + 2, the last `size` are leaves.
    edges = [((k - 1) // 2, k) for k in range(1, 2 * size - 1)]
    row, first, stride = size - 1, 2 * size - 1, 1
    while stride < size:
        for k in range(size):
            edges += [(row + k, first + k), (row + (k ^ stride), first + k)]
        row, first, stride = first, first + size, 2 * stride
    return first, edges


def _gaussian(size: int, rng: np.random.Generator) -> Edges:
    """A pivot per column, and an update for each column behind it: (size^2 + size - 2) / 2."""
    edges: list[tuple[int, int]] = []
    task, before = 0, dict[int, int]()
    for column in range(size - 1):
        pivot, updates = task, {j: task + j - column for j in range(column + 1, size)}
        if column:
            edges.append((before[column], pivot))
        for j, update in updates.items():
            edges.append((pivot, update))
            if column:
                edges.append((before[j], update))
        task, before = pivot + size - column, updates
    return task, edges


SHAPES: Mapping[Shape, Callable[[int, np.random.Generator], Edges]] = MappingProxyType(
    {"layered": _layered, "fork-join": _fork_join, "fft": _fft, "gaussian": _gaussian}
)
