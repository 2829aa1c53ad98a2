"""The worker program that keeps layers of a language model, and their caches.

A process executes the stages of its devices, one after another. Between stages go the activations
of the new tokens, by the ways that tensors of placed steps go (`placewright.runtime.messages`):

    stage 1, device a           stage 2, device b
         | -- 0: of users 1, 2 --> |     numbered by what a pair has exchanged: several are on
         | -- 1: of user 3 ------> |     their way while either computes

Where a stage raises, its activations are zeros, so that the pair goes on counting alike, and the
answer is the traceback: that ends one user's text, not the worker.
"""

from __future__ import annotations

import copy
import gc
import math
import random
import statistics
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from placewright.graph.graph import TensorSpec
from placewright.io.tensor_files import StoredTensor, stored_tensors
from placewright.layers.generation.stage import Stage, StageOrder, needed_names
from placewright.runtime.emulation import Stretch, precise_sleeps
from placewright.runtime.messages import Exchange, join, nccl_group
from placewright.runtime.probe import LinkSeconds, probe_links
from placewright.runtime.program import Worker, WorkerProgram, order
from placewright.runtime.specs import THROUGH_HOST
from placewright.runtime.wire import Message

# Three seconds, once: in the process that workers are forked from.
with suppress(ImportError):
    import transformers.modeling_utils  # noqa: F401

FLUSHED_BYTES = 1 << 26
"""More than a processor's caches hold, which are shared with what others compute."""

PAUSE_S = 0.02
"""Two periods of a CPU quota; up to twice as long, so that steps begin anywhere in a period."""

MOST_STEPS = 32
"""Of a stage that is timed without pauses."""

NUMBERS = 1 << 20
"""Of messages of one pair of devices; more are never on their way."""

MOST_TIMES = 4096
"""Of the newest computations that are kept."""


