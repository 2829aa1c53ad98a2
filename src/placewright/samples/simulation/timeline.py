"""A plan as a trace: transfers on links, epochs on nodes, gradient exchange at the end."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.planning.trace import Trace
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import Overlap, SampleProblem
from placewright.samples.simulation.ends import waits_for_all
from placewright.samples.simulation.ports import PortTimes

MOST_SPANS = 4000
"""From here on a node's epochs are drawn as one."""


def timeline(
    problem: SampleProblem, plan: SamplePlan, played: PortTimes, trained_s: FloatArray
) -> Trace:
    """The trace; `trained_s` is each node's training time."""
    moved_s = played.node_s(problem, plan)
    begin_s = _begin_s(problem, moved_s)
    epochs = problem.epochs if problem.n * problem.epochs <= MOST_SPANS else 1
    end_s = float(np.maximum(begin_s + trained_s, moved_s).max())
    sync_s = problem.epochs * problem.sync_s
    pairs = list(dict.fromkeys(zip(plan.source.tolist(), plan.target.tolist(), strict=True)))
    track_of = {pair: problem.n + k for k, pair in enumerate(pairs)}
    name = problem.node_names
    told = [f"epoch {e + 1}" if epochs > 1 else f"{problem.epochs} epochs" for e in range(epochs)]
    labels = [*told, "gradient exchange", *(f"{c} samples" for c in played.count.tolist())]
    step_s = trained_s / epochs
    first_s = begin_s[:, None] + step_s[:, None] * np.arange(epochs)
    nodes = np.arange(problem.n)
    synced = nodes if sync_s > 0 else nodes[:0]
    moves = played.move
    return Trace(
        tracks=(*name, *(f"{name[i]}->{name[j]}" for i, j in pairs)),
        devices=problem.n,
        labels=tuple(labels),
        track=np.concatenate([np.repeat(nodes, epochs), synced, _tracks(plan, played, track_of)]),
        label=np.concatenate(
            [
                np.tile(np.arange(epochs), problem.n),
                np.full(len(synced), epochs),
                epochs + 1 + np.arange(len(moves)),
            ]
        ),
        start_s=np.concatenate([first_s.ravel(), np.full(len(synced), end_s), played.start_s]),
        end_s=np.concatenate(
            [
                (first_s + step_s[:, None]).ravel(),
                np.full(len(synced), end_s + sync_s),
                played.end_s,
            ]
        ),
        title=problem.name,
    )


def _begin_s(problem: SampleProblem, moved_s: FloatArray) -> FloatArray:
    if problem.overlap is Overlap.HIDDEN:
        return np.zeros(problem.n)
    return np.full(problem.n, moved_s.max()) if waits_for_all(problem) else moved_s


def _tracks(
    plan: SamplePlan, played: PortTimes, track_of: dict[tuple[int, int], int]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    source, target = plan.source[played.move].tolist(), plan.target[played.move].tolist()
    tracks = [track_of[i, j] for i, j in zip(source, target, strict=True)]
    return np.array(tracks, dtype=np.int64)
