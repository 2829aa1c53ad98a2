"""Published policies: JF (Jellyfish-like) and MS (model switching) of RAMSIS, SlackFit-like.

Mendoza, Romero, Trippel, Model Selection for Latency-Critical Inference Serving, EuroSys 2024. JF
and MS keep one queue, first come first served; idle servers, in order of number, take what waits at
once, up to a largest batch; nothing waits for a fuller batch and nothing is dropped. One variant
serves everything until the rate changes.

The two steps of the thesis: offload to a server at arrival, schedule on each server.

Z. Y. Yang, Southeast University 2021, part 2: a task goes to a server by server load, server
performance and deadline; each server chooses the model for each task and orders the tasks by time
sensitivity and accuracy sensitivity. The rules are not public; these are ours, in its words.

Baselines that bind a request to a server when it arrives; each server orders its own queue.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from placewright.errors import InputError, check_known
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.requests.plan import Parameter
from placewright.requests.policy import NONE, Decision, Dispatch, Specification
from placewright.requests.problem import RequestProblem
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service


def unbound(queue: Queue, servers: Servers) -> list[int]:
    """Slots that are bound to no server, or to one that is down, first come first."""
    waiting = queue.by_arrival
    bound = queue.server[waiting]
    queue.server[waiting[(bound >= 0) & ~servers.up[bound]]] = -1
    found: list[int] = waiting[queue.server[waiting] < 0].tolist()
    return found


def _family_without_batch_of_one(s: Service) -> str | None:
    """Why a policy that serves requests one by one cannot serve all families, if it cannot."""
    alone = np.asarray(np.isfinite(s.latency_s[:, :, 1]).any(axis=0))
    for f, name in enumerate(s.family_names):
        if not alone[s.family == f].any():
            return f"no server runs family {name!r} in batches of one"
    return None


def _check_batches_of_one(policy: str, service: Service) -> None:
    """Raise where a policy that serves requests one by one cannot serve all families.

    Raises `InputError`, which names the family.
    """
    reason = _family_without_batch_of_one(service)
    if reason is not None:
        hint = "take a policy that forms batches, such as rolling"
        raise InputError(reason, where=f"policy {policy!r}", hint=hint)


@final
@dataclass(frozen=True, slots=True)
class EarlyBinding(Specification):
    """A server at arrival, then an order and a variant, one request at a time.

    Parameters
    ----------
    server
        ``round-robin``, ``random``, ``shortest-queue`` (fewest requests), or ``least-completion``
        (earliest expected end of all that is bound there).
    order
        ``fifo``, ``edf`` (earliest deadline) or ``sjf`` (shortest job) on each server.
    variant
        ``largest`` (most accurate), ``fastest``, or ``cheapest`` (fastest of those that reach the
        request's minimum accuracy).
    drop
        Refuse a request that cannot keep its deadline when its turn comes.
    """

    server: Literal["round-robin", "random", "shortest-queue", "least-completion"] = "round-robin"
    order: Literal["fifo", "edf", "sjf"] = "fifo"
    variant: Literal["largest", "fastest", "cheapest"] = "cheapest"
    drop: bool = False
    policy: ClassVar[str] = "early"

    @property
    def name(self) -> str:
        """The rule for servers."""
        return self.server

    @classmethod
    def usual(cls) -> tuple[EarlyBinding, ...]:
        """One for each rule of binding; the cleverest keeps deadlines in mind."""
        simple = (cls(rule) for rule in ("round-robin", "random", "shortest-queue"))
        return *simple, cls("least-completion", "edf", drop=True)

    def unsupported_reason(self, problem: RequestProblem) -> str | None:
        """Each family runs somewhere in batches of one."""
        return _family_without_batch_of_one(problem.service)

    def start(self, service: Service, seed: int = 0) -> BoundQueues:
        """A policy object for one stream."""
        _check_batches_of_one(self.policy, service)
        return BoundQueues(service, self, np.random.default_rng(seed))


@final
class BoundQueues:
    """The state of `EarlyBinding`."""

    eager: ClassVar[bool] = True

    def __init__(self, service: Service, options: EarlyBinding, rng: np.random.Generator) -> None:
        self.options, self.rng, self.next = options, rng, 0
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.service = service
        self.alone_s = service.planned_s(1.0)[:, :, 1]
        self.runs = np.isfinite(self.alone_s)

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Bind what is new; each idle server takes its next request."""
        waiting = queue.by_arrival
        for slot in unbound(queue, servers):
            queue.server[slot] = self._bind(slot, now_s, queue, servers)
        dispatches, refused = [], []
        for server in servers.idle().tolist():
            mine = waiting[queue.server[waiting] == server]
            while len(mine):
                k = self._first(mine, server, queue)
                slot, variant = int(mine[k]), self._variant(int(mine[k]), server, queue)
                late = now_s + self.alone_s[server, variant] > queue.deadline_s[slot]
                if not (self.options.drop and late):
                    dispatches.append(Dispatch(server, variant, mine[k : k + 1].copy()))
                    break
                refused.append(slot)
                mine = np.delete(mine, k)
        return Decision(tuple(dispatches), np.array(refused) if refused else NONE)

    def _bind(self, slot: int, now_s: float, queue: Queue, servers: Servers) -> int:
        able = self._able(queue.family[slot]) & servers.up
        options = np.flatnonzero(able if able.any() else self._able(queue.family[slot]))
        rule, waiting = self.options.server, queue.by_arrival
        if rule == "round-robin":
            self.next += 1
            return int(options[(self.next - 1) % len(options)])
        if rule == "random":
            return int(self.rng.choice(options))
        bound = queue.server[waiting]
        if rule == "shortest-queue":
            held = np.bincount(bound[bound >= 0], minlength=len(able)) + servers.busy
            return int(options[held[options].argmin()])
        there = waiting[bound >= 0]
        variants = [self._variant(k, int(queue.server[k]), queue) for k in there.tolist()]
        own_s = self.alone_s[queue.server[there], np.array(variants, dtype=np.int64)]
        backlog_s = np.bincount(queue.server[there], own_s, minlength=len(able)).astype(np.float64)
        backlog_s += np.where(servers.busy, np.maximum(servers.free_s - now_s, 0.0), 0.0)
        ends_s = [
            backlog_s[i] + self.alone_s[i, self._variant(slot, i, queue)] for i in options.tolist()
        ]
        return int(options[int(np.argmin(ends_s))])

    def _able(self, family: int) -> BoolArray:
        own = self.runs[:, self.service.family == family]
        able: BoolArray = np.asarray(own.any(axis=1), dtype=np.bool_)
        return able

    def _first(self, mine: IntArray, server: int, queue: Queue) -> int:
        if self.options.order == "fifo":
            return 0
        if self.options.order == "edf":
            return int(queue.deadline_s[mine].argmin())
        taken = [self.alone_s[server, self._variant(k, server, queue)] for k in mine.tolist()]
        return int(np.argmin(taken))

    def _variant(self, slot: int, server: int, queue: Queue) -> int:
        s = self.service
        own = np.flatnonzero((s.family == queue.family[slot]) & self.runs[server])
        if self.options.variant == "largest":
            return int(own[s.accuracy[own].argmax()])
        if self.options.variant == "cheapest":
            good = own[s.accuracy[own] >= queue.min_accuracy[slot]]
            own = good if len(good) else own
        took: FloatArray = self.alone_s[server, own]
        return int(own[took.argmin()])


WINDOW_S = 0.5
"""Over which the rate of arrivals is measured."""

MARGIN = 1.05
"""By which JF's variant must carry more than the rate."""


@final
class Switching:
    """One variant and one largest batch at a time, by the rate of the last half second."""

    eager: ClassVar[bool] = False

    def __init__(
        self, service: Service, rates: tuple[float, ...], variants: tuple[str, ...], margin: float
    ) -> None:
        where = "policy 'ms'" if variants else "policy 'jf'"
        for name in variants:
            check_known("variant", name, service.variant_names, where=where)
        if service.families > 1:
            raise InputError(
                "the policy knows one family only, and would answer it in place of the others",
                where=where,
                by=f"the service has {', '.join(service.family_names)}",
                hint="serve them by another policy, edf-fastest or rolling",
            )
        self.margin = margin
        self.rates: FloatArray = np.sort(np.array(rates, dtype=np.float64))
        self.variants = dict(zip(rates, variants, strict=False))
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.service = service
        self.table_s = service.latency_s.max(axis=0)
        self.known: dict[tuple[float, float], tuple[int, int]] = {}

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Idle servers take what came first; what the variant is too inaccurate for is refused."""
        idle, waiting = servers.idle(), queue.by_arrival
        if not len(idle) or not len(waiting):
            return Decision()
        first = waiting[0]
        deadline_s = float(queue.deadline_s[first] - queue.arrival_s[first])
        variant, largest = self._choice(self._rate(now_s, queue), round(deadline_s, 9))
        enough = queue.min_accuracy[waiting] <= self.service.accuracy[variant]
        fits, refused = waiting[enough], waiting[~enough]
        taken = (fits[k : k + largest].copy() for k in range(0, len(fits), largest))
        pairs = zip(idle.tolist(), taken, strict=False)
        return Decision(tuple(Dispatch(server, variant, slots) for server, slots in pairs), refused)

    def _rate(self, now_s: float, queue: Queue) -> float:
        """The smallest listed rate that is not exceeded, the largest, or the rate itself."""
        if len(self.rates) == 1:
            return float(self.rates[0])
        rate = queue.arrivals_since(now_s - WINDOW_S) / WINDOW_S
        if not len(self.rates):
            return rate
        at = min(int(np.searchsorted(self.rates, rate)), len(self.rates) - 1)
        return float(self.rates[at])

    def _choice(self, rate: float, deadline_s: float) -> tuple[int, int]:
        key = (rate, deadline_s)
        if key not in self.known:
            self.known[key] = self._choose(rate, deadline_s)
        return self.known[key]

    def _choose(self, rate: float, deadline_s: float) -> tuple[int, int]:
        """Variant and largest batch: some size carries the load in half the deadline."""
        s, needed = self.service, self.margin * rate / self.service.servers
        best, size = -1, s.max_batch
        for v in range(s.variants):
            largest = _largest(self.table_s[v], needed, deadline_s)
            if largest and (best < 0 or s.accuracy[v] > s.accuracy[best]):
                best, size = v, largest
        # Of sizes that all servers run: some variants compute each row by itself.
        sizes = np.isfinite(self.table_s[:, 1:]).sum(axis=1)
        chosen = max(best, int((sizes > 0).argmax()))
        if self.variants:  # MS: the rule gives the batch only
            chosen = s.variant_names.index(self.variants[rate])
        return chosen, max(1, min(size, int(sizes[chosen])))


def _largest(table_s: FloatArray, needed: float, deadline_s: float) -> int:
    """The largest size that carries `needed` requests a second in half the deadline, or 0."""
    sizes = np.arange(1, len(table_s))
    fits = (sizes / table_s[1:] >= needed) & (table_s[1:] <= deadline_s / 2)
    return int(sizes[fits].max()) if fits.any() else 0


def _one_family(problem: RequestProblem) -> str | None:
    s = problem.service
    if s.families > 1:
        return "one family only"
    if (problem.stream.min_accuracy > 0).any():
        return "knows no minimum accuracy"
    return None if np.isfinite(s.latency_s).all() else "every server must run every variant"


@final
@dataclass(frozen=True, slots=True)
class JellyfishLike(Specification):
    """JF: the most accurate variant that carries 1.05 x the rate in half the deadline.

    `rates`: listed rates per second; none: the rate of the last half second itself.
    """

    rates: tuple[float, ...] = ()
    policy: ClassVar[str] = "jf"

    def unsupported_reason(self, problem: RequestProblem) -> str | None:
        """One family that every server runs, without minimum accuracies."""
        return _one_family(problem)

    def parameters(self, problem: RequestProblem) -> dict[str, Parameter]:
        """The problem's published rates, unless given."""
        return {"rates": self.rates or tuple(problem.rates_per_s.tolist())}

    def start(self, service: Service, seed: int = 0) -> Switching:
        """A policy object for one stream."""
        return Switching(service, self.rates, (), MARGIN)


@final
@dataclass(frozen=True, slots=True)
class ModelSwitching(Specification):
    """MS: the variant from a table by rate, the largest batch that JF's rule gives without margin.

    `rates`, `variants`: listed rates per second, and the variant at each.
    """

    rates: tuple[float, ...] = ()
    variants: tuple[str, ...] = ()
    policy: ClassVar[str] = "ms"

    def unsupported_reason(self, problem: RequestProblem) -> str | None:
        """As `JellyfishLike`, and a table."""
        if not len(problem.rate_variants) and not self.variants:
            return "the problem has no table of variants by rate"
        return _one_family(problem)

    def parameters(self, problem: RequestProblem) -> dict[str, Parameter]:
        """The problem's published table, unless given."""
        if self.variants:
            return {"rates": self.rates, "variants": self.variants}
        names = problem.service.variant_names
        listed = tuple(names[v] for v in problem.rate_variants.tolist())
        return {"rates": tuple(problem.rates_per_s.tolist()), "variants": listed}

    def start(self, service: Service, seed: int = 0) -> Switching:
        """A policy object for one stream."""
        if not self.variants:
            raise InputError(
                "has no table of variants by rate",
                where="policy 'ms'",
                hint="give it one: --policy \"ms(rates=[10, 100], variants=['large', 'small'])\"",
            )
        return Switching(service, self.rates, self.variants, 1.0)


@final
@dataclass(frozen=True, slots=True)
class SlackFit(Specification):
    """The variant and size whose time is nearest below the slack of the earliest deadline.

    Little slack means a backlog, and chooses fast variants. Departures: servers differ, so that
    idle ones are served in order of number, each with its own table; sizes larger than the queue
    are not tried; hopeless requests are refused.
    """

    policy: ClassVar[str] = "slack-fit"

    def start(self, service: Service, seed: int = 0) -> SlackFitting:
        """A policy object for one stream."""
        return SlackFitting(service)


@final
class SlackFitting:
    """The state of `SlackFit`: its tables."""

    eager: ClassVar[bool] = False

    def __init__(self, service: Service) -> None:
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.service = service
        self.planned_s = service.planned_s(1.0)
        self.planned_s[:, :, 0] = np.inf
        self.shortest_s = self.planned_s.min(axis=2)

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Earliest deadlines to idle servers."""
        s, left, dispatches = self.service, queue.by_deadline.copy(), list[Dispatch]()
        sizes, variants = np.arange(s.max_batch + 1), np.arange(s.variants)
        for server in servers.idle().tolist():
            own = self._own(left, queue)
            # By variant, how many wait of its family, and how many of them it may answer: a batch
            # is chosen by the first number, and holds no more than the second.
            waiting = np.bincount(queue.family[left], minlength=s.families)[s.family]
            filled = np.minimum(sizes, own.sum(axis=0)[:, None])
            table_s, slack_s = self.planned_s[server], queue.deadline_s[left] - now_s
            ends_s = np.maximum(table_s, table_s[variants[:, None], filled])
            ends_s[sizes > waiting[:, None]] = np.inf
            kept = (own & (ends_s.min(axis=1) <= slack_s[:, None])).any(axis=1)
            if not kept.any():
                continue
            head = int(kept.argmax())
            fits = own[head][:, None] & (ends_s <= slack_s[head])
            # The longest that still fits the slack.
            variant, size = divmod(int(np.where(fits, table_s, -1.0).argmax()), len(sizes))
            others = np.flatnonzero(own[:, variant])
            chosen = np.concatenate([[head], others[others != head][: size - 1]])
            dispatches.append(Dispatch(server, variant, left[chosen]))
            left = np.delete(left, chosen)
        return Decision(tuple(dispatches), self._hopeless(left, now_s, queue, servers))

    def _own(self, left: IntArray, queue: Queue) -> BoolArray:
        """Shape (requests, variants): of its family and accurate enough."""
        s = self.service
        own: BoolArray = s.family == queue.family[left, None]
        return own & (s.accuracy >= queue.min_accuracy[left, None])

    def _hopeless(self, left: IntArray, now_s: float, queue: Queue, servers: Servers) -> IntArray:
        fastest_s = self.shortest_s[servers.up].min(axis=0, initial=np.inf)
        least_s = np.where(self._own(left, queue), fastest_s, np.inf).min(axis=1, initial=np.inf)
        late: IntArray = left[now_s + least_s > queue.deadline_s[left]]
        return late


@final
@dataclass(frozen=True, slots=True)
class TwoSteps(Specification):
    """Offloading, then scheduling.

    Offloading: of the servers whose backlog leaves time for some acceptable variant, the one that
    promises the most accuracy, weighted by the request's accuracy sensitivity, less its relative
    load, weighted by its time sensitivity. Scheduling: by time sensitivity over slack; the
    most accurate variant that keeps the request's own deadline; while some bound request would be
    late even with its fastest variant, the longest of those before it is dropped (Moore-Hodgson).
    """

    policy: ClassVar[str] = "thesis"

    def unsupported_reason(self, problem: RequestProblem) -> str | None:
        """Each family runs somewhere in batches of one."""
        return _family_without_batch_of_one(problem.service)

    def start(self, service: Service, seed: int = 0) -> OffloadAndSchedule:
        """A policy object for one stream."""
        _check_batches_of_one(self.policy, service)
        return OffloadAndSchedule(service)


@final
class OffloadAndSchedule:
    """The state of `TwoSteps`: its tables."""

    eager: ClassVar[bool] = True

    def __init__(self, service: Service) -> None:
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.service = service
        self.alone_s = service.planned_s(1.0)[:, :, 1]
        self.runs = np.isfinite(self.alone_s).any(axis=0)
        self._accuracies: list[float] = np.unique(service.accuracy).tolist()
        self._known: dict[tuple[int, int], tuple[list[int], list[float]]] = {}

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Offload what is new; schedule every idle server."""
        waiting = queue.by_arrival
        for slot in unbound(queue, servers):
            queue.server[slot] = self._offload(slot, now_s, queue, servers)
        dispatches, refused = [], []
        for server in servers.idle().tolist():
            mine = [k for k in waiting.tolist() if queue.server[k] == server]
            mine, dropped = self._dropped(mine, server, now_s, queue)
            refused += dropped
            if mine:
                slot = max(mine, key=lambda k: self._urgency(k, now_s, queue))
                dispatches.append(
                    Dispatch(server, self._variant(slot, server, now_s, queue), np.array([slot]))
                )
        return Decision(tuple(dispatches), np.array(refused) if refused else NONE)

    def _acceptable(self, slot: int, queue: Queue) -> list[int]:
        return self._variants(slot, queue)[0]

    def _fastest_s(self, slot: int, server: int, queue: Queue) -> float:
        return self._variants(slot, queue)[1][server]

    def _variants(self, slot: int, queue: Queue) -> tuple[list[int], list[float]]:
        """Acceptable variants, and the fastest of them on each server; all that wait are asked."""
        family, least = int(queue.family[slot]), float(queue.min_accuracy[slot])
        key = family, bisect_left(self._accuracies, least)
        if key not in self._known:
            s = self.service
            runs = (s.family == family) & self.runs
            own = np.flatnonzero(runs & (s.accuracy >= least)).tolist()
            own = own or np.flatnonzero(runs).tolist()
            self._known[key] = own, self.alone_s[:, own].min(axis=1, initial=np.inf).tolist()
        return self._known[key]

    def _offload(self, slot: int, now_s: float, queue: Queue, servers: Servers) -> int:
        backlog_s = np.where(servers.busy, np.maximum(servers.free_s - now_s, 0.0), 0.0)
        for k in queue.by_arrival.tolist():
            if queue.server[k] >= 0:
                backlog_s[queue.server[k]] += self._fastest_s(k, int(queue.server[k]), queue)
        slack_s = queue.deadline_s[slot] - now_s - backlog_s
        own, s = self._acceptable(slot, queue), self.service
        fits = self.alone_s[:, own] <= slack_s[:, None]
        promised = np.where(fits, s.accuracy[own], 0.0).max(axis=1)
        load = backlog_s / max(float(backlog_s.max()), 1e-9)
        value = queue.accuracy_sensitivity[slot] * promised - queue.time_sensitivity[slot] * load
        value = np.where(fits.any(axis=1) & servers.up, value, -np.inf)
        if np.isfinite(value).any():
            return int(value.argmax())
        ends_s = backlog_s + self.alone_s[:, own].min(axis=1)
        up = servers.up & np.isfinite(ends_s)
        # Those that run it are down: it waits for them, or until one that comes is bound to it.
        return int(np.where(up | ~up.any(), ends_s, np.inf).argmin())

    def _urgency(self, slot: int, now_s: float, queue: Queue) -> tuple[float, int]:
        slack_s = max(float(queue.deadline_s[slot]) - now_s, 1e-9)
        return (0.05 + float(queue.time_sensitivity[slot])) / slack_s, -int(queue.id[slot])

    def _variant(self, slot: int, server: int, now_s: float, queue: Queue) -> int:
        own, s = self._acceptable(slot, queue), self.service
        kept = [v for v in own if now_s + self.alone_s[server, v] <= queue.deadline_s[slot]]
        if kept:
            return max(kept, key=lambda v: float(s.accuracy[v]))
        return min(own, key=lambda v: float(self.alone_s[server, v]))

    def _dropped(
        self, mine: list[int], server: int, now_s: float, queue: Queue
    ) -> tuple[list[int], list[int]]:
        """Moore-Hodgson with the fastest acceptable variants: the kept and the dropped."""
        kept: list[tuple[float, int, int]] = []  # seconds, id, slot: ties do not depend on slots
        dropped, end_s = [], now_s
        for slot in sorted(mine, key=lambda k: (float(queue.deadline_s[k]), int(queue.id[k]))):
            took_s = self._fastest_s(slot, server, queue)
            kept.append((took_s, int(queue.id[slot]), slot))
            end_s += took_s
            if end_s > queue.deadline_s[slot]:
                # Dropping the longest one so far keeps the most requests in time (Moore 1968).
                longest = max(kept)
                kept.remove(longest)
                end_s -= longest[0]
                dropped.append(longest[2])
        return [slot for _, _, slot in kept], dropped
