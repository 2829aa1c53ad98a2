"""Simulated annealing on sequences, compiled.

A move takes an operator, preferably a critical one, to another place in the sequence, to another
device, or both, or sends it with what a walk along tensors meets. Moves stay within the state's
window (see *tails*); without one, that is the whole sequence. A move changes nothing before
its first operator, so decoding goes on from there. It stops as soon as an operator ends too late
for the move to be taken: the threshold is drawn beforehand.

*Tails* are the longest paths from a window of a sequence to the end.
The sequence is traversed from its end back to the window, in the order in which devices and
channels were held, so that what follows a window need not be decoded again after a move inside it.
Where transfers do not wait this is exact; where they do, it is until channels serve in another
order.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.njit import njit_inline, njit_internal, njit_no_refcount, njit_nogil
from placewright.operators.planners.annealing import draw
from placewright.operators.planners.sequences.decode import (
    BEST,
    CRITICAL,
    EARLIEST,
    FIRST,
    HIGH,
    LOW,
    MOVED,
    PENDING,
    RANDOM,
    SENDER,
    TEMPERATURE,
    TOUCHED,
    VALID,
    VALUE,
    SequenceInstance,
    SequenceState,
    decode,
    overloaded,
    settle,
)

SMALLEST = 32
"""Positions in the smallest window."""


@njit_nogil
def anneal(
    f: SequenceInstance,
    s: SequenceState,
    windows: int,
    largest: int,
    moves: int,
    cooling: float,
) -> None:
    """Try `moves` moves in the whole sequence, or in each of some windows.

    Each multiplies the temperature by `cooling`. Without windows (0) moves are in the whole
    sequence. Else there are `windows` of `SMALLEST` to `largest` positions; one lies about a
    critical operator three times of four. Where transfers wait, a window's makespan is an
    estimate: it is checked by decoding to the end, and undone if it was far off.
    """
    n = len(s.sequence)
    # One entry for both: every entry holds a compiled copy of all that it calls.
    if windows == 0:
        list_critical(f, s)
        _moves(f, s, moves, cooling)
    for _ in range(windows):
        list_critical(f, s)
        size = SMALLEST
        while 2 * size <= largest and draw(s.counts, RANDOM, 2) > 0:
            size *= 2
        at = draw(s.counts, RANDOM, n)
        if draw(s.counts, RANDOM, 4) > 0:
            at = s.position[s.critical[draw(s.counts, RANDOM, s.counts[CRITICAL])]]
        low = max(0, min(n - size, at - draw(s.counts, RANDOM, size)))
        _anneal_window(f, s, low, min(n - 1, low + size - 1), moves, cooling)


@njit_inline
def _anneal_window(
    f: SequenceInstance, s: SequenceState, low: int, high: int, moves: int, cooling: float
) -> None:
    """Anneal between two positions."""
    before = s.score[VALUE]
    for at in range(low, high + 1):
        i = s.sequence[at]
        s.kept[at], s.kept_place[at] = i, s.place[i]
    _keep_critical(s, low, high)
    s.counts[EARLIEST] = low
    s.score[VALUE] = open_window(f, s, low, high)
    estimated = _moves(f, s, moves, cooling)
    # With transfers that wait the window's makespan is an estimate: up to one temperature more
    # is as good as accepted, beyond that the window is put back.
    limit = max(before, estimated) + s.score[TEMPERATURE]
    s.counts[VALID] = min(s.counts[VALID], s.counts[EARLIEST])
    s.score[VALUE] = close_window(f, s, limit * (1 + 1e-12))
    if f.contended and s.score[VALUE] < s.score[BEST]:
        s.score[VALUE] = settle(f, s)
    # `close_window` gave up above the limit.
    if s.score[VALUE] == np.inf:
        for at in range(low, high + 1):
            i = s.kept[at]
            s.sequence[at], s.position[i], s.place[i] = i, at, s.kept_place[at]
        s.score[VALUE] = decode(f, s, min(s.counts[EARLIEST], s.counts[VALID]), np.inf)
    elif s.score[VALUE] < s.score[BEST]:
        _keep_best(s)


@njit_internal
def _keep_critical(s: SequenceState, low: int, high: int) -> None:
    """Of the critical operators those in the window."""
    count = 0
    for x in range(s.counts[CRITICAL]):
        i = s.critical[x]
        if low <= s.position[i] <= high:
            s.critical[count] = i
            count += 1
    s.counts[CRITICAL] = count


@njit_internal
def _keep_best(s: SequenceState) -> None:
    s.score[BEST] = s.score[VALUE]
    for x in range(len(s.sequence)):
        s.best_place[x] = s.place[x]
        s.best_sequence[x] = s.sequence[x]


@njit_internal
def _moves(f: SequenceInstance, s: SequenceState, moves: int, cooling: float) -> float:
    """Try moves within the window; its makespan then, which may be an estimate."""
    n = len(s.sequence)
    whole = s.counts[HIGH] - s.counts[LOW] == n - 1
    for _ in range(moves):
        s.counts[MOVED] = 0
        s.counts[FIRST] = s.counts[SENDER] = n
        i = _pick(s)
        was = s.position[i]
        # Of 16: 4 to another device, 4 to another place and device, 5 to another place, 3 walks.
        kind = draw(s.counts, RANDOM, 16)
        if 4 <= kind < 13:
            _shift(f, s, i)
        if kind < 8:
            _send(f, s, i, _target(f, s, i))
        elif kind >= 13:
            _send_walk(f, s, i, _target(f, s, i))
        if s.counts[FIRST] == n:
            continue
        # Metropolis: u < exp(-worse / T) is worse < -T log u. Drawn first, it limits the decoding.
        threshold = -np.log((draw(s.counts, RANDOM, 1 << 20) + 1) / (1 << 20))
        limit = s.score[VALUE] + s.score[TEMPERATURE] * threshold
        s.score[TEMPERATURE] *= cooling
        first = min(s.counts[FIRST], s.counts[VALID])
        if overloaded(f, s, first, limit):
            _take_back(s, i, was)
            continue
        # A hair more, as decoding adds `tail_s` in another order than the makespan is summed.
        value = decode(f, s, first, limit * (1 + 1e-12))
        if value <= limit:
            s.score[VALUE] = value
            s.counts[EARLIEST] = min(s.counts[EARLIEST], first, s.counts[SENDER])
            if whole and value < s.score[BEST]:
                if f.contended:
                    s.score[VALUE] = settle(f, s)
                if s.score[VALUE] < s.score[BEST]:
                    _keep_best(s)
        else:
            # Taken back, but not decoded again: the next move's decoding begins here at the latest.
            s.counts[VALID] = min(s.counts[VALID], s.counts[FIRST])
            _take_back(s, i, was)
    return s.score[VALUE]  # type: ignore[no-any-return]


@njit_inline
def _take_back(s: SequenceState, i: int, was: int) -> None:
    """Put operators back on their devices and `i` to its old position."""
    for x in range(s.counts[MOVED] - 1, -1, -1):
        s.place[s.moved[x]] = s.moved_from[x]
    _move_to(s, i, was)


@njit_inline
def _pick(s: SequenceState) -> int:
    """A critical operator two times of three."""
    if s.counts[CRITICAL] > 0 and draw(s.counts, RANDOM, 3) > 0:
        return int(s.critical[draw(s.counts, RANDOM, s.counts[CRITICAL])])
    low = s.counts[LOW]
    return int(s.sequence[low + draw(s.counts, RANDOM, s.counts[HIGH] - low + 1)])


@njit_internal
def _target(f: SequenceInstance, s: SequenceState, i: int) -> int:
    """A producer's device half of the time, else any."""
    first, last = f.in_start[i], f.in_start[i + 1]
    if last > first and draw(s.counts, RANDOM, 2) == 0:
        return int(s.place[f.producer[first + draw(s.counts, RANDOM, last - first)]])
    return draw(s.counts, RANDOM, f.allowed.shape[1])


