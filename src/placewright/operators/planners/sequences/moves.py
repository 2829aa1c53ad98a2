"""Simulated annealing on sequences, compiled.

A move takes an operator, preferably a critical one, to another place in the sequence, to another
device, or both, or sends it with what a walk along tensors meets. Moves stay within the line's
window (`sequences.tails`); without one, that is the whole sequence. A move changes nothing before
its first operator, so decoding goes on from there. It stops as soon as an operator ends too late
for the move to be taken: the threshold is drawn beforehand.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.njit import inlined, inner, lean, released
from placewright.operators.planners.annealing import draw
from placewright.operators.planners.sequences.decode import decode, settle
from placewright.operators.planners.sequences.state import (
    BEST,
    CRITICAL,
    FIRST,
    HIGH,
    LOW,
    MOVED,
    RANDOM,
    TEMPERATURE,
    VALID,
    VALUE,
    SequenceInstance,
    SequenceState,
)
from placewright.operators.planners.sequences.tails import close_window, open_window

SMALLEST = 32
"""Positions in the smallest window."""


@released
def anneal_windows(
    f: SequenceInstance, line: SequenceState, windows: int, largest: int, moves: int, cooling: float
) -> None:
    """Anneal in `windows` windows of `SMALLEST` to `largest` positions, `moves` moves in each.

    A window lies about a critical operator three times of four. Where transfers wait, what a
    window believes is checked by decoding to the end, and taken back if it was far off.
    """
    n = len(line.sequence)
    for _ in range(windows):
        list_critical(f, line)
        size = SMALLEST
        while 2 * size <= largest and draw(line.counts, RANDOM, 2) > 0:
            size *= 2
        at = draw(line.counts, RANDOM, n)
        if draw(line.counts, RANDOM, 4) > 0:
            at = line.position[line.critical[draw(line.counts, RANDOM, line.counts[CRITICAL])]]
        low = max(0, min(n - size, at - draw(line.counts, RANDOM, size)))
        _anneal_window(f, line, low, min(n - 1, low + size - 1), moves, cooling)


@inlined
def _anneal_window(
    f: SequenceInstance, line: SequenceState, low: int, high: int, moves: int, cooling: float
) -> None:
    """Anneal between two positions."""
    before = line.score[VALUE]
    for at in range(low, high + 1):
        i = line.sequence[at]
        line.kept[at], line.kept_place[at] = i, line.place[i]
    _keep_critical(line, low, high)
    line.score[VALUE] = open_window(f, line, low, high)
    believed = _moves(f, line, moves, cooling)
    limit = max(before, believed) + line.score[TEMPERATURE]
    line.score[VALUE] = close_window(f, line, limit * (1 + 1e-12))
    if f.contended and line.score[VALUE] < line.score[BEST]:
        line.score[VALUE] = settle(f, line)
    if line.score[VALUE] == np.inf:
        for at in range(low, high + 1):
            i = line.kept[at]
            line.sequence[at], line.position[i], line.place[i] = i, at, line.kept_place[at]
        line.score[VALUE] = decode(f, line, min(low, line.counts[VALID]), np.inf)
    elif line.score[VALUE] < line.score[BEST]:
        _keep_best(line)


@inner
def _keep_critical(line: SequenceState, low: int, high: int) -> None:
    """Of the critical operators those in the window."""
    count = 0
    for x in range(line.counts[CRITICAL]):
        i = line.critical[x]
        if low <= line.position[i] <= high:
            line.critical[count] = i
            count += 1
    line.counts[CRITICAL] = count


@inner
def _keep_best(line: SequenceState) -> None:
    line.score[BEST] = line.score[VALUE]
    for x in range(len(line.sequence)):
        line.best_place[x] = line.place[x]
        line.best_sequence[x] = line.sequence[x]


@released
def anneal(f: SequenceInstance, line: SequenceState, moves: int, cooling: float) -> None:
    """Try `moves` moves in the whole sequence; each multiplies the temperature by `cooling`."""
    list_critical(f, line)
    _moves(f, line, moves, cooling)


@inner
def _moves(f: SequenceInstance, line: SequenceState, moves: int, cooling: float) -> float:
    """Try moves within the window; the makespan that it believes in then."""
    n = len(line.sequence)
    whole = line.counts[HIGH] - line.counts[LOW] == n - 1
    for _ in range(moves):
        line.counts[MOVED] = 0
        line.counts[FIRST] = n
        i = _pick(line)
        was = line.position[i]
        kind = draw(line.counts, RANDOM, 16)
        if 4 <= kind < 13:
            _shift(f, line, i)
        if kind < 8:
            _send(f, line, i, _target(f, line, i))
        elif kind >= 13:
            _send_walk(f, line, i, _target(f, line, i))
        if line.counts[FIRST] == n:
            continue
        luck = -np.log((draw(line.counts, RANDOM, 1 << 20) + 1) / (1 << 20))
        limit = line.score[VALUE] + line.score[TEMPERATURE] * luck
        first = min(line.counts[FIRST], line.counts[VALID])
        value = decode(f, line, first, limit * (1 + 1e-12))
        if value <= limit:
            line.score[VALUE] = value
            if whole and value < line.score[BEST]:
                if f.contended:
                    line.score[VALUE] = settle(f, line)
                if line.score[VALUE] < line.score[BEST]:
                    _keep_best(line)
        else:
            line.counts[VALID] = min(line.counts[VALID], line.counts[FIRST])
            for x in range(line.counts[MOVED] - 1, -1, -1):
                line.place[line.moved[x]] = line.moved_from[x]
            _move_to(line, i, was)
        line.score[TEMPERATURE] *= cooling
    return line.score[VALUE]  # type: ignore[no-any-return]


@inlined
def _pick(line: SequenceState) -> int:
    """A critical operator two times of three."""
    if line.counts[CRITICAL] > 0 and draw(line.counts, RANDOM, 3) > 0:
        return int(line.critical[draw(line.counts, RANDOM, line.counts[CRITICAL])])
    low = line.counts[LOW]
    return int(line.sequence[low + draw(line.counts, RANDOM, line.counts[HIGH] - low + 1)])


@inner
def _target(f: SequenceInstance, line: SequenceState, i: int) -> int:
    """A producer's device half of the time, else any."""
    first, last = f.in_start[i], f.in_start[i + 1]
    if last > first and draw(line.counts, RANDOM, 2) == 0:
        return int(line.place[f.producer[first + draw(line.counts, RANDOM, last - first)]])
    return draw(line.counts, RANDOM, f.allowed.shape[1])


