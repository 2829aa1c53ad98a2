"""Compiled part of the dynamic programme over stages."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.numerics.njit import njit_cached


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
                    found = each + (cut_s[i] if i > 0 else 0.0) + rest
                    if found < total[k, i, a]:
                        total[k, i, a] = found
                        choice[k, i, a, 0], choice[k, i, a, 1] = row, j
    return total, choice
