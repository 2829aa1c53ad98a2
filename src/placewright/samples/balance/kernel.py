"""Take from the node that ends last, give where the worse of the two ends first: compiled.

Node i ends at ``max(t_i + offset, w_i)``, or at ``t_i + w_i`` where that is `joined`, with t_i what
its port takes and ``w_i = work_i held_i + fixed_i``. What j sent to i goes back before i sends
samples of its own to j.
"""

from __future__ import annotations

from typing import NamedTuple

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_internal, njit_no_refcount

LESS = 1e-12
"""Smallest relative step that counts as ending earlier."""

UNLIMITED = 1e300


class BalanceInstance(NamedTuple):
    """A problem as the kernel reads it; see `placewright.samples.problem.SampleProblem`.

    Seconds per sample: ``send_s[i, j]`` at i's port and ``receive_s[i, j]`` at j's for samples from
    i to j, `work` by node. `half`: a port does not send and receive at once. `relay`: a node may
    hand on what it was given, as long as it keeps `keep`; else only of its own `stock`.
    """

    send_s: FloatArray
    receive_s: FloatArray
    work: FloatArray
    fixed: FloatArray
    keep: IntArray
    stock: IntArray
    storage: FloatArray
    joined: bool
    half: bool
    relay: bool
    offset: float


class Flows(NamedTuple):
    """What changes in place: samples from i to j; what each holds, has sent; its ports' seconds."""

    flow: IntArray
    held: IntArray
    sent: IntArray
    out_s: FloatArray
    in_s: FloatArray


@njit_inline
def end_s(given: BalanceInstance, out_s: float, in_s: float, work_s: float) -> float:
    """When a node ends."""
    port_s = out_s + in_s if given.half else max(out_s, in_s)
    return port_s + work_s if given.joined else max(port_s + given.offset, work_s)


@njit_internal
def last_node(given: BalanceInstance, now: Flows) -> tuple[int, float]:
    """The node that ends last, and when."""
    node, last = 0, -1.0
    for i in range(len(given.work)):
        work_s = given.work[i] * now.held[i] + given.fixed[i]
        end = end_s(given, now.out_s[i], now.in_s[i], work_s)
        if end > last:
            node, last = i, end
    return node, last


@njit_internal
def movable(given: BalanceInstance, now: Flows, a: int, b: int, quantum: int, level: float) -> int:
    """How many samples a may hand to b; those that go back first."""
    # Samples of b that lie at a: sending them back undoes a transfer, and is never blocked by
    # links.
    back = now.flow[b, a]
    if back == 0 and not given.send_s[a, b] + given.receive_s[a, b] < UNLIMITED:
        return 0
    left = now.held[a] - given.keep[a] if given.relay else given.stock[a] - now.sent[a]
    count: int = min(quantum, back if back > 0 else left, now.held[a])
    # A relay's own samples may have gone on: what lies there is all that it has left to keep.
    if given.relay:
        count = min(count, left)
    if given.storage[b] < UNLIMITED:
        count = min(count, int(given.storage[b]) - now.held[b])
    # Fewer, where b would end after `level`: a lower estimate, as its port's and its work's seconds
    # are added.
    if back == 0 and level < UNLIMITED:
        work_s = given.work[b] * now.held[b] + given.fixed[b]
        spare = level - end_s(given, now.out_s[b], now.in_s[b], work_s)
        each = given.receive_s[a, b] + given.work[b]
        if count * each > spare:
            count = int(spare / each) if spare > 0 else 0
    return count


@njit_internal
def ends_after(
    given: BalanceInstance, now: Flows, a: int, b: int, count: int
) -> tuple[float, float]:
    """When a and b end if a hands `count` samples to b."""
    out_a, in_a, out_b, in_b = now.out_s[a], now.in_s[a], now.out_s[b], now.in_s[b]
    # The transfer from b to a shrinks: a receives less, b sends less.
    if now.flow[b, a] > 0:
        in_a -= count * given.receive_s[b, a]
        out_b -= count * given.send_s[b, a]
    else:
        out_a += count * given.send_s[a, b]
        in_b += count * given.receive_s[a, b]
    work_a = given.work[a] * (now.held[a] - count) + given.fixed[a]
    work_b = given.work[b] * (now.held[b] + count) + given.fixed[b]
    return end_s(given, out_a, in_a, work_a), end_s(given, out_b, in_b, work_b)


@njit_internal
def hand_over(given: BalanceInstance, now: Flows, a: int, b: int, count: int) -> None:
    """Give `count` samples of a to b."""
    now.held[a] -= count
    now.held[b] += count
    if now.flow[b, a] > 0:
        now.flow[b, a] -= count
        now.sent[b] -= count
        now.in_s[a] -= count * given.receive_s[b, a]
        now.out_s[b] -= count * given.send_s[b, a]
    else:
        now.flow[a, b] += count
        now.sent[a] += count
        now.out_s[a] += count * given.send_s[a, b]
        now.in_s[b] += count * given.receive_s[a, b]


@njit_no_refcount
def balance(given: BalanceInstance, now: Flows, quantum: int, level: float, most: int) -> int:
    """Move `quantum` samples at a time until the last node cannot be helped; returns the moves.

    No node is given samples with which it would end after `level`; a last node that ends before it
    needs no help. After `most` moves it returns, and may be called again to go on.
    """
    moves = 0
    while moves < most:
        a, last = last_node(given, now)
        if last <= level < UNLIMITED:
            return moves
        # By more than rounding, or two nodes could hand a sample to and fro for ever.
        best, best_end, best_count = -1, last * (1.0 - LESS), 0
        for b in range(len(given.work)):
            count = 0 if b == a else movable(given, now, a, b, quantum, level)
            if count < 1:
                continue
            end_a, end_b = ends_after(given, now, a, b, count)
            if max(end_a, end_b) < best_end and end_b <= level:
                best, best_end, best_count = b, max(end_a, end_b), count
        if best < 0:
            return moves
        hand_over(given, now, a, best, best_count)
        moves += 1
    return moves
