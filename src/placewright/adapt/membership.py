"""Membership: nodes that take part, those that are lost, and which of them reach each other."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import PlacewrightError, RunError
from placewright.runtime.engines.engine import Engine
from placewright.runtime.engines.local import Local
from placewright.runtime.engines.ray_engine import Ray
from placewright.runtime.program import Worker, WorkerProgram, order
from placewright.testbed.record import NodeHandle

TRIES = 3
"""Times that one step is tried again when no node seems to be gone."""

FORGIVEN = 10
"""A node that has stayed for so many times the steps that it had to wait starts afresh."""


@dataclass(slots=True)
class RejoinBackoff:
    """Exponential back-off of one node that is lost again and again.

    A worker that is killed for its memory whenever it returns costs ever fewer restarts.

    Attributes
    ----------
    every
        Steps before it is looked for after a first loss, and between two looks that find nothing.
    until
        The step from which it is looked for.
    """

    every: int
    until: int = 0
    _wait: int = 0
    _returned: float = -math.inf

    def lost(self, step: int) -> None:
        """Start waiting, twice as long as before unless the node had stayed for long."""
        stayed = step - self._returned
        # At the first loss `_returned` is minus infinity: it has stayed for ever.
        self._wait = self.every if stayed > FORGIVEN * self._wait else 2 * self._wait
        self.until = step + self._wait

    def unanswered(self, step: int) -> None:
        """Wait on: the node was looked for and does not answer."""
        self.until = step + self.every

    def returned(self, step: int) -> None:
        """Note that the node is back."""
        self._returned = step


@dataclass(slots=True)
class Membership:
    """The nodes of a run, by name.

    Attributes
    ----------
    names
        All nodes, in the cluster's order.
    reachable
        Which of the named nodes can all talk to each other now; all by default.
    rejoin_every
        Steps before a lost node is looked for (`RejoinBackoff`).
    lost
        Nodes that take no part.
    newcomers
        Nodes that have come back and have not yet been started with.
    tries, revivals
        Faults in a row since workers last completed an order, and times since then that all nodes
        were lost.
    """

    names: Sequence[str]
    reachable: Callable[[Sequence[str]], Collection[str]] = frozenset
    rejoin_every: int = 20
    lost: set[str] = field(default_factory=set)
    newcomers: set[str] = field(default_factory=set)
    tries: int = 0
    revivals: int = 0
    _backoffs: dict[str, RejoinBackoff] = field(default_factory=dict)

    def alive(self) -> tuple[str, ...]:
        """Nodes that are not lost, in the cluster's order."""
        return tuple(n for n in self.names if n not in self.lost)

    def strike(self, dead: Collection[str], error: PlacewrightError, step: int) -> set[str]:
        """Remove the nodes that are gone: the `dead`, and those that the others cannot reach.

        Where that is none, the newcomers are removed.

        Raises `PlacewrightError`: `error` itself: no node is gone, more than `TRIES` times in a
        row.

        Parameters
        ----------
        dead
            Nodes whose worker has ended.
        error
            What made the run look.
        step
            Steps done.
        """
        left = [n for n in self.alive() if n not in dead]
        # Where all are dead, `reachable` is asked all the same: a testbed may be gone altogether.
        reached = self.reachable(left or self.alive())
        # Newcomers are suspected only where nobody is known to be gone.
        gone = set(dead) | (set(left) - set(reached)) or set(self.newcomers)
        self.tries += 1
        if not gone and self.tries > TRIES:
            raise error
        for name in gone:
            self._backoff(name).lost(step)
        self.newcomers -= gone
        self.lost |= gone
        return gone

    def back(self, step: int) -> set[str]:
        """Lost nodes that are due and can talk to all that take part."""
        due = [n for n in self.names if n in self.lost and step >= self._backoff(n).until]
        if not due:
            return set()
        found = set(self.reachable((*self.alive(), *due)))
        # Who comes back must not cost one that is there: the largest set of nodes that talk may
        # leave it out.
        back = found.intersection(due) if found.issuperset(self.alive()) else set()
        for name in set(due) - back:
            self._backoff(name).unanswered(step)
        return back

    def revive(self, step: int) -> set[str]:
        """Where no node is left: take back at once those that answer now.

        A worker that is lost says nothing of its machine, which may start another one. None are
        taken back where that has helped to no step, `TRIES` times in a row.
        """
        self.revivals += 1
        back = set(self.reachable(self.names) if self.revivals <= TRIES else ())
        self.rejoin(back, step)
        return back

    def completed(self) -> None:
        """Note that workers have completed an order."""
        self.tries = self.revivals = 0

    def rejoin(self, names: Collection[str], step: int) -> None:
        """Let nodes take part from the next start on."""
        for name in names:
            self._backoff(name).returned(step)
        self.lost -= set(names)
        self.newcomers |= set(names)

    def started(self) -> None:
        """Note that workers are up on all nodes that take part: none is new any more."""
        self.newcomers.clear()

    def losses(self, gone: Collection[str]) -> str:
        """The lost nodes in words, and when each is looked for."""
        each = [f"{n} (looked for after step {self._backoff(n).until})" for n in sorted(gone)]
        return f"lost {', '.join(each)}"

    def _backoff(self, name: str) -> RejoinBackoff:
        return self._backoffs.setdefault(name, RejoinBackoff(self.rejoin_every))


