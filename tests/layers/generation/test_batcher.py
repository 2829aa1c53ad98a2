"""Several users in flight: each gets the tokens that it would get alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from placewright.cluster.cluster import Cluster
from placewright.errors import RunError, WorkerError, WorkerLostError
from placewright.layers.generation.batcher import SMALL_BYTES, Batcher, Step
from placewright.layers.generation.generator import PROGRAM, Generator
from placewright.runtime.engines.engine import WorkerGroup
from placewright.runtime.engines.local import LocalGroup
from tests.layers.generation.test_generator import THREE, boards, model_of, users

transformers = pytest.importorskip("transformers")


def test_all_go_on_where_layers_are_placed_otherwise_and_where_a_worker_dies() -> None:
    """In the middle of six texts."""
    model, asked = model_of("llama"), users(6)
    expected = [model.generate(**each) for each in asked]

    def replan(cluster: Cluster) -> dict[str, tuple[int, int]]:
        return {cluster.device_names[0]: (0, 3), cluster.device_names[-1]: (3, 4)}

    with Generator(model, {"a": (0, 2), "b": (2, 4)}, THREE, replan=replan) as placed:
        assert isinstance(placed.group, LocalGroup)
        victim, seen = placed.group.processes[1], threading.Barrier(2)

        def moves(ids: Any, scores: Any, **rest: Any) -> Any:
            """After the fifth token of the last user."""
            if ids.shape[1] == asked[-1]["input_ids"].shape[1] + 5:
                seen.wait(60)
            if ids.shape[1] == asked[-1]["input_ids"].shape[1] + 10:
                victim.kill()
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        criteria = [transformers.StoppingCriteriaList() for _ in asked[:-1]]
        criteria.append(transformers.StoppingCriteriaList([moves]))
        with ThreadPoolExecutor(6) as go:
            found = [
                go.submit(placed.generate, **each, stopping_criteria=own)
                for each, own in zip(asked, criteria, strict=True)
            ]
            seen.wait(60)
            placed.load({"b": (0, 1), "c": (1, 3), "a": (3, 4)})
            for each, tokens in zip(found, expected, strict=True):
                assert torch.equal(each.result(), tokens)
        assert placed.lost == ["b"]


def test_the_error_of_a_lost_worker_is_everybodys() -> None:
    """And of who comes later."""
    asked = users(3)
    with Generator(model_of("llama"), {"a": (0, 2), "b": (2, 4)}, boards("a", "b")) as placed:
        assert isinstance(placed.group, LocalGroup)
        victim = placed.group.processes[0]

        def kill(ids: Any, scores: Any, **rest: Any) -> Any:
            victim.kill()
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        stop = transformers.StoppingCriteriaList([kill])
        with ThreadPoolExecutor(3) as go:
            found = [go.submit(placed.generate, **x, stopping_criteria=stop) for x in asked]
            for each in found:
                with pytest.raises(WorkerError, match="'a'"):
                    each.result()
        with pytest.raises(WorkerLostError, match="'a'"):
            placed.generate(**asked[0])


class _Echo:
    """A group whose workers answer with zeros; `orders`: users of each.

    `bad`: at whose tokens a worker raises.
    """

    specs = (None, None)
    names = ("a", "b")
    program = PROGRAM
    raised_error = WorkerGroup.raised_error
    worker_name = WorkerGroup.worker_name

    def __init__(self) -> None:
        self.orders: list[tuple[int, ...]] = []
        self.on_their_way: list[tuple[Any, ...]] = []
        self.most, self.bad = 0, 0
        self.go = threading.Semaphore(0)

    def post(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """See `WorkerGroup.post`."""
        self.orders.append(arguments[0][0] if name == "compute" else (name,))
        self.on_their_way.append((name, *arguments[0]))
        self.most = max(self.most, len(self.on_their_way))

    def collect_answers(self) -> list[Any]:
        """See `WorkerGroup.collect_answers`."""
        assert self.go.acquire(timeout=30)
        name, *arguments = self.on_their_way.pop(0)
        if name == "fail":
            raise WorkerError("it failed")
        if name == "compute" and self.bad in arguments[0]:
            return ["Traceback:\nValueError: it raised", None]
        return [None, np.zeros((sum(arguments[1]), 1, 4)) if name == "compute" else 1]


def step(user: int, tokens: int = 1, rows: int = 1) -> Step:
    """Of a user."""
    ids = np.full((rows, tokens), user)
    tensors = {"input_ids": ids, "position_ids": ids, "attention_mask": ids > 0}
    return Step(user, tensors, {}, lambda anew: tensors)


def batcher(group: Any) -> Batcher:
    """For two groups of users."""

    def lost(error: WorkerLostError) -> Any:
        raise error

    return Batcher(group, 2, joins=True, recover=lost)


def until(made: Batcher, group: _Echo, *, orders: int, waiting: int) -> None:
    """So many orders have left, and so many steps wait."""
    ends_s = time.perf_counter() + 30
    while (len(group.orders), len(made._waiting)) != (orders, waiting):
        assert time.perf_counter() < ends_s
        time.sleep(1e-3)


def test_groups_fill_the_stages() -> None:
    """Prompts alone, tokens by twos, and no more than two orders on their way."""
    group = _Echo()
    made = batcher(group)
    made._users = 4
    with ThreadPoolExecutor(4) as go:
        first = [go.submit(made.answers, step(k, tokens=3)) for k in (1, 2, 3, 4)]
        group.go.release(4)
        assert [each.result()[0].shape for each in first] == [(1, 1, 4)] * 4
        assert sorted(group.orders) == [(1,), (2,), (3,), (4,)]
        group.orders.clear()
        made._step_s = 120.0  # half a minute of patience: threads start late on a busy machine
        second = [go.submit(made.answers, step(k, rows=k)) for k in (1, 2, 3, 4)]
        until(made, group, orders=2, waiting=0)
        group.go.release(2)
        assert [each.result()[0].shape[0] for each in second] == [1, 2, 3, 4]
    assert [len(each) for each in group.orders] == [2, 2]
    assert group.most == 2


def test_pieces_of_a_prompt_and_tokens_take_turns() -> None:
    """Nobody waits for the token of who has a prompt, nor for the whole of it."""
    group = _Echo()
    made = batcher(group)
    made.groups, made._users = 1, 3

    def text(user: int, tokens: int, count: int) -> None:
        with made.prompt() if tokens > 1 else nullcontext():
            for _ in range(count):
                made.answers(step(user, tokens))

    with ThreadPoolExecutor(3) as go:
        running = [go.submit(text, 1, 5, 3)]
        until(made, group, orders=1, waiting=0)
        running += [go.submit(text, user, 1, 2) for user in (2, 3)]
        for orders, waiting in ((1, 2), (2, 1), (3, 2), (4, 1)):
            until(made, group, orders=orders, waiting=waiting)
            group.go.release()
        group.go.release()
        for each in running:
            each.result()
    assert [sorted(each) for each in group.orders] == [[1], [2, 3], [1], [2, 3], [1]]


def test_who_got_the_last_token_is_waited_for() -> None:
    """By those who have waited long already: left alone, it would be alone in every round."""
    made = batcher(_Echo())
    made._users, made._step_s = 8, 4.0  # a second of patience
    with made._changed:
        made._waiting.extend(step(k) for k in (1, 2, 3))
        for each in made._waiting:
            each.since_s -= 3600.0
        made._free_s = time.perf_counter()
        assert made._next() == []
        made._free_s -= 3600.0
        assert len(made._next()) == 3


def test_a_large_order_leaves_alone() -> None:
    """While nothing else is on its way: a connection takes no more before it is read."""
    group = _Echo()
    made = batcher(group)
    with ThreadPoolExecutor(3) as go:
        small = go.submit(made.answers, step(1, tokens=2))
        while not group.on_their_way:
            pass
        large = go.submit(made.answers, step(2, tokens=SMALL_BYTES))
        behind = go.submit(made.answers, step(3, tokens=2))
        group.go.release(3)
        assert all(len(each.result()) == 1 for each in (small, large, behind))
    assert group.most <= 2
    assert group.orders[0] == (1,)


def test_an_error_reaches_all_that_are_on_their_way() -> None:
    """An order's own, and those behind it."""
    group = _Echo()
    made = batcher(group)
    with ThreadPoolExecutor(2) as go:
        bad = go.submit(made.order, "fail")
        while not group.on_their_way:
            pass
        behind = go.submit(made.answers, step(1, tokens=2))
        while len(group.on_their_way) < 2:
            pass
        group.go.release(2)
        for each in (bad, behind):
            with pytest.raises(WorkerError, match="it failed"):
                each.result()
    with made.quiet():
        assert not made._flying


