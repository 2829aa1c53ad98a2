"""Solve a PBQP with memory over time: reduce, price memory, search, prove. Anytime.

    contract -> reduce -> core -> equal prices (first answers) -> prices row by row (bound)
    -> HiGHS -> annealing -> check

What contraction and reduction leave of a sharding problem is small: of 34,932 nodes 281.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewright.errors import InfeasibleError
from placewright.io.arguments import checked
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.compile_clock import COMPILING, CompileClock
from placewright.planning.contract import Progress, silent
from placewright.solvers._memory_contract import Images, contract, original, spans_of
from placewright.solvers._memory_core import Core, core_of, loaded
from placewright.solvers._memory_draft import Draft, draft, reduce
from placewright.solvers._memory_milp import prove
from placewright.solvers._memory_moves import State, anneal, repair_memory, reset, state_of
from placewright.solvers._memory_prices import (
    Messages,
    Priced,
    Prices,
    ascend,
    fixed,
    level,
    solve_priced,
)
from placewright.solvers._memory_regions import improve_region
from placewright.solvers._pbqp_search import Limits, Search
from placewright.solvers._pbqp_work import evaluate
from placewright.solvers.memory_pbqp import MemoryPbqp
from placewright.solvers.programs import installed, missing

TOLERANCE = 1e-9
"""Relative difference below which value and bound are one."""

ASCENT, ASCENTS = 25, 6
"""Price steps before the proof is tried and, after it failed, before each of so many rounds of
annealing: better prices help the search, and waiting for the best ones would cost it time."""

SEARCH = 20_000
"""Annealing moves of one round."""

REGIONS, REGION = 300, (20, 300)
"""Regions chosen again in a round, and how many nodes they have."""

BRANCHES = 20_000
"""Nodes of the plain engine's tree, where there is no memory to mind."""

LARGE_POOL = 200_000
"""Cores with more edge entries are searched, not proved by the linear program, and keep messages
from one set of prices to the next."""

UNKNOWN: dict[str, Any] = {
    "what": COMPILING,
    "value": math.inf,
    "bound": -math.inf,
    "elapsed_s": 0.0,
}
"""Progress while the kernels are compiled."""

