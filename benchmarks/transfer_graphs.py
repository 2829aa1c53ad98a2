"""Draw graphs to train and test the transfer policy on, from a seed.

Five families of operator graphs, from 60 to 2,000 operators: random layers, chains that fork and
join, blocks of a transformer, blocks with parallel branches as in Inception, and a forward pass
with its backward pass. Two to eight devices, equal or heterogeneous, each kind of operator
favouring some; links of different speeds, sometimes one channel for all transfers from a device.
``python benchmarks/transfer_graphs.py [SEED ...]`` describes some.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from placewright import OperatorProblem

Edges = list[tuple[int, int]]
KINDS = 8
FAMILIES = ("layers", "forks", "transformer", "branches", "training")


def generated(seed: int, size: int | None = None, family: str | None = None) -> OperatorProblem:
    """The problem of a seed; `size` operators or a few less, drawn where not given."""
    rng = np.random.default_rng([20, seed])
    drawn = int(np.exp(rng.uniform(np.log(60), np.log(2000))))
    kind_of_graph = family or FAMILIES[seed % len(FAMILIES)]
    n, edges = BUILDERS[kind_of_graph](rng, size or drawn)
    return _problem(rng, n, edges, f"{kind_of_graph}-{seed}")


def _layers(rng: np.random.Generator, size: int) -> tuple[int, Edges]:
    """Layers of random width; each operator reads from one to three of the two layers before."""
    width = float(np.exp(rng.uniform(np.log(2), np.log(max(4.0, np.sqrt(size))))))
    layers: list[list[int]] = []
    edges: Edges = []
    n = 0
    while n < size:
        count = min(size - n, 1 + int(rng.poisson(width)))
        layer = list(range(n, n + count))
        before = [x for older in layers[-2:] for x in older]
        for op in layer:
            for source in rng.permutation(before)[: int(rng.integers(1, 4))]:
                edges.append((int(source), op))
        layers.append(layer)
        n += count
    return n, edges


def _forks(rng: np.random.Generator, size: int) -> tuple[int, Edges]:
    """A chain whose links fork into chains of different lengths that join again."""
    edges: Edges = []
    n, last = 1, 0
    most = int(rng.integers(2, 9))
    while n < size:
        ends = []
        for _ in range(int(rng.integers(1, most + 1))):
            at = last
            for _ in range(int(rng.integers(1, 12))):
                edges.append((at, n))
                at, n = n, n + 1
            ends.append(at)
        edges.extend((end, n) for end in ends)
        last, n = n, n + 1
    return n, edges


def _transformer(rng: np.random.Generator, size: int) -> tuple[int, Edges]:
    """Blocks of heads in parallel and a wide projection, with residual connections."""
    heads, wide = int(rng.integers(2, 13)), int(rng.integers(1, 5))
    edges: Edges = []
    n, last = 1, 0
    while n < size:
        start, ends = last, []
        for _ in range(heads):
            q, k, v, scores, mixed = range(n, n + 5)
            edges += [(start, q), (start, k), (start, v), (q, scores), (k, scores)]
            edges += [(scores, mixed), (v, mixed)]
            ends.append(mixed)
            n += 5
        joined, n = n, n + 1
        edges += [(end, joined) for end in ends] + [(start, joined)]
        ends = []
        for _ in range(wide):
            up, act = n, n + 1
            edges += [(joined, up), (up, act)]
            ends.append(act)
            n += 2
        last, n = n, n + 1
        edges += [(end, last) for end in ends] + [(joined, last)]
    return n, edges


def _branches(rng: np.random.Generator, size: int) -> tuple[int, Edges]:
    """Inception-like blocks: parallel chains, concatenated; sometimes two parallel towers."""
    towers = int(rng.integers(1, 4))
    edges: Edges = []
    n, tops = 1, [0]
    share = max(1, size // towers)
    for tower in range(towers):
        last = 0
        while n < share * (tower + 1):
            ends = []
            for branch in range(int(rng.integers(2, 6))):
                at = last
                for _ in range(branch + int(rng.integers(1, 4))):
                    edges.append((at, n))
                    at, n = n, n + 1
                ends.append(at)
            edges += [(end, n) for end in ends]
            last, n = n, n + 1
        tops.append(last)
    edges += [(top, n) for top in tops]
    return n + 1, edges


def _training(rng: np.random.Generator, size: int) -> tuple[int, Edges]:
    """A forward graph and its reverse, which also reads what the forward pass made."""
    inner = FAMILIES[int(rng.integers(0, 4))]
    half, forward = BUILDERS[inner](rng, max(30, size // 2))
    edges = list(forward)
    edges += [(2 * half - 1 - b, 2 * half - 1 - a) for a, b in forward]
    edges += [(i, 2 * half - 1 - i) for i in range(half)]
    return 2 * half, edges


BUILDERS: dict[str, Callable[[np.random.Generator, int], tuple[int, Edges]]] = {
    "layers": _layers,
    "forks": _forks,
    "transformer": _transformer,
    "branches": _branches,
    "training": _training,
}


def _problem(rng: np.random.Generator, n: int, edges: Edges, name: str) -> OperatorProblem:
    """Costs, devices and links for a graph."""
    m = int(rng.choice([2, 3, 4, 4, 6, 8]))
    kind = rng.integers(0, KINDS, n)
    work = np.exp(rng.normal(0, rng.uniform(0.3, 1.3), KINDS))[kind] * np.exp(
        rng.normal(0, rng.uniform(0.1, 0.8), n)
    )
    mixed = rng.random() < 0.7
    speed = np.exp(rng.normal(0, rng.uniform(0.2, 0.9) if mixed else 0.0, m))
    taste = np.exp(rng.normal(0, rng.uniform(0.0, 0.6) if mixed else 0.0, (KINDS, m)))
    compute_s = 1e-4 * work[:, None] / (speed * taste[kind])
    sources = sorted({a for a, _ in edges})
    readers: dict[int, list[int]] = {}
    for a, b in edges:
        readers.setdefault(a, []).append(b)
    bytes_ = np.exp(rng.normal(0, 0.8, len(sources)))
    rate = np.exp(rng.normal(0, rng.uniform(0.0, 0.8), (m, m)))
    rate = np.sqrt(rate * rate.T)
    ccr = float(np.exp(rng.uniform(np.log(0.05), np.log(4.0))))
    off = 1.0 - np.eye(m)
    per_byte = off / rate
    mean_move = float((bytes_.mean() * per_byte).sum() / (m * (m - 1)))
    per_byte *= ccr * compute_s.mean() / mean_move / 1e6
    latency_s = off * compute_s.mean() * rng.uniform(0.0, 0.3) * min(1.0, ccr)
    shared = rng.random() < 0.25
    ends = [(a, b) for a in range(m) for b in range(m) if a != b]
    channel = np.full((m, m), -1)
    for index, (a, b) in enumerate(ends):
        channel[a, b] = a if shared else index
    names = [f"dev{a}->" for a in range(m)] if shared else [f"dev{a}->dev{b}" for a, b in ends]
    consumers = [sorted(set(readers[a])) for a in sources]
    return OperatorProblem(
        operator_names=tuple(f"op{i}" for i in range(n)),
        device_names=tuple(f"dev{d}" for d in range(m)),
        compute_s=compute_s,
        tensor_names=tuple(f"tensor{a}" for a in sources),
        tensor_producer=np.array(sources),
        tensor_bytes=np.round(1e6 * bytes_),
        consumer_offsets=np.cumsum([0, *(len(x) for x in consumers)]),
        consumers=np.array([x for row in consumers for x in row]),
        latency_s=latency_s,
        seconds_per_byte=per_byte,
        channel=channel,
        channel_names=tuple(names),
        resident_bytes=np.zeros(n),
        memory_bytes=np.full(m, np.inf),
        colocation=np.arange(n),
        pinned=np.full(n, -1),
        name=name,
    )


if __name__ == "__main__":
    for seed in [int(x) for x in sys.argv[1:]] or range(10):
        drawn = generated(seed)
        print(drawn.name, drawn.n, "operators", len(drawn.consumers), "uses", drawn.m, "devices")
