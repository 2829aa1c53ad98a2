"""Compare `auto` with every policy that ships, on generated services at loads of 0.3 to 1.5.

Services of 2 to 8 servers and 2 to 6 variants: accuracy rises and speed falls from variant to
variant, servers differ by speed and by what a batch saves, deadlines are 2 to 40 times the time of
the fastest variant, some requests ask for a minimum accuracy; arrivals are Poisson, bursty or
gamma. Load 1 is the rate at which the middle variant, in full batches, uses all servers.

    python benchmarks/requests_auto.py [--services 20] [--requests 3000] [--seed 0]

`auto` keeps its word where its effective accuracy is at least 99 % of the best policy's and its
success rate at most half a point below that policy's. The last columns are CPU seconds.

With ``--served WORTH`` it is the choice of a server instead; WORTH is ``--success-worth``. It is
judged on four times as many requests of the same process that it has not seen, as % of the best
policy that ships: chosen for others of that process (``--expect``), and by the one policy with
which it begins. It keeps its word where the first is at least 99 %. The last columns are the share
of two bounds: of what the fluid program allows who knows all arrivals, and for Poisson arrivals of
`unforeseen`, for who does not.

With ``--learnt WORTH`` the server learns while it serves: at least so many requests, and
``--seconds``; as % of the best policy all of them, with what is lost until it knows, those behind
the first half, and by the policy with which it begins. Replaying takes the CPU seconds that it
takes here, and `BEGIN_S` for the process that does it. *chosen* are the seconds after which it had
chosen first, *changes* what it changed to, and when.
"""

from __future__ import annotations

import time
from math import inf

import numpy as np

from harness import run
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Context
from placewright.planning.solving import compare, solve
from placewright.report.text import plain_table
from placewright.requests.bounds import RANGES, fluid
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import listed, named_policy
from placewright.requests.policies import start
from placewright.requests.policy import Decision, Dispatch, warm_up
from placewright.requests.problem import RequestProblem, first_requests, noise_factors
from placewright.requests.queue import Queue, Servers
from placewright.requests.replay import PolicyChoice, plan_text, replay
from placewright.requests.service import Service, service_of
from placewright.requests.serving.auto import AutoPolicy, Learner
from placewright.requests.simulation import simulate
from placewright.requests.stream import COLUMNS, gamma, mmpp, poisson, stream_of
from placewright.solvers.programs import LinearProgram

TRIED, CONTENDERS = 4000, 4
"""First requests on which all policies are judged, and how many of the best on all."""

BEGIN_S = 2.0
"""Until a process that replays has started, ahead: 1.4 to 2.2 s of a CPU."""


def generated_service(rng: np.random.Generator) -> tuple[Service, FloatArray]:
    """A service, and the seconds of each variant alone on a server of speed 1."""
    n, m, most = int(rng.integers(2, 9)), int(rng.integers(2, 7)), int(rng.choice([4, 8, 16]))
    accuracy = np.sort(rng.uniform(0.55, 0.95, m)).round(3)
    alone_s = 0.004 * np.cumprod(np.append(1.0, rng.uniform(1.3, 2.8, m - 1)))
    speed, fixed = rng.uniform(0.2, 1.0, n), rng.uniform(0.1, 0.8, n)
    factor = fixed[:, None] + (1 - fixed[:, None]) * np.arange(most + 1)
    latency_s = alone_s[None, :, None] / speed[:, None, None] * factor[:, None, :]
    latency_s[:, :, 0] = 0.0
    names = tuple(f"s{k}" for k in range(n)), tuple(f"v{k}" for k in range(m))
    noise = float(rng.choice([0.0, 0.05]))
    return service_of(*names, tuple(accuracy.tolist()), latency_s, noise=noise), alone_s


