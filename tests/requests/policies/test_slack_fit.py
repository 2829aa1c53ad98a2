"""SlackFit-like follows its rule, request by request."""

from __future__ import annotations

import numpy as np

from placewright.requests.conformance import random_problem
from placewright.requests.policies.published import SlackFit, SlackFitting
from placewright.requests.policy import Decision, Dispatch
from placewright.requests.queue import Queue, Servers
from placewright.requests.simulation import simulate
from tests.requests.test_simulation import with_holes


class Plain(SlackFitting):
    """The rule in loops: each idle server takes the first request that fits it."""

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Earliest deadlines to idle servers."""
        s, left, dispatches = self.service, queue.by_deadline.tolist(), []
        for server in servers.idle().tolist():
            for head in left:
                slack_s = queue.deadline_s[head] - now_s
                best = (-1.0, -1, -1)
                for v in range(s.variants):
                    if not self.good(v, head, queue):
                        continue
                    waiting = sum(queue.family[k] == queue.family[head] for k in left)
                    mine = [k for k in left if self.good(v, k, queue)]
                    for size in range(1, min(waiting, s.max_batch) + 1):
                        took_s = float(self.planned_s[server, v, size])
                        own_s = float(self.planned_s[server, v, min(size, len(mine))])
                        if max(took_s, own_s) <= slack_s and took_s > best[0]:
                            best = (took_s, v, size)
                if best[1] >= 0:
                    rest = [k for k in left if k != head and self.good(best[1], k, queue)]
                    chosen = [head, *rest][: best[2]]
                    dispatches.append(Dispatch(server, best[1], np.array(chosen)))
                    left = [k for k in left if k not in chosen]
                    break
        late = [k for k in left if not self.hope(k, now_s, queue, servers)]
        return Decision(tuple(dispatches), np.array(late, dtype=np.int64))

    def good(self, variant: int, k: int, queue: Queue) -> bool:
        """Whether the variant may answer it."""
        s = self.service
        enough = s.accuracy[variant] >= queue.min_accuracy[k]
        return bool(s.family[variant] == queue.family[k] and enough)

    def hope(self, k: int, now_s: float, queue: Queue, servers: Servers) -> bool:
        """Whether some server that is up would answer it in time."""
        return any(
            now_s + self.planned_s[i, v, 1:].min() <= queue.deadline_s[k]
            for i in np.flatnonzero(servers.up)
            for v in range(self.service.variants)
            if self.good(v, k, queue)
        )


def test_it_decides_as_the_rule_in_loops() -> None:
    """Two families, floors, links, memory, noise, sizes that do not run; 120 requests a second."""
    for seed in range(12):
        problem = random_problem(seed, requests=120)
        problem = with_holes(problem, seed) if seed % 2 else problem
        found = simulate(problem, SlackFit().start(problem.service))
        plain = simulate(problem, Plain(problem.service))
        for key in ("server", "variant", "batch", "start_s", "refused_s"):
            np.testing.assert_array_equal(getattr(found, key), getattr(plain, key), str(seed))