def middle_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter.

    Under a CPU quota times are whole periods and a rest: their median jumps by a period.
    """
    quarter = len(values) // 4
    return statistics.fmean(sorted(values)[quarter : len(values) - quarter])


@dataclass(slots=True)
class _Placed:
    """A stage on one of this process's devices.

    `caches`: by user. `spent_s`: what the newest computations took, waits for others left out.
    """

    stage: Stage
    order: StageOrder
    device: int
    place: torch.device
    caches: dict[int, Any] = field(default_factory=dict)
    spent_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_TIMES))


class StageWorker(WorkerProgram):
    """Stages of a language model; `placewright.layers.generation.generator` orders."""

    messages = (StageOrder, StoredTensor)
    imports_much = True

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.spec = spec = worker.spec
        torch.set_num_threads(spec.threads)
        warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
        precise_sleeps()
        join(spec)
        self.devices = spec.layout.device_group(spec.rank)
        first = spec.layout.devices[self.devices[0]]
        if first.is_gpu:
            torch.cuda.set_device(first.torch_device)
        self.exchange = Exchange(spec.layout, spec.rank, spec.links, nccl_group(spec))
        self.stretch = Stretch(spec.stretch)
        self.placed: list[_Placed] = []
        self._sent: Counter[tuple[int, int]] = Counter()
        self._taken: Counter[tuple[int, int]] = Counter()

    @order("loading its layers")
    def load(
        self,
        orders: tuple[tuple[StageOrder, ...], ...],
        file: str,
        stored: Mapping[str, StoredTensor],
    ) -> list[int]:
        """Make stages of tensors in a file, or of those that are `stored`, by device.

        Without either of random numbers, where only the time counts. Returns the bytes of each.
        """
        self.placed.clear()
        gc.collect()  # a stage is in cycles with its hooks: there may be no room for two
        # The file was written for this process; what is stored was opened by the one that orders,
        # so that all workers read the same version.
        given = stored_tensors(file) if file else stored
        held = [
            sum(self._load(device, each, given) for each in asked)
            for device, asked in zip(self.devices, orders, strict=True)
        ]
        self.placed.sort(key=lambda each: each.order.start)
        return held

    def _load(self, device: int, asked: StageOrder, given: Mapping[str, StoredTensor]) -> int:
        stage, place = Stage(asked), torch.device(self.spec.layout.devices[device].torch_device)
        wanted = set(needed_names(stage))
        tensors = {name: given[name].read().to(place) for name in wanted & given.keys()}
        if not given:
            tensors = dict(stage.random_tensors())
        stage.load(tensors, place)
        placed = _Placed(stage, asked, device, place)
        self.placed.append(placed)
        if not asked.part:
            with stage.checked():
                self._of_nobody(placed, [-1], 1, 0)
            placed.caches.clear()
            placed.spent_s.clear()
        held = (*stage.model.parameters(), *stage.model.buffers())
        return sum({each.data_ptr(): each.nbytes for each in held}.values())  # tied ones once

    @order("computing a token")
    def compute(
        self,
        users: Sequence[int],
        rows: Sequence[int],
        tensors: Mapping[str, np.ndarray[Any, Any]],
        options: Mapping[str, int],
    ) -> np.ndarray[Any, Any] | str | None:
        """The next tokens of users; logits from the last stage, shape (rows, kept, vocabulary).

        Parameters
        ----------
        users, rows
            One, or several that have one new token each, and rows of each.
        tensors, options
            What the whole model is called with; of several users without a mask. With
            ``encoder``, that part of it; with ``anew``, without the caches of these users.

        Returns
        -------
        array, str or None
            A traceback where a stage here has raised.
        """
        part = {True: ("encoder",), False: ("", "decoder")}["encoder" in options]
        if "anew" in options:
            for user in users:
                self.forget(user)
        # What is known of messages, and what is logged of them, is of those that were sent before.
        self.exchange.expect(())
        self.exchange.start()
        answer: np.ndarray[Any, Any] | None = None
        failure = ""
        for each in self.placed:
            if each.order.part not in part:
                continue
            passed = _activations(each, tensors["input_ids"].shape)
            hidden = self._received(each, passed)
            try:
                found = self._computed(each, users, rows, hidden, _inputs(each, tensors, options))
                if each.order.following is None:
                    answer = found.float().cpu().numpy()
                elif found.shape != passed.shape:
                    made = tuple(found.shape)
                    raise ValueError(f"activations of shape {made}, not {passed.shape}")
            except Exception:
                failure = failure or traceback.format_exc()
                found = torch.zeros(passed.shape, dtype=getattr(torch, passed.dtype))
            if each.order.following is not None:
                self._send(each, found.to(each.place), each.order.following)
        return failure or answer

    def _computed(
        self,
        each: _Placed,
        users: Sequence[int],
        rows: Sequence[int],
        hidden: Tensor | None,
        inputs: dict[str, Any],
    ) -> Tensor:
        """What a stage makes of them, on its device as it is emulated."""
        if each.order.part != "encoder":
            for user in users:
                if user not in each.caches:
                    each.caches[user] = each.stage.new_cache()
        caches = [each.caches.get(user) for user in users]
        start_s = time.perf_counter()
        self.stretch.begin()
        if len(users) > 1:
            found = each.stage.together(hidden, inputs, caches, rows)
        else:
            found = each.stage(hidden, inputs, caches[0])
        if each.place.type == "cuda":
            torch.cuda.synchronize(each.place)
        self.stretch.pay()
        each.spent_s.append(time.perf_counter() - start_s)
        return found

    @order("reading its times")
    def times(self) -> list[list[float]]:
        """Seconds by device of what was computed since the last time, waits for others left out."""
        found: dict[int, list[float]] = {device: [] for device in self.devices}
        for each in self.placed:
            found[each.device] += each.spent_s
            each.spent_s.clear()
        return list(found.values())

    @order("timing layers")
    def time_stage(
        self, tokens: int, steps: int, users: int, least_s: float
    ) -> list[tuple[float, float] | None]:
        """Seconds by device of a prompt, and of a token behind it; ``None`` without a stage.

        Before each there is what is there in a chain of stages: caches of the processor that hold
        something else, and, for one stream, a pause, in which a CPU quota is filled up.

        Parameters
        ----------
        users
            Whose tokens are computed together.
        least_s
            Without pauses for so long at least, so that others compute meanwhile; 0: with pauses.
        """
        by_device = {each.device: each for each in self.placed}
        return [
            self._timed(by_device[device], tokens, steps, users, least_s)
            if device in by_device
            else None
            for device in self.devices
        ]

    def _timed(
        self, each: _Placed, tokens: int, steps: int, users: int, least_s: float
    ) -> tuple[float, float]:
        other = torch.ones(FLUSHED_BYTES // 4, device=each.place)
        self._of_nobody(each, [-1], 2, 0)  # code is loaded, buffers are made
        each.caches.clear()
        each.spent_s.clear()
        ends_s, step, of = 0.0, 0, [-1]
        while step <= steps or (time.perf_counter() < ends_s and step <= MOST_STEPS):
            other.sum()
            if not least_s:
                time.sleep(PAUSE_S * (1.0 + random.random()))
            self._of_nobody(each, of, 1 if step else tokens, tokens + step - 1 if step else 0)
            if not step:
                of = [-1 - user for user in range(users)]
                each.caches |= {user: copy.deepcopy(each.caches[-1]) for user in of[1:]}
                ends_s = time.perf_counter() + least_s
            step += 1
        each.caches.clear()
        prompt_s, *token_s = each.spent_s
        return prompt_s, middle_mean(token_s)

    def _of_nobody(self, each: _Placed, users: Sequence[int], count: int, before: int) -> None:
        """Let a stage compute so many tokens of each, behind others."""
        ids = torch.ones((len(users), count), dtype=torch.int64, device=each.place)
        inputs = {"input_ids": ids, "logits_to_keep": 1}
        if len(users) > 1:
            inputs["position_ids"] = torch.full_like(ids, before)
        else:
            inputs["attention_mask"] = ids.new_ones((1, before + count))
        spec = _activations(each, ids.shape)
        dtype = getattr(torch, spec.dtype)
        hidden = torch.full(spec.shape, 0.01, dtype=dtype, device=each.place)
        given = None if each.stage.first else hidden
        self._computed(each, users, [1] * len(users), given, inputs)

    @order("timing links")
    def time_links(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], LinkSeconds]:
        """Round trips of the pairs that start here, as stages send; every worker gets one list."""
        return probe_links(pairs, self.spec.rank, self.exchange.sender)

    @order("reordering caches")
    def reorder(self, user: int, rows: np.ndarray[Any, Any]) -> None:
        """Let row i of a user's caches be what row `rows[i]` was: beams that go on."""
        for each in self.placed:
            if user in each.caches:
                each.caches[user].reorder_cache(torch.from_numpy(rows).to(each.place))

    @order("freeing caches")
    def forget(self, user: int) -> None:
        """A user has ended."""
        for each in self.placed:
            each.caches.pop(user, None)

    def _received(self, each: _Placed, passed: TensorSpec) -> Tensor | None:
        """Activations of the stage before; ``None`` for the first stage."""
        if each.order.previous is None:
            return None
        pair = each.order.previous, each.device
        message = self._message(self._taken, pair, passed)
        self.exchange.expect([message])
        self.exchange.start()
        if message.way not in (*THROUGH_HOST, "copy"):
            self.exchange.post(message)
        return self.exchange.take(message)

    def _send(self, each: _Placed, hidden: Tensor, to: int) -> None:
        """Let activations leave for the next stage; this one goes on."""
        hidden = hidden.contiguous()
        spec = _activations(each, hidden.shape[:2])
        message = self._message(self._sent, (each.device, to), spec)
        self.exchange.send(message, hidden)
        self.exchange.sender.reap(1)  # what is so far back was received long ago

    def _message(
        self, passed: Counter[tuple[int, int]], pair: tuple[int, int], spec: TensorSpec
    ) -> Message:
        """The next one of a pair of devices, by what has `passed`: both ends count."""
        number, (source, target) = passed[pair] % NUMBERS, pair
        passed[pair] += 1
        way = self.spec.layout.ways[source][target]
        return Message(number, "activations", spec, source, target, way)


def _inputs(
    each: _Placed, tensors: Mapping[str, np.ndarray[Any, Any]], options: Mapping[str, int]
) -> dict[str, Any]:
    """What a stage is called with, on its device."""
    found: dict[str, Any] = {k: v for k, v in options.items() if k not in ("encoder", "anew")}
    for name, value in tensors.items():
        found[name] = torch.from_numpy(np.require(value, None, "W")).to(each.place)
        if found[name].dtype == torch.bool:  # a mask, as small as it can be
            found[name] = found[name].long()
    return found


def _activations(each: _Placed, tokens: Sequence[int]) -> TensorSpec:
    """Those of tokens of shape (rows, tokens): shape (rows, tokens, ...), see `Stage.passed`."""
    shape = (*tokens, *each.stage.passed)
    strides = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
    # Mamba adds up what its layers make in single precision, whatever they compute in.
    single = getattr(each.stage.decoder.config, "residual_in_fp32", False)
    return TensorSpec(shape, "float32" if single else each.order.dtype, strides)
