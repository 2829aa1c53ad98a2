"""Measure plans in turns on the same workers: what the machine does meanwhile hits all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright.measurement.measurement import MachineLoad, Measurement
from placewright.operators.judge import OperatorJudgement
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem, Overlap
from placewright.planning.contract import Progress
from placewright.planning.result import Result
from placewright.report.trace import Trace

if TYPE_CHECKING:
    from placewright.runtime.session import Session
    from placewright.runtime.step_record import StepRecord

ROUNDS, FEW_ROUNDS = 5, 3
"""Blocks of steps of each plan; the second where the first round loads for `SLOW_LOAD_S`."""

SLOW_LOAD_S = 5.0

WATCHED_STEPS = 3

SHORT_S = 0.05
"""A step of which some more cost nothing."""


@dataclass(slots=True)
class MeasuringRounds:
    """Plans that are measured in turns.

    Attributes
    ----------
    results
        The plans; the first one is what progress is about.
    step_s
        By plan and round, seconds of every measured step.
    loaded
        Which plan the workers have, -1 for none.
    """

    session: Session
    results: Sequence[Result]
    seed: int = 0
    step_s: list[list[list[float]]] = field(init=False)
    loaded: int = -1

    def __post_init__(self) -> None:
        self.step_s = [[] for _ in self.results]

    def load(self, k: int) -> None:
        """Put a plan on the workers, from the initial state, unless they have it."""
        if k != self.loaded:
            r = self.results[k]
            load_plan(self.session, r.problem, r.plan, r.judgement, self.seed, step_s=r.value)
            self.loaded = k

    def measure(self, steps: int, warmup: int, progress: Progress) -> MachineLoad | None:
        """Measure `steps` steps of every plan in blocks: a b, b a, a b ...

        A block begins with steps that do not count, `warmup` of them in the first round and where
        steps are short (their first ones find no memory and cold caches), one where another plan
        was loaded before.

        Returns
        -------
        MachineLoad | None
            What other processes did meanwhile; ``None`` where the system does not say.
        """
        from placewright.runtime.machine_load import LoadMeter

        meter, began = LoadMeter(self.session), time.perf_counter()
        rounds, done, turn = min(steps, ROUNDS), 0, 0
        forth = range(len(self.results))
        while turn < rounds:
            size, loading_s = (steps - done) // (rounds - turn), 0.0
            with meter.round():
                for k in forth if turn % 2 == 0 else reversed(forth):
                    loading_s += self._block(k, size, self._cold_steps(k, warmup))
            done, turn = done + size, turn + 1
            if turn == 1 and loading_s > SLOW_LOAD_S:
                rounds = min(rounds, FEW_ROUNDS)
            progress(
                what=f"round {turn} of {rounds}: {done} of {steps} steps",
                value=float(np.median([s for times in self.step_s[0] for s in times])),
                bound=self.results[0].value,
                elapsed_s=time.perf_counter() - began,
            )
        return meter.load()

    def _cold_steps(self, k: int, warmup: int) -> int:
        """Number of warm-up steps of a block."""
        seen = [seconds for times in self.step_s[k] for seconds in times]
        return warmup if not seen or np.median(seen) < SHORT_S else min(1, warmup)

    def _block(self, k: int, steps: int, warmup: int) -> float:
        """One plan's turn; seconds until it was loaded."""
        start, known = time.perf_counter(), k == self.loaded and bool(self.step_s[k])
        self.load(k)
        loading_s = time.perf_counter() - start
        self.session.run(0 if known else warmup)
        times = [record.duration_s for _ in range(steps) for record in self.session.run(1)]
        self.step_s[k].append(times)
        return loading_s

    def watched(self, k: int) -> Trace:
        """One typical step of a plan, operator by operator."""
        self.load(k)
        self.session.run(1)
        records = self.session.run(WATCHED_STEPS, watched=True)
        typical = sorted(records, key=lambda r: r.duration_s)[len(records) // 2]
        return measured_trace(self.results[k].problem, typical)

    def measurement(self, k: int) -> Measurement:
        """Measurement of a plan over all rounds."""
        engine = f"{self.session.engine.name}: torch.distributed/{self.session.layout}"
        value, emulated = self.results[k].value, self.session.emulated
        return Measurement.of_rounds(self.step_s[k], value, engine, emulated)


def load_plan(
    session: Session,
    problem: OperatorProblem,
    plan: OperatorPlan,
    judgement: OperatorJudgement,
    seed: int = 0,
    *,
    step_s: float = math.nan,
) -> None:
    """Put a judged plan on the workers, from the initial state.

    `step_s`: expected seconds of a step, ``nan`` if unknown: workers that take many times as long
    are given up.
    """
    session.load(
        plan.placement.tolist(),
        execution_order(problem, judgement),
        seed,
        step_s=step_s,
        serial=problem.overlap is Overlap.SERIAL,
        peak_bytes=judgement.peak_bytes.tolist(),
    )


def execution_order(problem: OperatorProblem, judgement: OperatorJudgement) -> list[int]:
    """Operators by predicted start, ties in topological order: what each worker follows."""
    order: list[int] = np.lexsort((problem.topology.position, judgement.op_start_s)).tolist()
    return order


def measured_trace(problem: OperatorProblem, record: StepRecord) -> Trace:
    """A step that really happened, in the judge's format."""
    tracks: list[int] = []
    labels: list[int] = []
    spans: list[tuple[float, float]] = []
    for device, log in enumerate(record.logs):
        times = np.asarray(log.spans_s).reshape(-1, 2) - record.origin_s
        tracks += [device] * len(times)
        labels += log.operators
        spans += [(float(a), float(b)) for a, b in times]
        for tag, target, start, end in log.transfers:
            tracks.append(problem.m + int(problem.channel[device, target]))
            labels.append(problem.n + tag)
            spans.append((start - record.origin_s, end - record.origin_s))
    array = np.array(spans, dtype=np.float64).reshape(-1, 2)
    return Trace(
        tracks=(*problem.device_names, *problem.channel_names),
        devices=problem.m,
        labels=(*problem.operator_names, *problem.tensor_names),
        track=np.array(tracks, dtype=np.int64),
        label=np.array(labels, dtype=np.int64),
        start_s=array[:, 0].copy(),
        end_s=array[:, 1].copy(),
        title=f"{problem.name}, measured",
    )
