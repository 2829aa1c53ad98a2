"""Orders through connections: each worker has one, and the first death ends every wait."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from placewright.errors import WorkerError
from placewright.runtime import limits
from placewright.runtime.connections.channel import Channel, wait
from placewright.runtime.engines.group import WorkerGroup, doing
from placewright.runtime.engines.process import UNKNOWN
from placewright.runtime.engines.sending import send

_LAST_WORDS_S = 0.1
"""What a worker said before it ended may come in later than the news that it ended."""

_SETTLE_S = 0.3
"""Until it is known who died first when several workers complain."""


class PipedGroup(WorkerGroup):
    """Workers that read orders from connections, and whose ends can be waited for.

    Attributes
    ----------
    connections
        By rank, to the workers.
    """

    connections: list[Channel]
    _owing = False

    def __init__(self) -> None:
        self.connections = []
        self._stopped_s: dict[int, float] = {}
        self._raised: set[int] = set()

    @abstractmethod
    def watched(self, rank: int) -> Any:
        """What becomes ready when the worker ends: a sentinel or a connection."""

    @abstractmethod
    def exit_code(self, rank: int, patience_s: float = 0.0) -> int | None:
        """How the worker's process ended, waiting for it a little; ``None`` while it lives."""

    def stopped(self, rank: int) -> bool:
        """Whether the worker's process is stopped (SIGSTOP), where that can be known."""
        return False

    def order(
        self, verb: str, arguments: Sequence[tuple[Any, ...]], *, limit_s: float | None = None
    ) -> list[Any]:
        """See `WorkerGroup.order`.

        After an order that was broken off, by an error or by Ctrl-C, answers to it may still
        come: whoever asked anything else would take them for his own.
        """
        if self._owing:
            raise self.broken_off()
        self._owing = True
        for connection, values in zip(self.connections, arguments, strict=True):
            send(connection, (verb, values))
        limit_s = self.limit_s if limit_s is None else limit_s
        answers = self.answers(limit_s, doing(verb))
        self._owing = False
        return answers

    def answers(self, limit_s: float, task: str) -> list[Any]:
        """One answer per worker.

        The first death or error ends the wait, and so does the limit, or a worker that is stopped.
        """
        answers: dict[int, Any] = {}
        countdown = limits.Countdown(limit_s)
        while len(answers) < len(self.specs):
            open_ranks = [r for r in range(len(self.specs)) if r not in answers]
            speaking = {self.connections[r]: r for r in open_ranks}
            ending = {self.watched(r): r for r in open_ranks}
            ready = wait([*speaking, *ending], timeout=countdown.next_s)
            passed_s = countdown.look()
            if not ready:
                self._refuse_standstill(open_ranks, passed_s, task)
            if not ready and countdown.over:
                raise self.silent(open_ranks, limit_s, task)
            for spoke in (s for s in ready if isinstance(s, Channel) and s in speaking):
                answers[speaking[spoke]] = self._receive(speaking[spoke])
            for rank in {ending[e] for e in ready if e in ending} - set(answers):
                if not self.connections[rank].poll(_LAST_WORDS_S):
                    raise self._death(rank)
                answers[rank] = self._receive(rank)
        return [answers[r] for r in range(len(self.specs))]

    def dead(self) -> tuple[int, ...]:
        """See `WorkerGroup.dead`; a worker that was found stopped counts."""
        return tuple(r for r in range(len(self.connections)) if self._lost(r))

    def dismiss(self) -> None:
        """See `WorkerGroup.dismiss`; who still owes an answer would not hear of it."""
        for connection in () if self._owing else self.connections:
            send(connection, ("stop", ()))

    def _refuse_standstill(self, ranks: Sequence[int], passed_s: float, task: str) -> None:
        """Raise where one of these workers has been stopped for too long."""
        for rank in ranks:
            stopped_s = self._stopped_s.get(rank, 0.0) + passed_s if self.stopped(rank) else 0.0
            self._stopped_s[rank] = stopped_s
            if stopped_s > limits.patience(limits.STOPPED_S):
                raise self.stood_still(rank, stopped_s, task)

    def _lost(self, rank: int) -> bool:
        if self._stopped_s.get(rank, 0.0) > limits.patience(limits.STOPPED_S):
            return True
        code = self.exit_code(rank)
        if code == UNKNOWN:
            return not self._has_raised(rank)
        return code not in (None, 0)

    def _has_raised(self, rank: int) -> bool:
        """Whether a worker that has ended said why, which one that was killed does not."""
        try:
            while rank not in self._raised and self.connections[rank].poll():
                self._take(rank)
        except (EOFError, OSError):
            pass
        return rank in self._raised

    def _take(self, rank: int) -> tuple[str, Any]:
        """A worker's next words."""
        status, value = self.connections[rank].recv()
        if status == "error":
            self._raised.add(rank)
        return status, value

    def _receive(self, rank: int) -> Any:
        try:
            status, value = self._take(rank)
        except (EOFError, OSError):
            raise self._death(rank) from None
        if status == "error":
            raise self._first_cause(rank, str(value))
        return value

    def _first_cause(self, rank: int, words: str) -> WorkerError:
        """A peer's death makes the others raise too: blame the dead one if there is one."""
        wait([self.watched(r) for r in range(len(self.specs)) if r != rank], timeout=_SETTLE_S)
        return next((self._death(r) for r in self.dead()), self.raised(rank, words))

    def _death(self, rank: int) -> WorkerError:
        code = self.exit_code(rank, patience_s=1.0)
        if code == UNKNOWN:
            return self.died(rank, "killed, or crashed")
        killed = code is not None and code < 0
        return self.died(
            rank, f"killed by signal {-code}" if killed and code else f"exit code {code}"
        )