@njit_internal
def _send(f: SequenceInstance, s: SequenceState, i: int, there: int) -> None:
    """Send the group of `i` to a device, if it may go there and is in the window."""
    g = f.group[i]
    if there == s.place[i] or not f.allowed[g, there]:
        return
    for a in range(f.group_start[g], f.group_start[g + 1]):
        at = s.position[f.members[a]]
        if at < s.counts[LOW] or at > s.counts[HIGH]:
            return
    size = f.group_start[g + 1] - f.group_start[g]
    if s.counts[MOVED] + size > len(s.moved):
        return
    for a in range(f.group_start[g], f.group_start[g + 1]):
        j = f.members[a]
        x = s.counts[MOVED]
        s.moved[x], s.moved_from[x] = j, s.place[j]
        s.counts[MOVED] = x + 1
        s.place[j] = there
        _changed(f, s, j)


@njit_internal
def _send_walk(f: SequenceInstance, s: SequenceState, i: int, there: int) -> None:
    """Send `i` and what a random walk along tensors within its device meets."""
    here, steps = s.place[i], 1
    while steps < 32 and draw(s.counts, RANDOM, 2) > 0:
        steps *= 2
    _send(f, s, i, there)
    for _ in range(steps):
        reads, read = f.in_start[i + 1] - f.in_start[i], f.out_start[i + 1] - f.out_start[i]
        if reads + read == 0:
            return
        x = draw(s.counts, RANDOM, reads + read)
        if x < reads:
            i = f.producer[f.in_start[i] + x]
        else:
            i = f.reader[f.out_start[i] + x - reads]
        if s.place[i] == here:
            _send(f, s, i, there)


