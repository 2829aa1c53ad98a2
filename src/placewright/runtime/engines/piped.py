"""Orders through connections: each worker has one, and the first death ends every wait.

There are two ways to give orders: `order` gives one to every worker and waits for all answers, or
`post` several and `collect_answers` in their order; `give`, `ready` and `take` serve workers one by
one, for callers that go on when one of them ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from placewright.errors import WorkerError
from placewright.runtime import limits
from placewright.runtime.connections import Channel, send, wait
from placewright.runtime.engines.engine import WorkerGroup
from placewright.runtime.engines.process import UNKNOWN

_LAST_ANSWER_S = 0.1
"""What a worker sent before it ended may arrive later than its end is seen."""

_SETTLE_S = 0.3
"""Until it is known which worker died first when several raise errors."""


class PipedGroup(WorkerGroup):
    """Workers that read orders from connections, and whose ends can be waited for.

    `connections`: by rank, to the workers.
    """

    connections: list[Channel]

    def __init__(self) -> None:
        self.connections = []
        self._posted: deque[str] = deque()
        self._broken = self._sending = False
        self._stopped_s: dict[int, float] = {}
        self._raised: set[int] = set()

    @abstractmethod
    def watched(self, rank: int) -> Any:
        """What becomes ready when the worker ends: a sentinel or a connection."""

    @abstractmethod
    def exit_code(self, rank: int, patience_s: float = 0.0) -> int | None:
        """How the worker's process ended, waiting for it a little; ``None`` while it lives."""

    def memory_of(self, rank: int) -> float | None:
        """Bytes for its part that a worker had in all when it was killed for asking for more.

        ``None`` where it ended by anything else, as far as is known.
        """
        return None

    def stopped(self, rank: int) -> bool:
        """Whether the worker's process is stopped (SIGSTOP), where that can be known."""
        return False

    def post(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """See `WorkerGroup.post`.

        After an order that was broken off, by an error or by Ctrl-C, answers to it may still
        come, and would be taken for answers to the next one.
        """
        if self._broken or self._sending:
            raise self.interrupted_error()
        # Set before anything is sent, and reset when all is: whatever comes between, Ctrl-C too,
        # leaves it set.
        self._sending = True
        pairs = zip(range(len(self.connections)), arguments, strict=True)
        sent = [self.give(rank, name, *values) for rank, values in pairs]
        self.sent_whole = all(sent)
        self._posted.append(name)
        self._sending = False

    @property
    def unanswered(self) -> int:
        """See `WorkerGroup.unanswered`."""
        return len(self._posted)

    def collect_answers(self, limit_s: float | None = None) -> list[Any]:
        """See `WorkerGroup.collect_answers`."""
        complete = False
        try:
            limit_s = self.limit_s if limit_s is None else limit_s
            answers = self.answers(limit_s, self.describe(self._posted[0]))
            self._posted.popleft()
            complete = True
        finally:
            # Not before: while answers are collected, others may post.
            self._broken = self._broken or not complete
        return answers

    def answers(self, limit_s: float, task: str) -> list[Any]:
        """One answer per worker.

        The first death or error ends the wait, and so does the limit, or a worker that is stopped.
        """
        answers: dict[int, Any] = {}
        countdown = limits.Countdown(limit_s)
        while len(answers) < len(self.specs):
            waiting = [r for r in range(len(self.specs)) if r not in answers]
            speaking, ended = self.ready(waiting, countdown.next_s)
            passed_s = countdown.look()
            # Only where nothing happened: who has an answer at hand is not blamed for being
            # stopped, or late.
            if not speaking and not ended:
                for rank in self.stopped_too_long(waiting, passed_s):
                    raise self.stopped_error(rank, self._stopped_s[rank], task)
                if countdown.over:
                    raise self.silent_error(waiting, limit_s, task)
            for rank in speaking:
                answers[rank] = self.take(rank)
            # An answer and the end behind it may be seen in either order, so the last answer is
            # asked for.
            for rank in set(ended) - set(answers):
                if not self.connections[rank].poll(_LAST_ANSWER_S):
                    raise self._death(rank)
                answers[rank] = self.take(rank)
        return [answers[r] for r in range(len(self.specs))]

    def answers_of_the_living(self, ranks: Iterable[int], limit_s: float) -> dict[int, Any]:
        """Answers by rank, without those that die, raise, or take longer."""
        answers: dict[int, Any] = {}
        waiting, countdown = set(ranks), limits.Countdown(limit_s)
        while waiting and not countdown.over:
            speaking, ended = self.ready(waiting, countdown.next_s)
            countdown.look()
            for rank in speaking:
                with suppress(EOFError, OSError):
                    status, value = self.receive(rank)
                    if status == "ok":
                        answers[rank] = value
            # Who ended and had something to say is in both; a later answer is not waited for.
            waiting -= {*speaking, *ended}
        return answers

    def give(self, rank: int, name: str, *arguments: Any) -> bool:
        """Give one worker an order; returns before it has read it. Whether it is sent whole.

        To one that has died nothing is given: `ready` finds that out.
        """
        return send(self.connections[rank], (name, arguments))

    def ready(self, ranks: Iterable[int], limit_s: float) -> tuple[list[int], list[int]]:
        """Which of these workers have an answer, and which have ended, before so long."""
        ranks = list(ranks)
        speaking = {self.connections[r]: r for r in ranks}
        ending = {self.watched(r): r for r in ranks}
        found = wait([*speaking, *ending], timeout=limit_s)
        spoke = [speaking[f] for f in found if isinstance(f, Channel) and f in speaking]
        return spoke, [ending[f] for f in found if f in ending]

    def take(self, rank: int) -> Any:
        """A worker's answer.

        Raises `WorkerError`: it has died, or raised an error; where another one died, that one is
        named.
        """
        try:
            status, value = self.receive(rank)
        except (EOFError, OSError):
            raise self._death(rank) from None
        if status == "error":
            raise self._first_cause(rank, str(value))
        return value

    def stopped_too_long(self, ranks: Sequence[int], passed_s: float) -> list[int]:
        """Those of these workers that have been stopped for too long.

        `passed_s`: seconds since the last call.
        """
        for rank in ranks:
            before_s = self._stopped_s.get(rank, 0.0)
            self._stopped_s[rank] = before_s + passed_s if self.stopped(rank) else 0.0
        limit_s = limits.patience(limits.STOPPED_S)
        return [rank for rank in ranks if self._stopped_s[rank] > limit_s]

    def dead(self) -> tuple[int, ...]:
        """See `WorkerGroup.dead`; a worker that was found stopped counts."""
        return tuple(r for r in range(len(self.connections)) if self._lost(r))

    def dismiss(self) -> None:
        """See `WorkerGroup.dismiss`; one that still owes an answer would not read it."""
        for connection in () if self._broken or self._sending or self._posted else self.connections:
            send(connection, ("stop", ()))

    def _lost(self, rank: int) -> bool:
        if self._stopped_s.get(rank, 0.0) > limits.patience(limits.STOPPED_S):
            return True
        code = self.exit_code(rank)
        # A worker that raised ends with 0, which nobody has reported: only its error tells it from
        # one that was killed.
        if code == UNKNOWN:
            return not self._has_raised(rank)
        return code not in (None, 0)

    def _has_raised(self, rank: int) -> bool:
        """Whether a worker that has ended sent an error, which one that was killed does not."""
        try:
            while rank not in self._raised and self.connections[rank].poll():
                self.receive(rank)
        except (EOFError, OSError):
            pass
        return rank in self._raised

    def receive(self, rank: int) -> tuple[str, Any]:
        """A worker's next frame: "ok" and the answer, or "error" and the traceback.

        Raises `EOFError`, `OSError`: it has died.
        """
        status, value = self.connections[rank].recv()
        if status == "error":
            self._raised.add(rank)
        return status, value

    def _first_cause(self, rank: int, traceback: str) -> WorkerError:
        """A peer's death makes the others raise too: blame the dead one if there is one."""
        # The error of a peer may arrive before the kernel has reported the death that caused it.
        wait([self.watched(r) for r in range(len(self.specs)) if r != rank], timeout=_SETTLE_S)
        return next((self._death(r) for r in self.dead()), self.raised_error(rank, traceback))

    def _death(self, rank: int) -> WorkerError:
        code = self.exit_code(rank, patience_s=1.0)
        if code == UNKNOWN:
            return self.died_error(rank, "killed, or crashed")
        killed = code is not None and code < 0
        error = self.died_error(
            rank, f"killed by signal {-code}" if killed and code else f"exit code {code}"
        )
        held = self.memory_of(rank) if killed else None
        if held is None:
            return error
        from placewright.runtime.memory import out_of_memory

        stated = str(out_of_memory(int(held), 0))
        return WorkerError(error.what, where=error.where, by=error.by, hint=stated)
