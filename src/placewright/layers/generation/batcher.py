"""`Batcher`: the next tokens of several users, computed together and one behind the other.

Each user is a call of `generate` in a thread of its own, which waits for the logits of its next
token. Workers that execute stages one after another serve several groups of users at a time, as
many as there are stages: while the last stage decodes the first group, the first one decodes the
next. Who comes joins a group between two steps; who has ended is missing in the next one. A long
prompt comes in pieces, between which the steps of others leave.

    users' threads               orders to all workers      stage 1     stage 2
    1: token  --+
    2: token  --+-- joined -->   compute [1, 2]             1, 2
    3: prompt ----- alone --->   compute [3]                3           1, 2
    4: token  --+                                           4, 5        3       -> logits of 1, 2
    5: token  --+-- joined -->   compute [4, 5]

There is no thread beside those of the users. Whoever waits, and finds that nobody collects answers,
collects those of the oldest order, whosever they are.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewright.errors import RunError, WorkerLostError
from placewright.runtime.engines.engine import WorkerGroup

Arrays = Mapping[str, np.ndarray[Any, Any]]

JOINING = {"input_ids", "attention_mask", "position_ids", "cache_position"}
"""Tensors of a step that can be joined with others; further ones may be of all rows together."""

SMALL_BYTES = 1 << 13
"""A connection takes a few orders of this size, and answers, before it is read."""

LEAST_S, SHARE = 1e-3, 0.25
"""How long those that have a token wait for others of their group: a share of a step, at least."""


@dataclass(slots=True, eq=False)
class Waiting:
    """What a thread waits for: answers of all workers to an order, or an error.

    Attributes
    ----------
    name, arguments
        Of an order to all workers.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    done: bool = False
    answers: Sequence[Any] = ()
    error: BaseException | None = None
    since_s: float = field(default_factory=time.perf_counter)

    def order(self) -> tuple[Any, ...]:
        """Arguments of the order, as things are now."""
        return self.arguments


class Step(Waiting):
    """The next tokens of one user.

    Parameters
    ----------
    tensors
        Of the new tokens.
    behind
        Those, or all tokens: where the workers have no caches of the others, or, as its argument
        says, are not to use them.

    Attributes
    ----------
    placement
        See `Batcher.placement`: where it was computed.
    prompt
        Whether it has several tokens.
    """

    def __init__(
        self,
        user: int,
        tensors: Arrays,
        options: Mapping[str, int],
        behind: Callable[[bool], Arrays],
    ) -> None:
        super().__init__("compute")
        self.user, self.tensors, self.options = user, tensors, options
        self.placement: int | None = None
        self._behind, self._anew = behind, False
        self.rows, count = tensors["input_ids"].shape
        self.prompt = count > 1
        mask, positions = tensors.get("attention_mask"), tensors.get("position_ids")
        self._joins = (
            count == 1
            and tensors.keys() <= JOINING
            and (positions is not None and positions.ndim == 2)
            and (mask is None or bool(mask.all()))
        )

    @property
    def joins(self) -> bool:
        """Whether it can be computed together with those of other users."""
        return self._joins and not self._anew and self._behind(False) is self.tensors

    def begin_anew(self) -> None:
        """Compute all tokens so far, alone: caches are not what they should be."""
        self._anew, self.options = True, {**self.options, "anew": 1}

    def order(self) -> tuple[Any, ...]:
        """See `Waiting.order`."""
        if self.joins:
            return _joined([self])
        return (self.user,), (self.rows,), dict(self._behind(self._anew)), dict(self.options)


def _joined(steps: Sequence[Step]) -> tuple[Any, ...]:
    """Arguments of one order for all of them; one new token sees all, so no mask is needed."""
    names = steps[0].tensors.keys() - {"attention_mask", "cache_position"}
    tensors = {name: np.concatenate([each.tensors[name] for each in steps]) for name in names}
    users, rows = tuple(each.user for each in steps), tuple(each.rows for each in steps)
    return users, rows, tensors, dict(steps[0].options)


@dataclass(frozen=True, slots=True, eq=False)
class _Flying:
    """An order on its way, and whose it is."""

    whose: Sequence[Waiting]
    large: bool
    since_s: float

    @property
    def computes(self) -> bool:
        return isinstance(self.whose[0], Step)


