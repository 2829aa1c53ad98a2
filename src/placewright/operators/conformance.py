"""Small problems of wing 1: named and random ones, for the conformance kit and for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from placewright.operators.plan import Dispatch, OperatorPlan, check_plan
from placewright.operators.problem import Links, Objective, OperatorProblem, Overlap

__all__ = ["check_plan", "plans", "problems", "random_problems", "same_plan", "tiny_instances"]


MOST_OPERATORS, MOST_DEVICES = 10, 4
"""Of random problems."""


def tiny_instances() -> Mapping[str, OperatorProblem]:
    """Named problems that planners get wrong."""
    return named_instances()


def random_problems() -> st.SearchStrategy[OperatorProblem]:
    """Refused devices, groups, pins, memory limits, every link and overlap mode."""
    return problems()


def same_plan(plan: OperatorPlan, other: OperatorPlan) -> bool:
    """Whether placement, order, dispatch, calls and copies are equal."""
    arrays = ("placement", "order", "call", "replica_of")
    pairs = [(getattr(plan, key), getattr(other, key)) for key in arrays]
    return plan.dispatch == other.dispatch and all(
        (a is None) == (b is None) and (a is None or np.array_equal(a, b)) for a, b in pairs
    )


@st.composite
def problems(draw: st.DrawFn, *, objective: Objective = Objective.LATENCY) -> OperatorProblem:
    """Problems with unsupported devices, groups, pins, memory limits and shared channels.

    Hypothesis draws the seed and the sizes, so that it can shrink towards few operators.
    """
    operators, devices = draw(st.integers(1, MOST_OPERATORS)), draw(st.integers(1, MOST_DEVICES))
    problem = random_problem(
        draw(st.integers(0, 2**32 - 1)), most_operators=operators, most_devices=devices
    )
    if draw(st.booleans()):
        problem = with_random_views(problem, draw(st.integers(0, 2**32 - 1)))
    return problem.replace(
        objective=objective,
        links=draw(st.sampled_from(list(Links))),
        overlap=draw(st.sampled_from(list(Overlap))),
    )


@st.composite
def plans(draw: st.DrawFn, problem: OperatorProblem) -> OperatorPlan:
    """Plans that `check_plan` passes: without an order, with any, or in a topological one."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    placement = random_placement(problem, rng)
    kind = draw(st.sampled_from(["none", "any", "in-order"]))
    if kind == "none":
        return OperatorPlan(placement)
    if kind == "any":
        return OperatorPlan(placement, rng.permutation(problem.n))
    return OperatorPlan(placement, problem.topology.order, Dispatch.IN_ORDER)


_TIMES_S = np.array([0.0, 0.25, 0.5, 1.0, 1.0, 2.0, 3.0])


def tiny(
    compute_s: Sequence[Sequence[float]],
    tensors: Sequence[tuple[int, float, Sequence[int]]] = (),
    *,
    latency_s: float = 0.0,
    seconds_per_byte: float = 1.0,
    **changes: Any,
) -> OperatorProblem:
    """A problem from few words.

    Parameters
    ----------
    compute_s
        One row per operator, one column per device.
    tensors
        (producer, bytes, consumers) of every tensor.
    latency_s, seconds_per_byte
        Of every link; every ordered pair of devices has a channel of its own.
    changes
        Any other field of `OperatorProblem`.
    """
    m = len(compute_s[0])
    builder = OperatorProblem.builder([f"dev{d}" for d in range(m)], "tiny")
    builder.link_all()
    operators = [builder.add_operator(f"op{i}", row) for i, row in enumerate(compute_s)]
    for k, (producer, size, readers) in enumerate(tensors):
        names = [operators[reader] for reader in readers]
        builder.add_tensor(operators[producer], names, size, name=f"tensor{k}")
    between = 1.0 - np.eye(m)
    links = {"latency_s": latency_s * between, "seconds_per_byte": seconds_per_byte * between}
    return builder.build(**(links | changes))


def named_instances() -> Mapping[str, OperatorProblem]:
    """The cases that planners get wrong, each as small as it can be."""
    inf = float("inf")
    chain = [(0, 1.0, [1]), (1, 1.0, [2]), (2, 1.0, [3]), (3, 1.0, [4])]
    diamond = [(0, 2.0, [1, 2]), (1, 1.0, [3]), (2, 1.0, [3])]
    unlinked = np.array([[0.0, inf], [inf, 0.0]])
    return {
        "one-operator": tiny([[2.0, 1.0]]),
        "one-device": tiny([[1.0], [2.0]], [(0, 1.0, [1])]),
        "chain": tiny([[2.0, 3.0]] * 5, chain),
        "diamond": tiny([[1.0, 2.0], [4.0, 2.0], [3.0, 3.0], [1.0, 1.0]], diamond),
        "free-operators": tiny([[1.0, 1.0]] * 6),
        "zero-times": tiny([[0.0, 0.0]] * 4, diamond),
        "unsupported": tiny([[1.0, inf], [inf, 1.0], [1.0, inf], [2.0, 2.0]], diamond),
        "together": tiny([[1.0, 2.0]] * 5, chain, colocation=[0, 1, 0, 1, 4]),
        "pinned": tiny([[1.0, 5.0]] * 5, chain, pinned=[1, -1, 0, -1, 1]),
        "memory": tiny(
            [[1.0, 2.0]] * 5, chain, resident_bytes=[4.0] * 5, memory_bytes=[14.0, 14.0]
        ),
        "unlinked": tiny(
            [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]],
            [(0, 1.0, [1])],
            pinned=[0, -1, -1],
            latency_s=0.0,
        ).replace(seconds_per_byte=unlinked, latency_s=unlinked, channel=np.full((2, 2), -1)),
    }