PROOF_SHARE = 0.6
"""Share of the remaining time that HiGHS may take; the rest is for search."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPbqpSolution:
    """An assignment and what is known about it.

    Attributes
    ----------
    choice
        Shape (n,), option of every node.
    value
        Its cost, counted again on the problem as given; ``inf`` where nothing that fits was found
        (`choice` is then the nearest miss).
    lower_bound
        No assignment that fits is cheaper.
    proved
        Whether `value` is the optimum: exactly where costs are whole, else to 1e-9 relative.
    interrupted
        Whether Ctrl-C ended the search.
    peak, moment
        Largest usage over time of `choice`, and when.
    core
        Nodes that reductions left to decide.
    note
        What was missing for a proof, and what was used instead.
    compile_s
        Seconds spent on compiling, which is done once after an installation.
    """

    choice: IntArray
    value: float
    lower_bound: float
    proved: bool
    interrupted: bool
    peak: int
    moment: int
    core: int
    note: str = ""
    compile_s: float = 0.0


@checked
def solve_pbqp_memory(
    problem: MemoryPbqp,
    *,
    deadline_s: float = math.inf,
    seed: int = 0,
    exact: bool = True,
    rounds: int = 100,
    progress: Progress = silent,
) -> MemoryPbqpSolution:
    """The cheapest assignment that fits in memory, with a lower bound.

    Parameters
    ----------
    deadline_s
        ``time.perf_counter()`` value at which the best so far is handed back; what compiling
        takes, once after an installation, comes on top while nothing that fits is found.
    exact
        Let HiGHS prove the core; where it is not installed (extra ``exact``), `note` says so.
    rounds
        Annealing rounds where there is no proof; makes the effort the same on every machine.
        The same seed gives the same answer unless the deadline cuts the search.

    Raises
    ------
    InfeasibleError
        Forbidden entries exclude everything, or some moment needs more than the limit whatever
        is chosen; says when and by how much.

    Notes
    -----
    The problem is that of the IOPDDL contest (ASPLOS 2025). Reductions keep an optimum. The bound
    is the Lagrangian dual of the memory rows over the tree-reweighted bound of the priced PBQP
    (Kolmogorov 2006, doi 10.1109/TPAMI.2006.200), then that of the mixed-integer program, which
    rests on HiGHS's arithmetic. Assignments are always counted again.
    """
    with CompileClock(lambda: progress(**UNKNOWN)) as clock:
        search = _Search(problem, deadline_s, seed, progress, clock)
        interrupted = False
        try:
            search.go_on(exact, rounds)
        except KeyboardInterrupt:
            if not search.ready:
                raise
            interrupted = True
        return search.answer(interrupted)


@dataclass(slots=True)
class _Search:
    """One solve: the core, the best assignment of it and the bound; costs without the constant."""

    problem: MemoryPbqp
    until_s: float
    seed: int
    progress: Progress
    clock: CompileClock
    steps: list[Images] = field(default_factory=list)
    reduced: Draft = field(init=False)
    core: Core = field(init=False)
    prices: Prices = field(init=False)
    ready: bool = False
    best: IntArray | None = None
    nearest: IntArray | None = None
    miss: float = math.inf
    value: float = math.inf
    lower: float = -math.inf
    messages: Messages | None = None
    whole: bool = False
    began_s: float = field(default_factory=time.perf_counter)
    reported_s: float = 0.0
    draws: int = 0
    note: str = ""

    @property
    def deadline_s(self) -> float:
        """When to end: what was spent on compiling is made up for until something fits."""
        return self.until_s + (self.clock.seconds if self.best is None else 0.0)

    def go_on(self, exact: bool, rounds: int) -> None:
        """From the first reduction to the last round of annealing."""
        self.prepare()
        self.begin()
        self.price(ASCENT)
        self.branch()
        self.improve(SEARCH)
        if exact:
            self.prove()
        # Prices and search in turn: better prices lead regions elsewhere, a better value aims the
        # steps.
        for k in range(rounds):
            if not self.running():
                break
            if k < ASCENTS:
                self.price(ASCENT)
            self.improve(SEARCH)

    def running(self) -> bool:
        """Whether there is time, and something left to find."""
        return not self.closed() and time.perf_counter() < self.deadline_s

    def closed(self) -> bool:
        """Whether the best assignment is proved, or that there is none."""
        if self.value == math.inf:
            return self.lower == math.inf
        return self.value - self.lower <= self.tolerance()

    def tolerance(self) -> float:
        """A difference that is none: bounds on whole costs are rounded up."""
        return 0.0 if self.whole else TOLERANCE * abs(self.value)

    def prepare(self) -> None:
        """Contract and reduce; a core is there in any case."""
        p = self.problem
        self.report("reducing")
        spans = spans_of(p.usage, p.pbqp.start, p.live_from, p.live_until)
        arrays, spans, self.steps = contract(p.pbqp.arrays, spans)
        self.reduced = reduce(draft(arrays, spans), self.running)
        self.core = core_of(self.reduced, p.limit)
        self.prices = Prices.of(self.core)
        self.whole = _whole(p.pbqp.cost) and _whole(p.pbqp.pool)
        self.ready = True

    def begin(self) -> None:
        """Equal prices on all rows, where memory binds: first assignments that fit."""
        level(self.core, self.prices, self.solve_priced, self.consider, self.pricing)

    def price(self, steps: int) -> None:
        """Prices, a bound, and assignments that fit."""
        goal = lambda: self.value  # noqa: E731
        ascend(self.core, self.prices, steps, goal, self.consider, self.solve_priced, self.pricing)

    def solve_priced(self, price: FloatArray) -> Priced:
        """With messages kept where starting over takes long."""
        if len(self.core.arrays.pool) <= LARGE_POOL:
            return solve_priced(self.core, price, self.deadline_s)
        if self.messages is None:
            self.messages = Messages(self.core)
        return self.messages.solve(price)

    def pricing(self) -> bool:
        """Whether prices are still worth their time; one answer there must be."""
        return self.nearest is None or self.running()

    def consider(self, found: Priced) -> None:
        """Take a priced answer's bound; make its choice fit."""
        self.raise_bound(found.bound)
        self.keep_if_better(found.choice)
        state = state_of(self.core, found.choice, found.price)
        if repair_memory(self.core.arrays, self.core.loads, state, 20):
            self.keep_if_better(state.choice)
        self.report("pricing memory")

    def improve(self, moves: int) -> None:
        """Annealing from the best assignment."""
        core, prices = self.core, self.prices
        if self.best is None or not self.running() or len(core.nodes) == 0:
            return
        self.draws += 1
        rng = np.random.default_rng((self.seed, self.draws))
        state = state_of(core, self.best, prices.best)
        best = self.best.copy()
        # The gap is the scale of costs that still matter; temperatures are shares of it.
        room = max(self.value - self.lower, 0.0) if math.isfinite(self.lower) else abs(self.value)
        for heat in np.geomspace(0.3, 0.003, 20) * room / 10:
            if not self.running():
                break
            reset(core.arrays, core.loads, state, best)
            draws = np.maximum(rng.random((moves // 20, 3)), 1e-300)
            anneal(core.arrays, core.loads, state, draws, float(heat), best)
            self.keep_if_better(best)
            self.report("local search")
        self.regions(state, best, rng, 0.02 * room)

    def regions(self, state: State, best: IntArray, rng: np.random.Generator, heat: float) -> None:
        """Annealing by regions chosen again; `best` receives the cheapest state."""
        now = lowest = 0.0
        reset(self.core.arrays, self.core.loads, state, best)
        least, most = (min(size, len(self.core.nodes)) for size in REGION)
        for cold in np.linspace(1.0, 0.0, REGIONS):
            if not self.running():
                break
            size = round(least * (most / least) ** rng.random())
            now += improve_region(self.core, state, rng, size, heat * float(cold) ** 2)
            if now < lowest:
                lowest = now
                best[:] = state.choice
            self.report("local search")
        self.keep_if_better(best)

    def branch(self) -> None:
        """Branch and bound of the plain engine, where memory binds nowhere."""
        if len(self.core.moment) or not self.running():
            return
        self.report("branching")
        own = Search(Limits(BRANCHES, self.deadline_s), abs(self.value))
        found = own.descend(self.core.arrays, self.value)
        if found.choice is not None:
            self.keep_if_better(found.choice)
        lower = min(found.lower, self.value)
        self.raise_bound(lower - 2 * own.tolerance)

    def prove(self) -> None:
        """Hand what prices leave open to HiGHS."""
        core, prices = self.core, self.prices
        if not self.running() or len(core.arrays.pool) > LARGE_POOL:
            return
        if not installed("highspy"):
            self.note = f"{missing('highspy')}: prices and search were used instead"
            return
        self.report("proving")
        # Only what is cheaper than the best is left to HiGHS; it ends infeasible where there is
        # nothing.
        upper = self.value
        narrow = core
        if math.isfinite(upper):
            narrow = fixed(core, prices.best, upper)
        left_s = self.deadline_s - time.perf_counter()
        until_s = self.deadline_s - (1 - PROOF_SHARE) * left_s if math.isfinite(left_s) else left_s
        prove(narrow, self.best, upper, until_s, self.keep_if_better, self.bound_below)

    def bound_below(self, bound: float) -> None:
        """A bound on what is cheaper than the best."""
        self.raise_bound(min(bound, self.value))
        self.report("proving")

    def raise_bound(self, bound: float) -> None:
        """Keep the highest; the producers of bounds have taken rounding off."""
        rounded = math.ceil(bound) if self.whole and math.isfinite(bound) else bound
        self.lower = max(self.lower, float(rounded))

    def keep_if_better(self, choice: IntArray) -> None:
        """Keep an assignment if it fits and is cheaper, or misses by less than any so far."""
        arrays, loads = self.core.arrays, self.core.loads
        value = float(evaluate(arrays, choice))
        over = float((loaded(arrays, loads, choice) - loads.room).max(initial=0))
        miss = over if value < math.inf else math.inf
        if self.nearest is None or miss < self.miss:
            self.nearest, self.miss = choice.copy(), miss
        if miss <= 0 and value < self.value:
            self.best, self.value = choice.copy(), value

    def report(self, what: str) -> None:
        """Progress, a few times per second."""
        now_s = time.perf_counter()
        if now_s - self.reported_s < 0.2:
            return
        self.reported_s = now_s
        constant = self.core.constant if self.ready else 0.0
        self.progress(
            what=what,
            value=self.value + constant,
            bound=self.lower + constant,
            elapsed_s=now_s - self.began_s,
        )

    def answer(self, interrupted: bool) -> MemoryPbqpSolution:
        """The best assignment on the problem as given, counted again."""
        p, core = self.problem, self.core
        # The core's positions -> the draft's option names -> nodes folded away -> nodes contracted.
        chosen = self.best if self.best is not None else self.nearest
        if chosen is None:
            chosen = np.zeros(len(core.nodes), np.int64)
        names = (self.reduced.names[i][a] for i, a in zip(core.nodes, chosen, strict=True))
        later = {int(i): int(name) for i, name in zip(core.nodes, names, strict=True)}
        choice = original(self.steps, self.reduced.choose(later))
        peak, moment = p.peak(choice)
        value = p.value(choice) if peak <= p.limit else math.inf
        lower = self.lower + core.constant
        proved = self.closed() and value < math.inf
        if proved:
            lower = value
        if lower == math.inf:
            raise _infeasible(p, peak, moment)
        return MemoryPbqpSolution(
            choice,
            value,
            min(lower, value),
            proved,
            interrupted,
            peak,
            moment,
            len(core.nodes),
            self.note,
            self.clock.seconds,
        )


def _whole(costs: FloatArray) -> bool:
    """Whether all finite costs are whole numbers that stay exact when added up."""
    finite = costs[costs < np.inf]
    return bool((finite == np.floor(finite)).all() and finite.max(initial=0.0) < 2**53)


def _infeasible(p: MemoryPbqp, peak: int, moment: int) -> InfeasibleError:
    if peak <= p.limit:
        return InfeasibleError(
            "no assignment that fits avoids all forbidden costs (proved)", where="PBQP"
        )
    return InfeasibleError(
        "no assignment fits in memory (proved)",
        where=f"moment {moment}",
        by=f"the nearest miss uses {peak}, {peak - p.limit} above the limit {p.limit}",
        hint="raise usage_limit",
    )