@njit_internal
def _shift(f: SequenceInstance, s: SequenceState, i: int) -> None:
    """Move `i` within the sequence, between its producers and its readers."""
    at, low, high = s.position[i], s.counts[LOW], s.counts[HIGH]
    for e in range(f.in_start[i], f.in_start[i + 1]):
        low = max(low, s.position[f.producer[e]] + 1)
    for e in range(f.out_start[i], f.out_start[i + 1]):
        high = min(high, s.position[f.reader[e]] - 1)
    # Lengths by doubling: mostly short, sometimes the whole sequence.
    reach = 4
    while reach < len(s.sequence) and draw(s.counts, RANDOM, 3) > 0:
        reach *= 2
    low, high = max(low, at - reach), min(high, at + reach)
    if high <= low:
        return
    to = low + draw(s.counts, RANDOM, high - low + 1)
    if to != at:
        s.counts[FIRST] = min(s.counts[FIRST], to)
        _changed(f, s, i)
        _move_to(s, i, to)


@njit_inline
def _changed(f: SequenceInstance, s: SequenceState, i: int) -> None:
    """Mark what must be decoded again: `i` and, where transfers wait, its producers."""
    first = min(s.counts[FIRST], s.position[i])
    if f.contended:
        for e in range(f.in_start[i], f.in_start[i + 1]):
            at = s.position[f.producer[e]]
            if f.late and at < s.counts[LOW]:
                s.counts[SENDER] = min(s.counts[SENDER], at)
            else:
                first = min(first, at)
    s.counts[FIRST] = first


@njit_internal
def _move_to(s: SequenceState, i: int, to: int) -> None:
    """Rotate the sequence so that `i` stands at `to`."""
    at = s.position[i]
    step = 1 if to > at else -1
    while at != to:
        j = s.sequence[at + step]
        s.sequence[at] = j
        s.position[j] = at
        at += step
    s.sequence[to] = i
    s.position[i] = to


@njit_no_refcount
def list_critical(f: SequenceInstance, s: SequenceState) -> None:
    """List the critical path: from the last end back along what each operator waited for."""
    n, m = len(s.sequence), f.allowed.shape[1]
    if s.counts[VALID] < n:
        decode(f, s, s.counts[VALID], np.inf)
    i = s.sequence[0]
    for j in s.sequence:
        if s.end_s[j] > s.end_s[i]:
            i = j
    count = 0
    while count < n:
        s.critical[count] = i
        count += 1
        at, d = s.position[i], s.place[i]
        begin = s.free_s[at, d]
        best, latest = -1, -1.0
        for e in range(f.in_start[i], f.in_start[i + 1]):
            p = f.producer[e]
            pair = s.place[p] * m + d
            there = s.end_s[p] + f.latency_s[pair] + f.in_bytes[e] * f.seconds_per_byte[pair]
            if f.contended and s.place[p] != d:
                there = s.arrival_s[f.in_tensor[e] * m + d]
            if there > latest:
                best, latest = p, there
        # It waited for its device rather than for its inputs: go on with what ran there before.
        if latest < begin:
            best = -1
            for before in range(at - 1, -1, -1):
                if s.place[s.sequence[before]] == d:
                    best = s.sequence[before]
                    break
        if best < 0:
            break
        i = best
    s.counts[CRITICAL] = count


