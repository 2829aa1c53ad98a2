"""Judge of wing 2: the only code that gives a plan its value.

The value is the simulated time of one training step (`placewright.layers.simulation`), or for
problems with variants the largest load of a stage (below). Memory must fit on
every worker; where a problem does not say what layers keep, what is known must.

Loads of stages in a full pipeline: the objective of Piper (NeurIPS 2021, arXiv 2106.11731).

With d replicas of tensor degree t, bandwidth B and N samples (micro-batches) in a batch, a stage of
layers C takes per sample

    sum over C of time / d  +  cut / (d B)  +  4 (d - 1) parameter_bytes / (d N B)

where an edge that enters or leaves C counts twice (forward and backward) its bytes and what its
end in C adds. Memory of a device is ``sum of fixed + y in_flight``, y = ceil(s / d) samples in
flight with s the replicas of this stage and of all that come after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from placewright.layers.plan import LayerPlan, Stage, check_plan, in_flight
from placewright.layers.problem import LayerProblem, Variants
from placewright.layers.simulation import MOST_PASSES, SimulatedStep, Span, passes_of, simulate
from placewright.layers.stage_costs import stage_bytes, state_bytes, worker_bytes
from placewright.numerics.arrays import FloatArray
from placewright.report.text import size
from placewright.report.trace import MemoryCurve, Trace


@dataclass(frozen=True, eq=False)
class LayerJudgement:
    """Judgement of a plan.

    Attributes
    ----------
    value
        Seconds of a step, or of a sample in the slowest stage.
    held_bytes
        Shape (W,): peak of each worker, NaN where unknown, 0 where it is left out.
    least_bytes
        Shape (W,): the same, without what layers keep where that is unknown.
    violation, violation_size
        The worker that misses most memory, in words and in bytes.
    times
        The simulation; ``None`` for throughput.
    """

    problem: LayerProblem
    plan: LayerPlan
    value: float
    held_bytes: FloatArray
    least_bytes: FloatArray
    violation: str
    violation_size: float
    times: SimulatedStep | None

    @property
    def feasible(self) -> bool:
        """Whether every worker's memory is enough."""
        return not self.violation

    @property
    def peak_memory_bytes(self) -> float | None:
        """Largest peak of any worker, ``None`` where it is not known."""
        peak = float(self.held_bytes.max())
        return None if math.isnan(peak) else peak

    @property
    def metrics(self) -> dict[str, tuple[float, str]]:
        """Measures beside the value."""
        found: dict[str, tuple[float, str]] = {
            "workers": (float(len(self.plan.workers)), ""),
            "stages": (float(len(self.plan.stages)), ""),
        }
        if self.peak_memory_bytes is not None:
            found["peak memory"] = (self.peak_memory_bytes, "bytes")
        if self.times is not None:
            found["passes"] = (self.times.passes_s, "s")
            found["gradient exchange"] = (self.times.sync_s, "s")
        return found

    def trace(self) -> Trace | None:
        """Passes of every replica, transfers, gradient exchange, memory; ``None`` of too many."""
        return self._trace

    @cached_property
    def _trace(self) -> Trace | None:
        if self.times is None or passes_of(self.plan) > MOST_PASSES:
            return None
        return _trace(self.problem, self.plan, simulate(self.problem, self.plan))


def judge(problem: LayerProblem, plan: LayerPlan) -> LayerJudgement:
    """Seconds that a step takes under a plan, and whether it fits.

    Raises `InputError`: the plan is none of this problem, or no link joins two workers that must
    exchange data.
    Raises `UnsupportedError`: a layer cannot have its strategy, or was not measured on its worker.
    """
    check_plan(problem, plan)
    if problem.variants is not None:
        held, times = load_bytes(problem, plan), None
        value = float(loads(problem, plan).max())
    else:
        held = worker_bytes(problem, plan)
        times = simulate(problem, plan, spans=False)
        value = times.step_s
    least = worker_bytes(_keeping_nothing(problem), plan) if np.isnan(held).any() else held
    worst, over = shortfall(problem, least)
    return LayerJudgement(problem, plan, value, held, least, worst, over, times)


@lru_cache(maxsize=4)
def _keeping_nothing(p: LayerProblem) -> LayerProblem:
    """The problem with 0 for what layers keep where that is unknown."""
    known = {key: np.nan_to_num(getattr(p, key)) for key in ("activation_bytes", "framework_bytes")}
    return p.replace(**known)


def shortfall(problem: LayerProblem, held: FloatArray) -> tuple[str, float]:
    """The worker that misses most memory, in words and in bytes; empty and 0 if none does."""
    over = np.nan_to_num(held - problem.memory_bytes, nan=-math.inf)
    w = int(over.argmax())
    if over[w] <= 0:
        return "", 0.0
    name = problem.worker_names[w]
    needs = f"needs {size(float(held[w]))} of {size(float(problem.memory_bytes[w]))}"
    return f"{name} {needs}: {size(float(over[w]))} too much", float(over[w])


MOST_TRACKS = 64
"""Workers up to which each has a track of its own, else the first of each replica."""