class Batcher:
    """Gives orders to workers for many threads.

    Parameters
    ----------
    group
        The workers.
    groups
        Of users, on their way at the same time.
    joins
        Whether the model can compute tokens of several users together.
    recover
        Called where a worker is lost: returns other workers, or raises; see `WorkerLostError`.

    Attributes
    ----------
    placement
        Counts how often the layers were placed: caches of another placement are gone.
    """

    def __init__(
        self,
        group: WorkerGroup,
        groups: int,
        *,
        joins: bool,
        recover: Callable[[WorkerLostError], WorkerGroup],
    ) -> None:
        self.group, self.groups, self.joins = group, groups, joins
        self.placement = 0
        self._recover = recover
        self._lost: Exception | None = None
        self._changed = threading.Condition()
        self._waiting: deque[Waiting] = deque()
        self._flying: deque[_Flying] = deque()
        self._collecting, self._held, self._users, self._prompts = False, 0, 0, 0
        self._step_s = self._free_s = 0.0

    @property
    def users(self) -> int:
        """Whose texts are under way."""
        return self._users

    @contextmanager
    def user(self) -> Iterator[None]:
        """One more user for the length of the block."""
        with self._changed:
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._launch()
                self._changed.notify_all()

    @contextmanager
    def prompt(self) -> Iterator[None]:
        """A user has a prompt for the length of the block: tokens of others do not wait for it."""
        with self._changed:
            self._prompts += 1
        try:
            yield
        finally:
            with self._changed:
                self._prompts -= 1

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Nothing is on its way inside the block, and nothing leaves."""
        with self._changed:
            self._held += 1
            try:
                self._until(lambda: not self._flying and not self._collecting)
                yield
            finally:
                self._held -= 1
                self._launch()
                self._changed.notify_all()

    def order(self, name: str, *arguments: Any) -> list[Any]:
        """Give all workers an order, behind those that are on their way; the answers."""
        return list(self.answers(Waiting(name, arguments)))

    def answers(self, what: Waiting) -> Sequence[Any]:
        """Wait for them.

        Raises `WorkerError`: a worker died or raised; `RunError`: the model raised at a `Step`.
        """
        with self._changed:
            self._waiting.append(what)
            self._launch()
            try:
                self._until(lambda: what.done)
            finally:
                if what in self._waiting:  # broken off by Ctrl-C
                    self._waiting.remove(what)
        if what.error is not None:
            raise what.error
        return what.answers

    def _until(self, over: Callable[[], bool]) -> None:
        """Wait; let what can leave leave, and collect answers where nobody else does."""
        while not over():
            if self._flying and not self._collecting:
                self._collect()
            else:
                self._changed.wait(self._patience_s() if self._waiting else None)
            self._launch()

    def _launch(self) -> None:
        """Give orders for what waits, in the order of its coming."""
        while self._waiting and not self._held:
            if self._flying and self._flying[-1].large:
                return  # until it was read: it may still be on its way into the connections
            found = self._next()
            if not found or not self._post(found):
                return

    def _next(self) -> list[Waiting]:
        """What leaves now; nothing where it is better to wait."""
        if order := next((each for each in self._waiting if not isinstance(each, Step)), None):
            self._waiting.remove(order)
            return [order]
        if sum(each.computes for each in self._flying) >= self.groups:
            return []
        steps = [each for each in self._waiting if isinstance(each, Step)]
        joining = [each for each in steps if self.joins and each.joins]
        alone = [each for each in steps if each not in joining][:1]
        # Who came first: of a prompt's pieces each is later than the tokens that wait.
        ready = [each for each in (alone, self._group(joining)) if each]
        found = min(ready, key=lambda each: each[0].since_s, default=[])
        for each in found:
            self._waiting.remove(each)
        return [*found]

    def _group(self, steps: Sequence[Step]) -> list[Step]:
        """Those of several users that leave together; nothing where it is better to wait."""
        size = max(1, math.ceil((self._users - self._prompts) / self.groups))
        if not steps or (len(steps) < size and self._others_may_come(steps[0])):
            return []
        return [each for each in steps if each.options == steps[0].options][:size]

    def _others_may_come(self, first: Step) -> bool:
        """Whether to wait for users who have got a token and think about it."""
        flying = [each for flown in self._flying for each in flown.whose]
        here = [x for x in (*self._waiting, *flying) if isinstance(x, Step) and not x.prompt]
        away = self._users - self._prompts - len(here)
        # From when it could leave: who got the last token would else be left alone for good.
        since_s = max(first.since_s, self._free_s)
        return away > 0 and time.perf_counter() - since_s < self._patience_s()

    def _patience_s(self) -> float:
        return max(LEAST_S, SHARE * self._step_s)

    def _post(self, whose: list[Waiting]) -> bool:
        """Give one order for them; whether it has left."""
        steps = [each for each in whose if isinstance(each, Step)]
        arguments = _joined(steps) if len(steps) > 1 else whose[0].order()
        large = _size(arguments) > SMALL_BYTES
        if large and self._flying:
            self._waiting.extendleft(reversed(whose))
            return False
        try:
            if self._lost is not None:
                raise self._lost
            self.group.post(whose[0].name, [arguments] * len(self.group.specs))
        except Exception as error:
            self._fail(whose, error)
            return True
        for each in steps:
            each.placement = self.placement
        self._flying.append(_Flying(whose, large, time.perf_counter()))
        return True

    def _collect(self) -> None:
        """Collect the answers to the oldest order, without holding others up meanwhile."""
        self._collecting = True
        self._changed.release()
        answers, failed = [], None
        try:
            answers = self.group.collect_answers()
        except BaseException as error:
            failed = error
        finally:
            self._changed.acquire()
            self._collecting = False
        if failed is not None:
            self._failed(failed)
        else:
            self._deliver(self._flying.popleft(), answers)
        self._changed.notify_all()

    def _deliver(self, flown: _Flying, answers: Sequence[Any]) -> None:
        """Give each thread its part."""
        steps = [each for each in flown.whose if isinstance(each, Step)]
        raised = [rank for rank, each in enumerate(answers) if steps and isinstance(each, str)]
        if raised and len(steps) > 1:  # one of them is the reason, and ends alone
            for each in reversed(steps):
                each.begin_anew()
                self._waiting.appendleft(each)
            return
        if raised:
            found = self.group.raised_error(raised[0], answers[raised[0]])
            # No `WorkerError`: the worker goes on.
            what = "the model raised an error, which ends this text alone"
            self._fail(steps, RunError(what, where=found.where, by=found.by, hint=found.hint))
            return
        for waiting in flown.whose:
            waiting.answers, waiting.done = answers, True
        if not steps:
            return
        self._free_s = time.perf_counter()
        if not steps[0].prompt:
            self._step_s = self._free_s - flown.since_s
        logits = next(each for each in answers if each is not None)
        ends = np.cumsum([each.rows for each in steps])[:-1]
        for each, own in zip(steps, np.split(logits, ends), strict=True):
            each.answers = [own]

    def _failed(self, error: BaseException) -> None:
        """End what is on its way, or begin it again on the workers that are left."""
        flying = [each for flown in self._flying for each in flown.whose]
        self._flying.clear()
        try:
            if not isinstance(error, WorkerLostError):
                raise error
            self.group = self._recover(error)
        except BaseException as final:
            if isinstance(error, WorkerLostError) and isinstance(final, Exception):
                self._lost = final
            for_others = final if isinstance(final, Exception) else self.group.interrupted_error()
            self._fail(flying, for_others)
            self._changed.notify_all()
            if not isinstance(final, Exception):
                raise  # Ctrl-C is this thread's own
            return
        # Caches are gone, so orders that change them have nothing left to do.
        for each in flying:
            each.done = not isinstance(each, Step)
        self._waiting.extendleft(each for each in reversed(flying) if not each.done)

    def _fail(self, whose: Sequence[Waiting], error: BaseException) -> None:
        for each in whose:
            each.error, each.done = error, True


def _size(arguments: Sequence[Any]) -> int:
    """Bytes of arrays in the arguments of an order."""
    found = 0
    for each in arguments:
        values = each.values() if isinstance(each, Mapping) else (each,)
        found += sum(value.nbytes for value in values if isinstance(value, np.ndarray))
    return found