PATIENCE_S = 2.0
"""A connection that takes longer does not count: two lost packets."""


def reachable_on(engine: Engine) -> Callable[[Sequence[str]], Collection[str]]:
    """What tells which of the named devices can all talk to each other; all where none can tell."""
    if isinstance(engine, Ray):
        return engine.reachable
    handles = engine.handles if isinstance(engine, Local) else None
    if handles is None:
        return frozenset
    return lambda names: all_talk([handles[name] for name in names])


def all_talk(handles: Sequence[NodeHandle]) -> frozenset[str]:
    """The largest set of devices of which every two reach each other; the first of equals.

    A process group needs a connection between every two of its members.

    Raises `RunError`: no node is there any more: the testbed has been taken down; or its link
    emulator has ended.
    """
    if handles and not any(handle.there for handle in handles):
        raise RunError(
            "the testbed has been taken down under the run",
            where=", ".join(handle.device for handle in handles),
            hint="`placewright testbed up` and run again; with --snapshots FOLDER a run goes on "
            "from its last snapshot",
        )
    handles = [handle for handle in handles if handle.there]
    for handle in handles[:1]:
        handle.demand_links()
    names = [handle.device for handle in handles]
    linked = {frozenset(pair) for pair in _connected(handles)}
    position = range(len(names))
    apart = {
        k: {j for j in position if j != k and frozenset((names[j], names[k])) not in linked}
        for k in position
    }
    return frozenset(names[k] for k in largest_clique(list(position), apart))


def largest_clique(nodes: list[int], apart: Mapping[int, Set[int]]) -> list[int]:
    """The largest part of ascending `nodes` without two that are `apart`; the first of equals.

    Branches on a node that most others are apart from, two at least: about 1.4^n calls at worst,
    and one where a few links are cut.
    """
    cut = {k: [j for j in nodes if j in apart[k]] for k in nodes}
    worst = max(nodes, key=lambda k: len(cut[k]), default=-1)
    if worst < 0 or len(cut[worst]) < 2:  # pairs: of each the first stays
        return [k for k in nodes if not any(j < k for j in cut[k])]
    with_it = largest_clique([k for k in nodes if k not in apart[worst]], apart)
    without = largest_clique([k for k in nodes if k != worst], apart)
    return min(with_it, without, key=lambda part: (-len(part), part))


def _connected(handles: Sequence[NodeHandle]) -> list[tuple[str, str]]:
    """Pairs of which the second accepted a connection of the first."""
    if not handles:
        return []
    names = [handle.device for handle in handles]
    nodes = Cluster(tuple(Device(name, node=name) for name in names), (), "nodes")
    engine = Local({handle.device: handle for handle in handles}, emulate=False)
    group, limit_s = engine.group(nodes, CONNECTIVITY_PROBE), 20 * PATIENCE_S
    try:
        group.launch()
        # A node whose testbed is going down, or whose process dies, is reached by no other one.
        ready = group.answers_of_the_living(range(len(names)), limit_s)
        for rank in ready:
            # Each pair once: the later one calls the earlier one.
            group.give(rank, "reach", group.addresses[:rank])
        found = group.answers_of_the_living(ready, limit_s)
    finally:
        group.close()
    return [(names[k], names[other]) for k, reached in found.items() for other in reached]


CONNECTIVITY_PROBE = "placewright.adapt.membership:ConnectivityProbe"


class ConnectivityProbe(WorkerProgram):
    """Listens on its node and tries to reach others."""

    noun = "node"
    listens = True

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._port = worker.port()

    @order("connecting to other nodes")
    def reach(self, addresses: Sequence[tuple[str, int]]) -> list[int]:
        """Which of these addresses, by position, accept a connection."""
        return [k for k, address in enumerate(addresses) if _reaches(address)]


def _reaches(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=PATIENCE_S):
            return True
    except OSError:
        return False
