"""Compare planners of layers: with all plans, on large chains, on Piper's inputs, and the swarm.

    python benchmarks/layers_planners.py [equal N | memory N | large | piper | swarm] ...

Without words all tables. `equal`: N random small cases (default 1,000) in which `dp` and the
enumeration of all plans must agree. `memory`: N chains on two kinds of workers (default 20), with
less and less memory: `dp` must not become better, nor be worse than `data` and `pipeline`.
`swarm`: 20 seeds, cold and warm, as multiples of the best plan that `dp` finds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from harness import DATA, run
from placewright.errors import PlacewrightError
from placewright.layers.bounds import bounds
from placewright.layers.conformance import random_tiny, tiny
from placewright.layers.files import read_piper
from placewright.layers.judge import LayerJudgement, judge
from placewright.layers.planners.dp import SMALL, Dp, small_space
from placewright.layers.planners.piper import best_plan
from placewright.layers.planners.space import better, every_plan, judged, space_size
from placewright.layers.planners.swarm import Pso
from placewright.layers.planners.uniform import OneWeirdTrick, Uniform
from placewright.layers.problem import LayerProblem
from placewright.layers.workers import Link
from placewright.planning.contract import Context, proposal_of
from placewright.report.text import plain_table

PUBLISHED = (
    ("bert32a100", 512, None, 0.00256113),
    ("resnet", 8, 4.0, 73.49),
    ("resnet", 8, 8.0, 63.43),
    ("resnet", 8, 16.0, 58.56),
    ("gnmt", 2, 2.5, 263.354),
)


def main(*words: str) -> None:
    """Print the selected tables."""
    count = next((int(word) for word in words if word.isdigit()), 0)
    tables: dict[str, Callable[[], None]] = {
        "equal": lambda: equal(count or 1000),
        "memory": lambda: memory(count or 20),
        "large": large,
        "piper": piper,
        "swarm": swarm,
    }
    for name, show in tables.items():
        if name in words or not words:
            show()


def equal(count: int) -> None:
    """`dp` against all plans."""
    agreed = done = seed = 0
    while done < count:
        p = random_tiny(seed)
        seed += 1
        if space_size(p, SMALL) >= SMALL:
            continue
        best: LayerJudgement | None = None
        for plan in every_plan(p):
            found = judged(p, plan)
            best = found if better(found, best) else best
        ours = [None, *small_space(p, Context())][-1]
        done += 1
        agreed += _score(ours) == _score(best)
    print(f"dp equals enumeration on {agreed} of {done} random cases")


def memory(count: int) -> None:
    """Chains with less and less memory."""
    rows = rises = beaten = 0
    for seed in range(count):
        rng = np.random.default_rng(seed)
        n, nodes = int(rng.integers(6, 27)), int(rng.integers(2, 4))
        p = chain(n, 2 * nodes, nodes).replace(global_batch=int(rng.choice([32, 48, 64])))
        p, before = p.replace(degrees=(1,), **_first_degree(p)), 0.0
        room = float(judge(p, Uniform("single")(p, Context()).plan).held_bytes.max())
        for part in (math.inf, 2.0, 1.0, 0.8, 0.6, 0.45, 0.33):
            q = p.replace(memory_bytes=np.full(p.w, part * room))
            ours = judge(q, Dp()(q, Context()).plan)
            rows += 1
            rises += ours.feasible and ours.value < before * (1 - 1e-12)
            before = max(before, ours.value) if ours.feasible else math.inf
            others = [judge(q, Uniform(name)(q, Context()).plan) for name in ("data", "pipeline")]
            beaten += any(better(other, ours) for other in others)
    print(f"{rows} problems: better with less memory {rises}, worse than data or pipeline {beaten}")


def _first_degree(p: LayerProblem) -> dict[str, object]:
    """The tables of tensor degree 1."""
    tables = ("parameters", "output_bytes", "activation_bytes", "working_bytes", "update_bytes")
    found: dict[str, object] = {name: getattr(p, name)[:, :1] for name in tables}
    return found | {name: getattr(p, name)[:, :1] for name in ("forward_s", "backward_s")}


def _score(judgement: LayerJudgement | None) -> tuple[float, float] | None:
    return None if judgement is None else (judgement.violation_size, judgement.value)


def chain(n: int, workers: int, nodes: int, memory: float = float("inf")) -> LayerProblem:
    """Random layers, half of the workers 2.5 times as slow, cards of 10 Gbit/s per node."""
    rng = np.random.default_rng(n)
    one, sizes = rng.uniform(0.5e-3, 2e-3, n), np.array([1.0, 8.0, 64.0])
    forward = np.array([1.0, 2.5])[:, None, None, None] * np.array([1, 0.6])[None, :, None, None]
    forward = forward * sizes[None, None, :, None] * one
    held = rng.uniform(1e5, 4e6, n)
    between = np.where(np.eye(nodes, dtype=bool), 0, 1)
    return tiny(
        one,
        workers,
        nodes,
        forward_s=forward,
        backward_s=2 * forward,
        sizes=sizes,
        parameters=np.stack([held, held / 2], axis=1),
        output_bytes=np.repeat(rng.uniform(1e5, 2e6, (n, 1)), 2, axis=1),
        activation_bytes=np.repeat(rng.uniform(1e6, 8e6, (n, 1)), 2, axis=1),
        tensor_bytes=np.full((n, 2), 1e6),
        kind_names=("fast", "slow"),
        worker_kind=np.arange(workers) * 2 // workers,
        links=(Link.linear(1e10, 1e-5), Link.linear(1.25e9, 5e-5, 1.25e9)),
        link_index=between,
        global_batch=256,
        memory_bytes=np.full(workers, memory),
        name=f"chain-{n}-{workers}",
    )


def large() -> None:
    """Time, value and gap of `dp` on large chains, beside data parallelism."""
    Dp()(chain(30, 8, 2), Context())  # compiles
    rows = []
    for n, w, nodes, memory in (
        (100, 16, 4, float("inf")),
        (100, 16, 4, 3e9),
        (1000, 64, 16, float("inf")),
        (1000, 64, 16, 2e10),
    ):
        p = chain(n, w, nodes, memory)
        begin, cpu = time.perf_counter(), time.process_time()
        plan = Dp()(p, Context()).plan
        took, used = time.perf_counter() - begin, time.process_time() - cpu
        value = judge(p, plan).value
        plain = judge(p, Uniform("data")(p, Context()).plan)
        gap = value / max(bounds(p).values()) - 1
        rows.append(
            (
                f"{n} x {w}",
                f"{memory:g}",
                f"{took:.1f}",
                f"{used:.1f}",
                f"{value:.4g}",
                f"{gap:.1%}",
                f"{plain.value:.4g}" if plain.feasible else "does not fit",
            )
        )
    head = ("layers x workers", "memory", "wall s", "CPU s", "dp", "gap", "data")
    print(plain_table(head, rows, "  rrrrr"))


def piper() -> None:
    """Largest loads of Piper's inputs beside the published ones."""
    rows = []
    for name, devices, gib, known in PUBLISHED:
        memory = None if gib is None else gib * 2**30
        p = read_piper(DATA / "piper" / f"{name}.json", devices=devices, memory_bytes=memory)
        begin = time.perf_counter()
        value = judge(p, best_plan(p)).value
        took = time.perf_counter() - begin
        rows.append(
            (name, str(devices), str(gib or "-"), f"{value:.8g}", f"{known:g}", f"{took:.1f}")
        )
    print(plain_table(("input", "devices", "GiB", "ours", "published", "wall s"), rows, " rrrrr"))


