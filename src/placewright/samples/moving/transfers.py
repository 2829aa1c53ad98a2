"""Which samples go when: the transfers as the judge plays them, with samples' numbers."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import replace

from placewright.samples.data.dealing import Held, numbered
from placewright.samples.moving.mover import Transfer
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem
from placewright.samples.simulation.ports import play


def transfers_of(
    problem: SampleProblem, plan: SamplePlan, speed: float = 1.0, held: Held | None = None
) -> list[Transfer]:
    """The transfers of a plan, in the order of their start.

    With relays a node sends on what has reached it last, and keeps what it held at the start.
    Without them it sends what it held at the start, and all classes for a neighbour over one
    connection.

    Parameters
    ----------
    speed
        How many times faster than the problem says links are emulated; ``inf``: not at all.
    held
        What is where; as it was dealt where nothing is said.
    """
    played = play(problem, plan)
    here = [[list(samples) for samples in node] for node in held or numbered(problem)]
    brought: dict[int, int] = defaultdict(lambda: -1)
    on_the_way: list[tuple[float, int, int, int, list[int]]] = []
    transfers = []
    spans = zip(played.move.tolist(), played.count.tolist(), played.start_s.tolist(), strict=True)
    for number, (m, count, start_s) in enumerate(spans):
        while on_the_way and on_the_way[0][0] <= start_s:
            _, arrived, node, kind, samples = heapq.heappop(on_the_way)
            here[node][kind] += samples
            brought.update(dict.fromkeys(samples, arrived))
        i, j, kind = int(plan.source[m]), int(plan.target[m]), int(plan.sample_class[m])
        pile = here[i][kind]
        taken = pile[len(pile) - count :]
        del pile[len(pile) - count :]
        transfers.append(
            Transfer(
                number,
                i,
                j,
                tuple(taken),
                tuple(brought[s] for s in taken),
                float(max(problem.send_s[i, j], problem.receive_s[i, j])) / speed,
                float(problem.latency_s[i, j]) / speed,
            )
        )
        if problem.relay:
            heapq.heappush(on_the_way, (float(played.end_s[number]), number, j, kind, taken))
    return transfers if problem.relay else _joined(transfers)


def _joined(transfers: list[Transfer]) -> list[Transfer]:
    """Transfers that a node sends to one neighbour in a row, as one."""
    joined: list[Transfer] = []
    latest: dict[int, int] = {}
    for one in transfers:
        at = latest.get(one.source)
        if at is not None and joined[at].target == one.target:
            before = joined[at]
            joined[at] = replace(
                before,
                samples=before.samples + one.samples,
                brought_by=before.brought_by + one.brought_by,
            )
        else:
            latest[one.source] = len(joined)
            joined.append(one)
    return joined
