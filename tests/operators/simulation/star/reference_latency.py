"""Calls through host memory, slow and plain; written from the words, shares no code."""

from __future__ import annotations

import math
from typing import Any


def readers(p: Any, k: int) -> list[int]:
    """Consumers of tensor `k`."""
    return [int(c) for c in p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]]]


def latency(p: Any, place: list[int], call: list[int]) -> float:
    """The last finish; ``inf`` where a call would wait for itself."""
    calls: dict[tuple[int, int], list[int]] = {}
    where: list[tuple[int, int] | None] = [None] * p.n
    for i in range(p.n):
        if p.host_seconds_per_byte[place[i]] > 0:
            where[i] = (place[i], call[i])
            calls.setdefault((place[i], call[i]), []).append(i)
    inputs: list[list[int]] = [[] for _ in range(p.n)]
    for k in range(p.t):
        for j in readers(p, k):
            inputs[j].append(k)
    done: dict[int, float] = {}
    ended: dict[tuple[int, int], float] = {}
    going = True
    while going:
        going = False
        for i in range(p.n):
            made_by = [int(p.tensor_producer[k]) for k in inputs[i]]
            if i not in done and where[i] is None and all(u in done for u in made_by):
                start = max((done[u] for u in made_by), default=0.0)
                done[i] = start + float(p.compute_s[i, place[i]])
                going = True
        for (d, c), ops in calls.items():
            earlier = [ended.get((e, b)) for e, b in calls if e == d and b < c]
            need = {k for i in ops for k in inputs[i] if int(p.tensor_producer[k]) not in ops}
            makers = [int(p.tensor_producer[k]) for k in need]
            ready = None not in earlier and all(u in done for u in makers)
            if (d, c) in ended or not ready:
                continue
            gives = [
                k
                for k in range(p.t)
                if int(p.tensor_producer[k]) in ops and any(j not in ops for j in readers(p, k))
            ]
            start = max([0.0, *(e for e in earlier if e is not None), *(done[u] for u in makers)])
            moved = sum(float(p.tensor_bytes[k]) for k in [*need, *gives])
            work = sum(float(p.compute_s[i, d]) for i in ops)
            ended[d, c] = start + work + moved * float(p.host_seconds_per_byte[d])
            for i in ops:
                done[i] = ended[d, c]
            going = True
    return max(done.values()) if len(done) == p.n else math.inf