def swarm(seeds: int = 20) -> None:
    """Median and best of the swarm as multiples of `dp`'s value."""
    rows = []
    for n, w in ((8, 4), (16, 8), (32, 8)):
        p = chain(n, w, 2)
        best = judge(p, Dp()(p, Context()).plan).value
        cells = []
        for start in ("cold", "warm"):
            pso = Pso(start=start)
            plans = (partial(pso, p, Context(seed=seed)) for seed in range(seeds))
            values = [_value(p, plan) / best for plan in plans]
            cells += [f"{np.median(values):.3f}", f"{min(values):.3f}"]
        ways: tuple[Any, ...] = (*map(Uniform, ("data", "tensor", "pipeline")), OneWeirdTrick())
        uniform = min(_value(p, partial(way, p, Context())) for way in ways)
        rows.append((p.name, *cells, f"{uniform / best:.3f}"))
    head = ("chain", "cold median", "cold best", "warm median", "warm best", "uniform")
    print(plain_table(head, rows, " rrrrr"))


def _value(p: LayerProblem, planned: Callable[[], Any]) -> float:
    """Of what a planner proposes; ``inf`` where there is no plan."""
    try:
        return judge(p, proposal_of(planned()).plan).value
    except PlacewrightError:
        return math.inf


if __name__ == "__main__":
    run(main)
