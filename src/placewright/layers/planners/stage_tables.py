"""Large spaces of stages: prefix sums of costs over blocks of layers, plans of least sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.layers.costs.passes import replica_costs
from placewright.layers.costs.transfers import crossing_times, ring_s
from placewright.layers.plan import Replica, Stage, Strategy
from placewright.layers.planners.space import Cell, replicas, worker_speeds
from placewright.layers.problem import LayerProblem
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
    pass_s, tail_s
        Shape (rows, blocks + 1): prefix sums of a micro-batch's passes, of the exchange.
    kept, state
        Shape (rows, blocks + 1): prefix sums of activations of a micro-batch, of states.
    room
        Shape (rows,): least memory of the workers.
    cut_s
        Shape (rows, blocks + 1): both transfers of a cut before a block, to the first replica from
        as many workers before it.
    """

    p: LayerProblem
    unit: int
    micro_batches: int
    option: tuple[int, bool]
    ends: IntArray
    rows: IntArray
    pass_s: FloatArray
    tail_s: FloatArray
    kept: FloatArray
    state: FloatArray
    room: FloatArray
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
        stacked = np.array(prefix).reshape(len(rows), 4, len(ends))
        room = np.array([_room(p, order, r, unit) for r in rows])
        passes, tails, kept, state = (np.ascontiguousarray(stacked[:, k]) for k in range(4))
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        option = (zero, again)
        cut_s = np.array(cut).reshape(len(rows), len(ends))
        return Table(
            p, unit, micro_batches, option, ends, table, passes, tails, kept, state, room, cut_s
        )

    def plans(self, limits: int) -> Iterator[tuple[float, list[Cell]]]:
        """Estimates and stages for falling limits on the slowest stage."""
        if not len(self.rows):
            return
        units = -(-self.p.w // self.unit)
        blocks = len(self.ends) - 1
        bounded = bool(np.isfinite(self.room).any())
        stages = min(blocks, units, 12) if bounded else 1
        limit = math.inf
        for _ in range(limits):
            total, choice = least_sums(
                self.rows,
                self.pass_s,
                self.tail_s,
                self.kept,
                self.state,
                self.room,
                self.cut_s,
                units,
                stages,
                bounded,
                self.micro_batches,
                limit,
            )
            k = int(np.argmin(total[:, 0, 0]))
            if not total[k, 0, 0] < math.inf:
                return
            cells, slowest, spent = [], 0.0, 0.0
            i, a = 0, 0
            while i < blocks:
                row, j = choice[k, i, a].tolist()
                begin, end, degree = self.rows[row].tolist()
                cells.append(
                    Cell(
                        int(self.ends[i]),
                        int(self.ends[j]) - 1,
                        begin * self.unit,
                        min(end * self.unit, self.p.w),
                        degree,
                        (),
                        *self.option,
                    )
                )
                each = float(self.pass_s[row, j] - self.pass_s[row, i])
                tail = float(self.tail_s[row, j] - self.tail_s[row, i])
                slowest = max(slowest, self.micro_batches * each + tail)
                spent += each
                i, a, k = j, end, k - 1 if bounded else k
            # Sum of the stages, and the slowest one M - 1 times more.
            yield spent + slowest * (1 - 1 / self.micro_batches), cells
            # Below what this plan has, or the next one would be the same.
            limit = min(limit * 0.9, slowest * 0.85)


Known = dict[tuple[object, ...], FloatArray]


def _columns(p: LayerProblem, stage: Stage, known: Known) -> tuple[FloatArray, ...]:
    """By layer: passes of the slowest replica, exchange, kept activations, states."""
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
    # A guess for ranking drafts; the judge values them.
    hidden = 0.3 if p.training.overlap_sync else 1.0
    return passes, held * (hidden * each + optimizer), kept, held * _state_each(p, stage)


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


def _room(p: LayerProblem, order: Sequence[int], row: tuple[int, int, int], unit: int) -> float:
    workers = [order[w] for w in range(row[0] * unit, min(row[1] * unit, p.w))]
    free = [float(p.memory_bytes[w] - np.nan_to_num(p.framework_bytes[w])) for w in workers]
    return min(free) - float(p.working_bytes[:, 0].max() if p.working_bytes.any() else 0.0)


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