def test_one_of_a_group_whose_tokens_raise_ends_alone() -> None:
    """The others are computed again, with all of their tokens and without what caches they have."""
    group = _Echo()
    group.bad = 2
    made = batcher(group)
    made.groups, made._users, made._step_s = 1, 3, 120.0
    steps = [step(k) for k in (1, 2, 3)]
    with ThreadPoolExecutor(3) as go:
        found = [go.submit(made.answers, each) for each in steps]
        group.go.release(4)
        assert [each.result()[0].shape for each in (found[0], found[2])] == [(1, 1, 4)] * 2
        with pytest.raises(RunError, match="ValueError: it raised"):
            found[1].result()
    together, *alone = group.orders
    assert sorted(together) == [1, 2, 3]
    assert sorted(alone) == [(1,), (2,), (3,)]
    assert [each.options for each in steps] == [{"anew": 1}] * 3


def test_tokens_after_a_group_has_failed_are_those_of_one_process() -> None:
    """One order of several users has positions that cannot be: caches are half of them grown."""
    model, asked = model_of("llama"), users(4)
    expected = [model.generate(**each) for each in asked]
    with Generator(model, {"a": (0, 2), "b": (2, 4)}, boards("a", "b"), groups=1) as placed:
        post, damaged = placed.group.post, []

        def damage(name: str, arguments: list[tuple[Any, ...]]) -> None:
            if name == "compute" and len(arguments[0][0]) > 1 and len(damaged) < 2:
                damaged.append(arguments[0][0])
                of, rows, tensors, options = arguments[1]
                wrong = tensors | {"position_ids": tensors["position_ids"][:1, :0]}
                arguments[1] = of, rows, wrong, options  # the second stage alone raises
            post(name, arguments)

        placed.group.post = damage  # type: ignore[method-assign,assignment]
        with ThreadPoolExecutor(4) as go:
            found = [go.submit(placed.generate, **each) for each in asked]
            for each, tokens in zip(found, expected, strict=True):
                assert torch.equal(each.result(), tokens)
        assert len(damaged) == 2
