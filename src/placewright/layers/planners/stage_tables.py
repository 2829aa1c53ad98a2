"""Large spaces of stages: prefix sums of costs over blocks of layers, plans of least sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.layers.plan import Replica, Stage, Strategy
from placewright.layers.planners.space import Cell, replicas, starts, worker_speeds
from placewright.layers.problem import LayerProblem
from placewright.layers.stage_costs import replica_costs
from placewright.layers.transfers import crossing_times, ring_s
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Costs of stages as prefix sums over blocks of layers; a row is a stage's workers and degree.

    Attributes
    ----------
    ends
        Shape (blocks + 1,): where blocks of layers begin.
    rows
        Begin and end of the workers (in units), and the degree.
    pass_s, tail_s, sync_s
        Shape (rows, blocks + 1): prefix sums of a micro-batch's passes, of what follows the last
        one (a guess of the exchange that is not hidden, and the optimizer), of the exchange.
    kept, state
        Shape (rows, blocks + 1): prefix sums of activations of a micro-batch, of states.
    shape, fixed
        Shape (rows,): the least memory of the workers as a part of the largest memory of any; bytes
        that are gone before any layer.
    cut_s
        Shape (rows, blocks + 1): both transfers of a cut before a block, to the first replica from
        as many workers before it.
    """

    p: LayerProblem
    order: tuple[int, ...]
    unit: int
    micro_batches: int
    option: tuple[int, bool]
    ends: IntArray
    rows: IntArray
    pass_s: FloatArray
    tail_s: FloatArray
    sync_s: FloatArray
    kept: FloatArray
    state: FloatArray
    shape: FloatArray
    fixed: FloatArray
    cut_s: FloatArray

    @staticmethod
    def of(
        p: LayerProblem,
        order: Sequence[int],
        micro_batches: int,
        zero: int,
        again: bool,
        groups: int,
        units: int,
    ) -> Table:
        """The costs of one order, number of micro-batches and memory option."""
        ends = blocks(p, groups)
        unit = -(-p.w // units)
        micro, speed = p.global_batch // micro_batches, worker_speeds(p)
        rows, prefix, cut = [], [], []
        sent = np.concatenate([[0.0], p.output_bytes[:, 0]])[ends]
        sent[-1] = 0.0
        known: Known = {}
        refused = {d: _refused(p, d) for d in p.degrees}
        for begin in range(0, p.w, unit):
            for end in range(begin + unit, p.w + unit, unit):
                last = min(end, p.w)
                for degree in p.degrees:
                    found = replicas(p, order[begin:last], degree, micro, speed)
                    if found is None:
                        continue
                    stage = Stage(0, p.n - 1, found, degree, (), zero, again)
                    # A row stands for any layers: with one that sees the whole batch somewhere,
                    # stages of large problems have a single replica.
                    if refused[degree] or p.whole_batch(stage, micro_batches) is not None:
                        continue
                    try:
                        columns = _columns(p, stage, known)
                    except InputError:
                        continue
                    rows.append((begin // unit, -(-last // unit), degree))
                    prefix.append([np.concatenate([[0.0], np.cumsum(c)])[ends] for c in columns])
                    cut.append(_cut_s(p, order, begin, found[0], sent))
        stacked = np.array(prefix).reshape(len(rows), 5, len(ends))
        part, gone = memory_shape(p), _gone(p)
        own = [list(order[a * unit : min(b * unit, p.w)]) for a, b, _ in rows]
        shape = np.array([part[w].min() for w in own])
        fixed = np.array([gone[w].max() for w in own])
        passes, tails, sync, kept, state = (np.ascontiguousarray(stacked[:, k]) for k in range(5))
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        option = (zero, again)
        cut_s = np.array(cut).reshape(len(rows), len(ends))
        return Table(
            p,
            tuple(order),
            unit,
            micro_batches,
            option,
            ends,
            table,
            passes,
            tails,
            sync,
            kept,
            state,
            shape,
            fixed,
            cut_s,
        )

    def plans(self, room_bytes: float, limits: int) -> list[Draft]:
        """Drafts for falling limits on the slowest stage, if the roomiest worker has `room_bytes`.

        The least sum of stages within a limit T and T itself bound the step from both sides: the
        best step is among the least sums of all limits. They fall in steps of `STEP`, until the sum
        alone is above the best estimate.
        """
        found: list[Draft] = []
        limit = math.inf
        while len(self.rows) and len(found) < limits:
            draft = self._least(room_bytes, limit)
            if draft is None:
                break
            found.append(draft)
            if draft.spent_s >= min(d.estimate_s for d in found):
                break
            limit = (STEP if limits > 10 else COARSE_STEP) * min(limit, draft.slowest_s)
        return found

    def _least(self, room_bytes: float, limit: float) -> Draft | None:
        """The draft of least sum within a limit, ``None`` if there is none."""
        units, blocks = -(-self.p.w // self.unit), len(self.ends) - 1
        bounded = room_bytes < math.inf
        total, choice = least_sums(
            self.rows,
            self.pass_s,
            self.tail_s,
            self.kept,
            self.state,
            room_bytes * self.shape - self.fixed if bounded else np.full(len(self.rows), math.inf),
            self.cut_s,
            units,
            min(blocks, units, 12) if bounded else 1,
            bounded,
            self.micro_batches,
            limit,
        )
        first = total[:, 0, : starts(self.p).stop]
        k, a = (int(x) for x in np.unravel_index(int(np.argmin(first)), first.shape))
        if not first[k, a] < math.inf:
            return None
        spent, slowest, longest, chosen = float(first[k, a]), 0.0, 0.0, []
        i = 0
        while i < blocks:
            row, j = choice[k, i, a].tolist()
            chosen.append((row, i, j))
            each, tail, sync = (
                float(x[row, j] - x[row, i]) for x in (self.pass_s, self.tail_s, self.sync_s)
            )
            slowest = max(slowest, self.micro_batches * each + tail)
            # The last backward pass, two thirds of both, hides what it can.
            shown = max(sync - each * 2 / 3, 0.0) if self.p.training.overlap_sync else sync
            tail += shown - _shown(self.p) * sync
            longest = max(longest, (self.micro_batches - 1) * each + tail)
            i, a, k = j, int(self.rows[row, 1]), k - 1 if bounded else k
        cells = tuple(self._cell(row, i, j) for row, i, j in chosen)
        return Draft(spent + longest, spent, slowest, self._needs(chosen), cells)

    def _cell(self, row: int, i: int, j: int) -> Cell:
        """Blocks i to j - 1 on the workers of a row."""
        begin, end, degree = self.rows[row].tolist()
        last = min(end * self.unit, self.p.w)
        layers = int(self.ends[i]), int(self.ends[j]) - 1
        return Cell(*layers, begin * self.unit, last, degree, (), *self.option)

    def _needs(self, chosen: Sequence[tuple[int, int, int]]) -> float:
        """The least `room_bytes` in which the stages fit."""
        needs = 0.0
        for s, (row, i, j) in enumerate(chosen):
            flight = min(len(chosen) - s, self.micro_batches)
            state, kept = (float(x[row, j] - x[row, i]) for x in (self.state, self.kept))
            needs = max(needs, (state + flight * kept + self.fixed[row]) / self.shape[row])
        return needs


STEP, COARSE_STEP = 0.96, 0.88
"""From one limit on the slowest stage to the next; where there are ten at most."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Stages and their estimates: of the step, the sum and the slowest of them; room they need."""

    estimate_s: float
    spent_s: float
    slowest_s: float
    needs_bytes: float
    cells: tuple[Cell, ...]


def memory_shape(p: LayerProblem) -> FloatArray:
    """Shape (W,): memories as parts of the largest finite one; 1 where none is finite."""
    known = p.memory_bytes[np.isfinite(p.memory_bytes)]
    if not len(known):
        return np.ones(p.w)
    return np.asarray(p.memory_bytes / max(float(known.max()), 1.0), dtype=np.float64)


def _gone(p: LayerProblem) -> FloatArray:
    """Shape (W,): what a process holds before any tensor, and what a backward pass works with."""
    work = float(p.working_bytes[:, 0].max() if p.working_bytes.any() else 0.0)
    return np.asarray(np.nan_to_num(p.framework_bytes) + work, dtype=np.float64)


Known = dict[tuple[object, ...], FloatArray]


def _columns(p: LayerProblem, stage: Stage, known: Known) -> tuple[FloatArray, ...]:
    """By layer: passes of the slowest replica, tail, exchange, kept activations, states."""
    passes = np.zeros(p.n)
    for replica in dict.fromkeys(_likeness(p, stage, r) for r in stage.replicas):
        # Of many stages with such a replica: `known` is shared by all rows of a table.
        key = (*replica, stage.tensor_degree)
        if key not in known:
            first = next(r for r in stage.replicas if _likeness(p, stage, r) == replica)
            costs = replica_costs(p, stage, first)
            known[key] = costs.forward_s + costs.backward_s
        passes = np.maximum(passes, known[key])
    t = p.degree_index(stage.tensor_degree)
    held = np.where(np.isfinite(p.parameters[:, t]), p.parameters[:, t], 0.0)
    each = ring_s(p, stage.leaders, 1e6, 2, stage.tensor_degree) / 1e6 * p.training.sync_bytes
    optimizer = float(p.optimizer_s[p.worker_kind[list(stage.workers)]].max())
    share = max(stage.shares)
    kept = np.nan_to_num(p.activation_bytes[:, t]) * share
    if stage.recompute:
        kept = np.minimum(kept, np.concatenate([[0.0], p.output_bytes[:-1, t]]) * share)
    tail = held * (_shown(p) * each + optimizer)
    return passes, tail, held * each, kept, held * _state_each(p, stage)


def _shown(p: LayerProblem) -> float:
    """Part of the exchange that backward passes do not hide: a guess, for the search of drafts."""
    return 0.3 if p.training.overlap_sync else 1.0


def _likeness(p: LayerProblem, stage: Stage, replica: Replica) -> tuple[object, ...]:
    """What a replica's passes depend on."""
    kinds = tuple(sorted({int(p.worker_kind[w]) for w in replica.workers}))
    node = int(p.worker_node[replica.workers[0]])
    inside = int(p.link_index[node, node]) if stage.tensor_degree > 1 else -1
    weights = tuple(stage.replicas) if stage.zero_stage == 3 else ()
    return kinds, replica.share, inside, weights


def _state_each(p: LayerProblem, stage: Stage) -> float:
    """Bytes of states per parameter element that a worker holds."""
    t, shard = p.training, 1.0 / len(stage.replicas)
    zero = stage.zero_stage
    return (
        t.weight_bytes * (shard if zero >= 3 else 1.0)
        + t.gradient_bytes * (shard if zero >= 2 else 1.0)
        + t.optimizer_bytes * (shard if zero >= 1 else 1.0)
        + t.buffer_bytes
    )


def _refused(p: LayerProblem, degree: int) -> bool:
    """Whether some layer cannot be split over that many workers."""
    strategy = Strategy.TENSOR if degree > 1 else Strategy.DATA
    return any(p.refusal(i, strategy, degree) for i in range(p.n))


def _cut_s(
    p: LayerProblem, order: Sequence[int], begin: int, first: Replica, sent: FloatArray
) -> FloatArray:
    """Both transfers of cuts with so many bytes per sample; ``inf`` where there is no link."""
    before = order[max(0, begin - len(first.workers)) : begin]
    if not before:
        return np.zeros(len(sent))
    return np.nan_to_num(crossing_times(p, before, first.workers, sent * first.share), nan=math.inf)


def blocks(p: LayerProblem, most: int) -> IntArray:
    """Ends of at most `most` blocks of consecutive layers of about equal time."""
    if p.n <= most:
        return np.arange(p.n + 1)
    both = np.nan_to_num(p.forward_s[0, 0, -1] + p.backward_s[0, 0, -1])
    total = np.cumsum(both + both.sum() / (10 * p.n) + 1e-300)
    marks = np.searchsorted(total, total[-1] * np.arange(1, most) / most)
    return np.unique(np.concatenate([[0], marks + 1, [p.n]])).astype(np.int64)


@njit_cached
def least_sums(
    rows: Any,
    pass_s: Any,
    tail_s: Any,
    kept: Any,
    state: Any,
    room: Any,
    cut_s: Any,
    units: int,
    stages: int,
    bounded: bool,
    micro_batches: int,
    limit: float,
) -> Any:
    """Least sum of stage times from block i and worker unit a on, by stages to go.

    With `bounded` memory ``total[k]`` has exactly k + 1 stages, of which the first has
    ``min(k + 1, micro_batches)`` micro-batches in flight; otherwise there is one table for any
    number of stages. ``choice[k, i, a]`` is the first stage's row and end.

    Arrays of shape (rows, blocks + 1) are prefix sums; see `placewright.layers.planners.dp.Table`.
    ``rows[row]`` is (first unit, end, degree).
    """
    blocks = pass_s.shape[1] - 1
    total = np.full((stages, blocks + 1, units + 1), np.inf)
    choice = np.full((stages, blocks + 1, units + 1, 2), -1, dtype=np.int64)
    for k in range(stages):
        flight = min(k + 1, micro_batches)
        for i in range(blocks - 1, -1, -1):
            for row in range(len(rows)):
                a, b = rows[row, 0], rows[row, 1]
                for j in range(i + 1, blocks + 1):
                    each = pass_s[row, j] - pass_s[row, i]
                    # Prefix sums grow: a longer stage is over the limit, or out of memory, too.
                    if micro_batches * each + tail_s[row, j] - tail_s[row, i] > limit:
                        break
                    if bounded:
                        held = (
                            state[row, j] - state[row, i] + flight * (kept[row, j] - kept[row, i])
                        )
                        if held > room[row]:
                            break
                        if j == blocks:
                            # The last block ends the last stage, and only that.
                            rest = 0.0 if k == 0 else np.inf
                        else:
                            rest = total[k - 1, j, b] if k > 0 else np.inf
                    else:
                        # j is above i: that entry is final.
                        rest = 0.0 if j == blocks else total[0, j, b]
                    found = each + cut_s[row, i] + rest
                    if found < total[k, i, a]:
                        total[k, i, a] = found
                        choice[k, i, a, 0], choice[k, i, a, 1] = row, j
    return total, choice