def _trace(p: LayerProblem, plan: LayerPlan, times: SimulatedStep) -> Trace:
    """Spans of replicas on the tracks of their workers; messages on a track per sender."""
    every = len(plan.workers) <= MOST_TRACKS
    tracks: dict[str, int] = {}
    for stage in plan.stages:
        for replica in stage.replicas:
            for w in replica.workers if every else replica.workers[:1]:
                tracks.setdefault(p.worker_names[w], len(tracks))
    devices = len(tracks)
    labels: dict[str, int] = {}
    rows: list[tuple[int, int, float, float]] = []

    def add(track: str, span: Span) -> None:
        at = tracks.setdefault(track, len(tracks))
        label = labels.setdefault(span.label, len(labels))
        rows.append((at, label, span.start_s, span.end_s))

    for span in times.spans:
        replica = plan.stages[span.unit[0]].replicas[span.unit[1]]
        for w in replica.workers if every else replica.workers[:1]:
            add(p.worker_names[w], span)
    for span in times.messages:
        add(f"from stage {span.unit[0]}.{span.unit[1]}", span)
    columns = list(zip(*rows, strict=True))
    return Trace(
        tracks=tuple(tracks),
        devices=devices,
        labels=tuple(labels),
        track=np.array(columns[0], dtype=np.int64),
        label=np.array(columns[1], dtype=np.int64),
        start_s=np.array(columns[2]),
        end_s=np.array(columns[3]),
        memory=_curves(p, plan, times, tracks),
        title=p.name,
    )


def _curves(
    p: LayerProblem, plan: LayerPlan, times: SimulatedStep, tracks: dict[str, int]
) -> tuple[MemoryCurve, ...]:
    """Bytes over time: what stays, and the activations of each micro-batch in flight."""
    found: list[MemoryCurve] = []
    changes: dict[int, list[tuple[float, float]]] = {}
    base: dict[int, float] = {}
    for s, stage in enumerate(plan.stages):
        peak = stage_bytes(p, plan, s)
        if np.isnan(peak).any():
            return ()
        for r, replica in enumerate(stage.replicas):
            state = state_bytes(p, stage, len(replica.workers))
            each = (float(peak[r]) - state) / in_flight(plan, s)
            steps = [
                (x.end_s, -each) if x.label.startswith("backward") else (x.start_s, each)
                for x in times.spans
                if x.unit == (s, r) and x.label.startswith(("forward", "backward"))
            ]
            for w in replica.workers:
                base[w] = base.get(w, float(p.framework_bytes[w])) + state
                changes.setdefault(w, []).extend(steps)
    for w, steps in changes.items():
        name = p.worker_names[w]
        if name in tracks:
            ordered = [(0.0, 0.0), *sorted(steps)]
            held = base[w] + np.cumsum([change for _, change in ordered])
            at = np.array([time for time, _ in ordered])
            found.append(MemoryCurve(tracks[name], at, held, float(p.memory_bytes[w])))
    return tuple(found)


def costs_of(p: LayerProblem) -> Variants:
    """The variants of a problem that has them."""
    assert p.variants is not None
    return p.variants


def stage_load(p: LayerProblem, plan: LayerPlan, stage: Stage) -> float:
    """Seconds per sample of a stage."""
    v, d = costs_of(p), len(stage.replicas)
    t = p.degree_index(stage.tensor_degree)
    layers = np.arange(stage.first_layer, stage.last_layer + 1)
    variants = np.array(plan.variants)
    chosen = variants[layers]
    inside = (p.edge_source >= layers[0]) & (p.edge_source <= layers[-1])
    ends = (p.edge_target >= layers[0]) & (p.edge_target <= layers[-1])
    entering, leaving = np.flatnonzero(ends & ~inside), np.flatnonzero(inside & ~ends)
    into = v.sync_in_bytes[entering, t, variants[p.edge_target[entering]]]
    out_of = v.sync_out_bytes[leaving, t, variants[p.edge_source[leaving]]]
    cut = 2 * (p.edge_bytes[entering] + into).sum()
    cut += 2 * (p.edge_bytes[leaving] + out_of).sum()
    held = v.parameter_bytes[layers, t, chosen].sum()
    sync = 4 * (d - 1) * held / d / v.batch_samples
    compute = v.time_s[layers, t, chosen].sum()
    return float(compute / d + (cut / d + sync) / v.bandwidth)


def loads(p: LayerProblem, plan: LayerPlan) -> FloatArray:
    """Shape (stages,): seconds per sample."""
    return np.array([stage_load(p, plan, stage) for stage in plan.stages])


def load_bytes(p: LayerProblem, plan: LayerPlan) -> FloatArray:
    """Shape (W,): bytes held by each worker."""
    v, held, after = costs_of(p), np.zeros(p.w), 0
    for stage in reversed(plan.stages):
        d, t = len(stage.replicas), p.degree_index(stage.tensor_degree)
        after += d
        flight = math.ceil(after / d)
        layers = np.arange(stage.first_layer, stage.last_layer + 1)
        chosen = np.array(plan.variants)[layers]
        each = v.fixed_bytes[layers, t, chosen] + flight * v.in_flight_bytes[layers, t, chosen]
        held[list(stage.workers)] += each.sum()
    return held
