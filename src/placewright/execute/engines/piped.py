"""Orders through connections: each worker has one, and the first death ends every wait."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from placewright.errors import WorkerError
from placewright.execute.connections.channel import Channel, wait
from placewright.execute.engines.group import WorkerGroup
from placewright.execute.engines.sending import send

_LONGEST_WAIT_S = 3600.0
"""A wait without a limit wakes up once an hour: poll() takes no infinite timeouts."""

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

    @abstractmethod
    def watched(self, rank: int) -> Any:
        """What becomes ready when the worker ends: a sentinel or a connection."""

    @abstractmethod
    def exit_code(self, rank: int, patience_s: float = 0.0) -> int | None:
        """How the worker's process ended, waiting for it a little; ``None`` while it lives."""

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
        answers = self.answers(self.limit_s if limit_s is None else limit_s)
        self._owing = False
        return answers

    def answers(self, limit_s: float) -> list[Any]:
        """One answer per worker; the first death or error ends the wait, and so does the limit."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + limit_s
        while len(answers) < len(self.specs):
            open_ranks = [r for r in range(len(self.specs)) if r not in answers]
            speaking = {self.connections[r]: r for r in open_ranks}
            ending = {self.watched(r): r for r in open_ranks}
            left = deadline - time.monotonic()
            ready = wait([*speaking, *ending], timeout=min(max(0.0, left), _LONGEST_WAIT_S))
            if not ready and left <= 0:
                raise self.silent(open_ranks, limit_s)
            for spoke in (s for s in ready if isinstance(s, Channel) and s in speaking):
                answers[speaking[spoke]] = self._receive(speaking[spoke])
            for rank in {ending[e] for e in ready if e in ending} - set(answers):
                if not self.connections[rank].poll(_LAST_WORDS_S):
                    raise self._death(rank)
                answers[rank] = self._receive(rank)
        return [answers[r] for r in range(len(self.specs))]

    def dead(self) -> tuple[int, ...]:
        """See `WorkerGroup.dead`."""
        ranks = range(len(self.connections))
        return tuple(r for r in ranks if self.exit_code(r) not in (None, 0))

    def dismiss(self) -> None:
        """See `WorkerGroup.dismiss`; who still owes an answer would not hear of it."""
        for connection in () if self._owing else self.connections:
            send(connection, ("stop", ()))

    def _receive(self, rank: int) -> Any:
        try:
            status, value = self.connections[rank].recv()
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
        killed = code is not None and code < 0
        return self.died(
            rank, f"killed by signal {-code}" if killed and code else f"exit code {code}"
        )