def random_problem(
    seed: int, *, most_operators: int = 12, most_devices: int = 4, **changes: Any
) -> OperatorProblem:
    """A small problem with many equal times, shared channels and some of every constraint.

    Every operator can run somewhere with its whole group; all devices are linked.
    """
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, most_operators + 1)), int(rng.integers(1, most_devices + 1))
    grid = bool(rng.random() < 0.7)
    compute = rng.choice(_TIMES_S, (n, m)) if grid else rng.random((n, m))
    problem = tiny(
        compute.tolist(),
        _random_tensors(rng, n, grid),
        name=f"random-{seed}",
        **_random_links(rng, m, grid),
        resident_bytes=rng.integers(0, 4, n),
        colocation=_random_groups(rng, n),
    )
    return _with_refusals(rng, problem).replace(**changes)


def _random_tensors(
    rng: np.random.Generator, n: int, grid: bool
) -> list[tuple[int, float, Sequence[int]]]:
    """Edges run along a hidden shuffled order, so that operators are not sorted."""
    order = rng.permutation(n)
    tensors: list[tuple[int, float, Sequence[int]]] = []
    for _ in range(int(rng.integers(0, 2 * n + 1))):
        at = int(rng.integers(0, n))
        later = order[at + 1 :]
        readers = rng.choice(later, min(len(later), int(rng.integers(0, 4))), replace=False)
        size = float(rng.integers(0, 4)) if grid else float(rng.random() * 3)
        tensors.append((int(order[at]), size, readers.tolist()))
    return tensors


def _random_links(rng: np.random.Generator, m: int, grid: bool) -> dict[str, Any]:
    """Links of different speed on few channels."""
    off_diagonal = 1.0 - np.eye(m)
    channels = int(rng.integers(1, m * m + 1))
    channel = np.where(off_diagonal > 0, rng.integers(0, channels, (m, m)), -1)
    per_byte = rng.choice([0.0, 0.5, 1.0], (m, m)) if grid else rng.random((m, m))
    latency = rng.choice([0.0, 0.0, 0.5], (m, m)) if grid else rng.random((m, m)) / 4
    return {
        "latency_s": latency * off_diagonal,
        "seconds_per_byte": per_byte * off_diagonal,
        "channel": channel,
        "channel_names": tuple(f"channel{x}" for x in range(channels)),
    }


def _random_groups(rng: np.random.Generator, n: int) -> np.ndarray[Any, Any]:
    """Mostly alone, sometimes in pairs."""
    groups = np.arange(n)
    for i in np.flatnonzero(rng.random(n) < 0.2):
        groups[i] = groups[int(rng.integers(0, n))]
    return groups


def _with_refusals(rng: np.random.Generator, problem: OperatorProblem) -> OperatorProblem:
    """Some devices refuse some groups, some operators are pinned, some memory is short."""
    n, m = problem.n, problem.m
    home = rng.integers(0, m, n)[problem.colocation]
    refused = rng.random((n, m)) < 0.15
    refused[np.arange(n), home] = False
    pinned = np.where(rng.random(n) < 0.1, home, -1)
    need = float(problem.resident_bytes.sum() + problem.tensor_bytes.sum())
    short = rng.random() < 0.3
    memory = np.full(m, np.ceil(need * (0.5 + rng.random())) if short else np.inf)
    compute = np.where(refused, np.inf, problem.compute_s)
    return problem.replace(compute_s=compute, pinned=pinned, memory_bytes=memory)


def with_random_views(problem: OperatorProblem, seed: int) -> OperatorProblem:
    """The same problem, half of its tensors views of what their producer reads, or of weights."""
    rng, topology = np.random.default_rng(seed), problem.topology
    alias = np.full(problem.t, -1)
    for k in np.flatnonzero(rng.random(problem.t) < 0.5):
        i = problem.tensor_producer[k]
        read = topology.read_by(i)
        alias[k] = rng.choice([*read.tolist(), -2])
    return problem.replace(alias_of=alias)


def random_placement(problem: OperatorProblem, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Every group on a device that all of it can use, shape (n,)."""
    draw = rng.random((problem.n, problem.m))[problem.colocation]
    placement: np.ndarray[Any, Any] = np.where(problem.allowed(), draw, -1.0).argmax(axis=1)
    return placement
