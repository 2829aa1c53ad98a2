"""What each span of a played plan waits for: operators and transfers, by number in the trace."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.judgement import HOST, OperatorJudgement
from placewright.operators.problem import Communication
from placewright.operators.simulation.star.latency import accelerators, is_star_latency


def causes(played: OperatorJudgement) -> list[set[int]]:
    """For every span of the trace, operators first, the spans whose tensors it waits for."""
    if played.problem.communication is Communication.STAR:
        return _through_host(played)
    p, moves = played.problem, played.transfers
    arrival = {
        (int(k), int(d)): p.n + i
        for i, (k, d) in enumerate(zip(moves.tensor, moves.target, strict=True))
    }
    found: list[set[int]] = []
    for op in range(p.n):
        device = int(played.placement[op])
        read = _read(played, op)
        found.append({arrival.get((k, device), int(p.tensor_producer[k])) for k in read})
    return found + [{int(p.tensor_producer[k])} for k in moves.tensor.tolist()]


def turns(played: OperatorJudgement, track: IntArray) -> IntArray:
    """What a span holds while others wait for it: its track, or the device that is called.

    A CPU beside called accelerators does any number of things at once: none waits for another.
    """
    p = played.problem
    if p.communication is not Communication.STAR:
        return track
    device = track % p.m
    free = is_star_latency(p) & ~accelerators(p)[device]
    return np.where(free, -1 - np.arange(len(track)), device)


def _read(played: OperatorJudgement, op: int) -> list[int]:
    topology = played.problem.topology
    read: list[int] = topology.in_tensors[
        topology.in_offsets[op] : topology.in_offsets[op + 1]
    ].tolist()
    return read


def _through_host(played: OperatorJudgement) -> list[set[int]]:
    """A call waits for all that it takes in, and what it makes is there when it has ended."""
    p, moves, place = played.problem, played.transfers, played.placement
    taken = moves.source == HOST
    brought = [set((p.n + np.flatnonzero(moves.source == d)).tolist()) for d in range(p.m)]
    pays = p.host_seconds_per_byte > 0
    maker = p.tensor_producer
    made: list[set[int]] = [
        brought[place[i]] if pays[place[i]] else {int(i)} for i in maker.tolist()
    ]
    needs: list[set[int]] = [set() for _ in range(p.m)]
    for k, d in zip(moves.tensor[taken].tolist(), moves.target[taken].tolist(), strict=True):
        needs[d] |= made[k]
    found: list[set[int]] = []
    for op in range(p.n):
        waits = set() if pays[place[op]] else {x for k in _read(played, op) for x in made[k]}
        found.append(waits)
    return found + [needs[d] if d != HOST else set() for d in moves.target.tolist()]