def generated(seed: int, requests: int, draw: int = 0) -> RequestProblem:
    """A service with so many requests; its load is drawn, too. `draw`: of its requests."""
    rng = np.random.default_rng([seed, 4])
    service, alone_s = generated_service(rng)
    load, per_request_s = float(rng.uniform(0.3, 1.5)), service.latency_s[:, service.variants // 2]
    full_rate = float((service.max_batch / per_request_s[:, -1]).sum())
    rate = load * full_rate
    process = (poisson, mmpp, gamma)[int(rng.integers(3))]
    rng = np.random.default_rng([seed, 4, draw]) if draw else rng
    duration_s = requests / rate
    arrival_s = process(rng, rate, duration_s)
    n = len(arrival_s)
    slack = np.exp(rng.uniform(np.log(2.0), np.log(40.0), n))
    floor = rng.choice([0.0, float(np.median(service.accuracy))], n, p=[0.7, 0.3])
    stream = stream_of(arrival_s, slack * alone_s[0] / 0.5, min_accuracy=floor)
    name = f"{seed}: {service.servers} x {service.variants}, {process.__name__} {load:.2f}"
    return RequestProblem(service, stream, duration_s, seed, name=name)


def row(problem: RequestProblem) -> tuple[tuple[str, ...], bool]:
    """A line of the table, and whether `auto` kept its word."""
    begun = time.process_time()
    all_of_them = compare(
        problem, [policy.name for policy in listed()], time_limit_s=inf, bounds=False
    )
    compared = time.process_time()
    own = solve(problem, time_limit_s=inf, bounds=False)
    took_s = time.process_time() - compared
    best, share = all_of_them, own.value / all_of_them.value if all_of_them.value else 1.0
    less = best.judgement.success_rate - own.judgement.success_rate
    cells = (
        problem.name,
        best.planner,
        f"{best.value:.4f}",
        f"{100 * best.judgement.success_rate:.2f}",
        own.planner,
        f"{own.value:.4f}",
        f"{100 * own.judgement.success_rate:.2f}",
        f"{compared - begun:.1f}",
        f"{took_s:.1f}",
    )
    return cells, share >= 0.99 and less <= 0.005


class Learning:
    """A policy as a server has it: learnt from the stream that it serves."""

    def __init__(self, problem: RequestProblem, worth: float) -> None:
        self.problem, self.worth = problem, worth
        self.learner, self.noise = Learner(named_policy("auto"), worth), noise_factors(problem)
        self.policy = start(self.learner.plan, problem.service)
        stream = problem.stream
        self.columns = np.stack([getattr(stream, name) for name in COLUMNS], axis=1).tolist()
        self.families = [problem.service.family_names[f] for f in stream.family]
        self.seen, self.begun_s, self.asked_s, self.ready_s = 0, inf, inf, inf
        self.choice: PolicyChoice | None = None
        self.changes: list[tuple[float, RequestPlan]] = []
        self.first_s = inf

    @property
    def eager(self) -> bool:
        """See `Policy`."""
        return self.policy.eager

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """See `Policy`."""
        while self.seen < queue.total:
            self.learner.note(self.seen, self.families[self.seen], *self.columns[self.seen])
            self.seen += 1
        if now_s >= self.ready_s and self.choice is not None:
            self._follow(self.choice, now_s)
        if self.choice is None and self.learner.soon(now_s):
            self.begun_s = min(self.begun_s, now_s)
        if self.choice is None and self.learner.due(now_s):
            window = self.learner.window(self.problem.service, now_s)
            assert window is not None
            cpu_s, self.asked_s = time.process_time(), now_s
            self.choice = replay(window[0], self.learner.plan, self.worth, window[1])
            self.ready_s = max(now_s, self.begun_s + BEGIN_S) + time.process_time() - cpu_s
        decision = self.policy.decide(now_s, queue, servers)
        for batch in decision.dispatches:
            self._note_answers(batch, now_s)
        return decision

    def _note_answers(self, batch: Dispatch, now_s: float) -> None:
        """What will come of a batch; the learner looks at it when its requests are due."""
        service, slots = self.problem.service, batch.slots
        took_s = service.latency_s[batch.server, batch.variant, len(slots)]
        end_s = now_s + took_s * self.noise[slots[0]]
        for slot in slots[self.problem.stream.due_s[slots] >= end_s].tolist():
            self.learner.answered(slot, float(service.accuracy[batch.variant]))

    def revise(self, service: Service) -> None:
        """See `Policy`; nothing changes here."""

    def _follow(self, choice: PolicyChoice, now_s: float) -> None:
        self.first_s = min(self.first_s, now_s)
        if choice.plan != self.learner.plan:
            self.changes.append((now_s, choice.plan))
            self.policy = start(choice.plan, self.problem.service)
            warm_up(self.policy, self.problem.service)
        self.learner.take(choice, now_s, now_s - self.asked_s)
        if self.learner.before is None:  # else the process is kept
            self.begun_s = inf
        self.choice = None


class Values:
    """What each answer is worth to a user, by policy, on the same requests."""

    def __init__(self, problem: RequestProblem, worth: float) -> None:
        self.problem, self.worth = problem, worth
        fits = [p for p in listed() if p.unsupported_reason(problem) is None]
        short = first_requests(problem, TRIED)
        tried = {p: self._on(short, p(problem, Context())).mean() for p in fits}
        self.values = sorted(map(float, tried.values()))
        first = sorted(fits, key=lambda policy: -tried[policy])[:CONTENDERS]
        known = {policy.name: self.of(policy(problem, Context())) for policy in first}
        self.best = max(known, key=lambda name: known[name].mean())
        self._best = known[self.best]
        self.most = float(self._best.mean())

    def of(self, plan: RequestPlan) -> FloatArray:
        """Of a plan's answers."""
        return self._on(self.problem, plan)

    def _on(self, problem: RequestProblem, plan: RequestPlan) -> FloatArray:
        found = judge(problem, plan)
        return found.earned + self.worth * found.succeeded

    def share(self, found: FloatArray, first: int = 0) -> float:
        """Of the best policy's, in %, from a request on."""
        return 100 * float(found[first:].mean() / self._best[first:].mean())


def served_row(seed: int, requests: int, worth: float) -> tuple[tuple[str, ...], bool]:
    """A line of the table of servers, and whether the choice for what is expected is near best."""
    expected, problem = (generated(seed, 4 * requests, draw) for draw in (1, 2))
    values = Values(problem, worth)
    choice = AutoPolicy(expected, worth).choose(problem.service)
    assert choice is not None
    found = values.of(choice.plan)
    clairvoyant = fluid(problem) + (worth * fluid(problem, success=True) if worth else 0.0)
    own, known_rate = float(found.mean()), ", poisson" in problem.name
    cells = (
        problem.name,
        f"{values.best} {values.most:.4f}",
        f"{choice.plan.policy} {values.share(found):.2f}",
        f"{values.share(values.of(named_policy('auto'))):.2f}",
        f"{100 * own / clairvoyant:.1f}",
        f"{100 * own / unforeseen(problem, worth):.1f}" if known_rate else "-",
    )
    return cells, values.share(found) >= 99.0


def learnt_row(
    seed: int, requests: int, worth: float, seconds: float
) -> tuple[tuple[str, ...], bool]:
    """A line of the table of servers that learn, and whether they are near best."""
    known = generated(seed, requests)
    count = max(requests, int(seconds * len(known.stream) / known.duration_s))
    problem = generated(seed, count, 2)
    values, learning = Values(problem, worth), Learning(problem, worth)
    answers = simulate(problem, learning)
    accuracy = problem.service.accuracy[answers.variant]
    found = np.where(answers.succeeded(problem), accuracy + worth, 0.0)
    few, middle, most = values.values[0], values.values[len(values.values) // 2], values.values[-1]
    cells = (
        problem.name,
        f"{values.best} {values.most:.4f}",
        f"{100 * middle / most:.1f}",
        f"{100 * few / most:.1f}",
        f"{values.share(values.of(named_policy('auto'))):.2f}",
        f"{values.share(found):.2f}",
        f"{values.share(found, len(found) // 2):.2f}",
        f"{learning.first_s:.0f} of {problem.duration_s:.0f} s",
        " ".join(f"{at_s:.0f} s: {plan_text(plan)}" for at_s, plan in learning.changes),
    )
    return cells, values.share(found) >= 99.0


def unforeseen(problem: RequestProblem, worth: float = 0.0) -> float:
    """A bound in the mean over Poisson streams of this rate and mix, without knowing arrivals.

    Such arrivals see servers as they are at any other time (Wolff 1982,
    https://doi.org/10.1287/opre.30.2.223). A batch that takes L keeps its server for L - s from
    every request that has to start within s. So of n requests in T seconds that need a start on a
    server within s, it can answer at most

        n / T (T - sum over batches of (L - s)^+ + D)

    where D is for batches that are cut off by the end or start after it: the longest batch that
    keeps a deadline, and the longest deadline. Beside it, as in the fluid program, batches take
    their time: b requests in each, T + D in all. Requests are grouped by minimum accuracy and range
    of deadlines, with the range's upper end.
    """
    s, stream, size = problem.service, problem.stream, np.arange(1, problem.service.max_batch + 1)
    edges = np.unique(np.quantile(stream.deadline_s, np.arange(1, RANGES + 1) / RANGES))
    within = np.minimum(np.searchsorted(edges, stream.deadline_s), len(edges) - 1)
    groups, count = np.unique(
        np.stack([stream.min_accuracy, edges[within]]), axis=1, return_counts=True
    )
    table_s = s.latency_s[:, :, 1:]
    least_s = table_s * (1.0 - 3.0 * s.noise)
    useful = least_s <= edges[-1]
    over_s = float(table_s[useful].max(initial=0.0)) + float(edges[-1])
    program = LinearProgram(stoppable=False)
    requests = program.rows(len(count), high=count)
    batches = program.columns(table_s.shape, where=useful)
    time_left = program.rows(s.servers, high=problem.duration_s + over_s)
    members = program.rows(table_s.shape, high=0.0)
    program.enter(members, batches, -np.broadcast_to(size, table_s.shape))
    program.enter(time_left[:, None, None], batches, np.where(useful, table_s, 0.0))
    most = [np.where(useful, (problem.duration_s + over_s) / table_s, 0.0)[useful]]
    for c, (floor, deadline_s) in enumerate(groups.T.tolist()):
        fits = (s.accuracy >= floor)[None, :, None] & (least_s <= deadline_s)
        gain = np.broadcast_to((s.accuracy + worth)[None, :, None], table_s.shape)
        served = program.columns(table_s.shape, cost=-gain, where=fits)
        most.append(np.full(int(fits.sum()), float(count[c])))
        program.enter(requests[c], served, 1.0)
        program.enter(members, served, 1.0)
        rate = count[c] / problem.duration_s
        for k in range(s.servers):
            slack_s = deadline_s - least_s[k]
            for limit_s in np.unique(slack_s[:, 0][fits[k, :, 0]]).tolist():
                seen = program.rows((), high=rate * (problem.duration_s + over_s))
                needs = np.where(slack_s <= limit_s, served[k], -1)
                program.enter(seen, needs, 1.0)
                held_s = np.maximum(table_s[k] - limit_s, 0.0)
                program.enter(seen, batches[k], np.where(useful[k], rate * held_s, 0.0))
    found = program.solve()
    assert found.multipliers is not None, "nothing served is always an answer"
    best = -program.proved(found.multipliers, np.concatenate(most))[0]
    return float(best) / len(stream)


def main(
    *,
    services: int = 20,
    requests: int = 3000,
    seed: int = 0,
    served: float | None = None,
    learnt: float | None = None,
    seconds: float = 40.0,
) -> int:
    """Print the table; 1 where `auto`, or a server, did not keep its word."""
    solve(generated(seed, 200), bounds=False)  # compile
    names: tuple[str, ...] = ("service", "best policy")
    seeds, sides = range(seed, seed + services), "  rr rrrr"
    if served is not None:
        names += ("expected", "begins with", "of fluid %", "of unforeseen %")
        found, sides = [served_row(k, requests, served) for k in seeds], "  rrrr"
    elif learnt is not None:
        names += ("median", "worst", "begins with", "learnt", "2nd half", "chosen", "changes")
        found, sides = [learnt_row(k, requests, learnt, seconds) for k in seeds], "  rrrrrrr"
    else:
        names += ("value", "success", "auto", "value", "success", "all", "auto")
        found = [row(generated(k, requests)) for k in seeds]
    print(plain_table(names, [cells for cells, _ in found], sides))
    kept = sum(word for _, word in found)
    print(f"kept its word on {kept} of {len(found)} services")
    return int(kept < len(found))


if __name__ == "__main__":
    run(main)