@njit_no_refcount
def open_window(f: SequenceInstance, s: SequenceState, low: int, high: int) -> float:
    """Confine what follows to positions `low` to `high` of a state that is decoded to its end.

    Returns the makespan as the window sees it.
    """
    n, m = len(s.sequence), f.allowed.shape[1]
    _clear_paths(s)
    s.counts[LOW], s.counts[HIGH] = low, high
    # Backwards: when an operator is met, the paths behind its readers, its device and its
    # channels are known. `after_*` then hold the path of the earliest one after the window.
    for at in range(n - 1, high, -1):
        i = s.sequence[at]
        d = s.place[i]
        path_s = f.compute_s[i * m + d] + max(s.after_device_s[d], _path_from_end(f, s, at, d, m))
        s.after_device_s[d] = path_s
        _reach_inputs(f, s, i, d, m, path_s)
    _list_pending(f, s, high, m)
    # No operator is decoded: this undoes the log down to the window's end and adds up the paths.
    return decode(f, s, high + 1, float("inf"))


@njit_no_refcount
def close_window(f: SequenceInstance, s: SequenceState, limit_s: float) -> float:
    """Decode from where the window left off to the end; the makespan, ``inf`` over `limit_s`."""
    s.counts[LOW], s.counts[HIGH] = 0, len(s.sequence) - 1
    if overloaded(f, s, s.counts[VALID], limit_s):
        return float("inf")
    return decode(f, s, s.counts[VALID], limit_s)


@njit_internal
def _clear_paths(s: SequenceState) -> None:
    """Clear the paths of the last window."""
    for x in range(s.counts[TOUCHED]):
        s.after_s[s.touched[x]] = -1.0
    s.counts[TOUCHED] = 0
    for d in range(len(s.after_device_s)):
        s.after_device_s[d] = 0.0
    for channel in range(len(s.after_channel_s)):
        s.after_channel_s[channel] = 0.0


@njit_internal
def _reach_inputs(
    f: SequenceInstance, s: SequenceState, i: int, d: int, m: int, path_s: float
) -> None:
    """Operator `i` starts `path_s` before the end; its inputs are needed on `d` by then."""
    for e in range(f.in_start[i], f.in_start[i + 1]):
        kd = f.in_tensor[e] * m + d
        if s.after_s[kd] < 0.0:
            s.touched[s.counts[TOUCHED]] = kd
            s.counts[TOUCHED] += 1
        s.after_s[kd] = max(s.after_s[kd], path_s)


@njit_internal
def _path_from_end(f: SequenceInstance, s: SequenceState, at: int, d: int, m: int) -> float:
    """Longest path from the end of the operator at a position over its tensors to the end."""
    longest, i = 0.0, s.sequence[at]
    for u in range(f.out_start[i], f.out_start[i + 1]):
        k, target = f.out_tensor[u], s.place[f.reader[u]]
        if target == d:
            longest = max(longest, s.after_s[k * m + d])
        elif not f.contended:
            pair = d * m + target
            took = f.latency_s[pair] + f.size_bytes[k] * f.seconds_per_byte[pair]
            longest = max(longest, took + s.after_s[k * m + target])
    if f.contended:
        # The transfers that it sent, last first: each delays those behind it on its channel.
        for x in range(s.log_start[at + 1] - 1, s.log_start[at] - 1, -1):
            kd, channel = s.log_arrival[x], s.log_channel[x]
            pair = d * m + kd % m
            took = f.latency_s[pair] + f.size_bytes[kd // m] * f.seconds_per_byte[pair]
            path_s = took + max(s.after_s[kd], s.after_channel_s[channel])
            s.after_channel_s[channel] = path_s
            longest = max(longest, path_s)
    return longest


@njit_internal
def _list_pending(f: SequenceInstance, s: SequenceState, high: int, m: int) -> None:
    """Tensors made in the window or before it that are read after it."""
    count = 0
    for x in range(s.counts[TOUCHED]):
        kd = s.touched[x]
        if s.position[f.tensor_producer[kd // m]] <= high:
            s.pending[count] = kd
            count += 1
    s.counts[PENDING] = count