@inner
def _send(f: SequenceInstance, line: SequenceState, i: int, there: int) -> None:
    """Send the group of `i` to a device, if it may go there and is in the window."""
    g = f.group[i]
    if there == line.place[i] or not f.allowed[g, there]:
        return
    for a in range(f.group_start[g], f.group_start[g + 1]):
        at = line.position[f.members[a]]
        if at < line.counts[LOW] or at > line.counts[HIGH]:
            return
    size = f.group_start[g + 1] - f.group_start[g]
    if line.counts[MOVED] + size > len(line.moved):
        return
    for a in range(f.group_start[g], f.group_start[g + 1]):
        j = f.members[a]
        x = line.counts[MOVED]
        line.moved[x], line.moved_from[x] = j, line.place[j]
        line.counts[MOVED] = x + 1
        line.place[j] = there
        _changed(f, line, j)


@inner
def _send_walk(f: SequenceInstance, line: SequenceState, i: int, there: int) -> None:
    """Send `i` and what a random walk along tensors within its device meets."""
    here, steps = line.place[i], 1
    while steps < 32 and draw(line.counts, RANDOM, 2) > 0:
        steps *= 2
    _send(f, line, i, there)
    for _ in range(steps):
        reads, read = f.in_start[i + 1] - f.in_start[i], f.out_start[i + 1] - f.out_start[i]
        if reads + read == 0:
            return
        x = draw(line.counts, RANDOM, reads + read)
        if x < reads:
            i = f.producer[f.in_start[i] + x]
        else:
            i = f.reader[f.out_start[i] + x - reads]
        if line.place[i] == here:
            _send(f, line, i, there)


@inner
def _shift(f: SequenceInstance, line: SequenceState, i: int) -> None:
    """Move `i` within the sequence, between its producers and its readers."""
    at, low, high = line.position[i], line.counts[LOW], line.counts[HIGH]
    for e in range(f.in_start[i], f.in_start[i + 1]):
        low = max(low, line.position[f.producer[e]] + 1)
    for e in range(f.out_start[i], f.out_start[i + 1]):
        high = min(high, line.position[f.reader[e]] - 1)
    reach = 4
    while reach < len(line.sequence) and draw(line.counts, RANDOM, 3) > 0:
        reach *= 2
    low, high = max(low, at - reach), min(high, at + reach)
    if high <= low:
        return
    to = low + draw(line.counts, RANDOM, high - low + 1)
    if to != at:
        line.counts[FIRST] = min(line.counts[FIRST], to)
        _changed(f, line, i)
        _move_to(line, i, to)


@inlined
def _changed(f: SequenceInstance, line: SequenceState, i: int) -> None:
    """What must be decoded again: `i` and, where transfers wait, who sends to it."""
    first = min(line.counts[FIRST], line.position[i])
    if f.contended:
        for e in range(f.in_start[i], f.in_start[i + 1]):
            first = min(first, line.position[f.producer[e]])
    line.counts[FIRST] = first


@inner
def _move_to(line: SequenceState, i: int, to: int) -> None:
    """Rotate the sequence so that `i` stands at `to`."""
    at = line.position[i]
    step = 1 if to > at else -1
    while at != to:
        j = line.sequence[at + step]
        line.sequence[at] = j
        line.position[j] = at
        at += step
    line.sequence[to] = i
    line.position[i] = to


@lean
def list_critical(f: SequenceInstance, line: SequenceState) -> None:
    """From the last end back along what each operator waited for."""
    n, m = len(line.sequence), f.allowed.shape[1]
    if line.counts[VALID] < n:
        decode(f, line, line.counts[VALID], np.inf)
    i = line.sequence[0]
    for j in line.sequence:
        if line.end_s[j] > line.end_s[i]:
            i = j
    count = 0
    while count < n:
        line.critical[count] = i
        count += 1
        at, d = line.position[i], line.place[i]
        begin = line.free_s[at, d]
        best, latest = -1, -1.0
        for e in range(f.in_start[i], f.in_start[i + 1]):
            p = f.producer[e]
            pair = line.place[p] * m + d
            there = line.end_s[p] + f.latency_s[pair] + f.in_bytes[e] * f.seconds_per_byte[pair]
            if f.contended and line.place[p] != d:
                there = line.arrival_s[f.in_tensor[e] * m + d]
            if there > latest:
                best, latest = p, there
        if latest < begin:
            best = -1
            for before in range(at - 1, -1, -1):
                if line.place[line.sequence[before]] == d:
                    best = line.sequence[before]
                    break
        if best < 0:
            break
        i = best
    line.counts[CRITICAL] = count
