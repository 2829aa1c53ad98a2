"""`time_layers`: what a model's layers, links and the caller take where it will generate.

Layers of random numbers are executed by the workers that would execute the real ones. A stage is
timed as it is in a chain: after a pause, with cold caches. Its seconds are a constant for each
visit (the call, what a CPU quota gives in advance) and a time for each block. For several users
all devices compute at the same time, without pauses: they may share memory or a CPU quota.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from placewright.cluster.cluster import Cluster
from placewright.errors import UnsupportedError
from placewright.layers.generation.generator import Generator, TokenClock
from placewright.layers.generation.stage import RandomWeights, StageOrder
from placewright.layers.generation.times import LayerTimes, StepTimes
from placewright.layers.generation.worker import middle_mean
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.runtime.engines.engine import open_engine
from placewright.runtime.probe import link_line

STEPS = 8
"""Tokens of which the mean of the middle half counts."""

PASSES = 2
"""Over all devices: the least counts, for what else runs on a machine adds to some of them."""

BUSY_S = 0.25
"""For which all devices compute steps of several users, at least."""

MOST_BLOCKS = 5
"""Timed beside one alone, where there is room."""


def time_layers(
    config: Any,
    dtype: str,
    cluster: Cluster,
    *,
    engine: str = "local",
    tokens: int = 64,
    blocks: Sequence[int] = (),
    users: int = 1,
) -> LayerTimes:
    """Time the layers of a model of transformers on the workers of a cluster.

    Parameters
    ----------
    config
        Of transformers.
    dtype
        Of the weights: ``float32``, ``bfloat16``, ``float16``.
    tokens
        See `LayerTimes`.
    blocks
        How many blocks each device has room for, `MOST_BLOCKS` by default.
    users
        Steps of so many at most are timed, if they are more than one: `LayerTimes.busy`.

    Raises
    ------
    UnsupportedError
        The model has an encoder.
    """
    if config.is_encoder_decoder:
        raise UnsupportedError(
            "workers do not time models with an encoder",
            where=type(config).__name__,
            hint="plan without measure",
        )
    small, names = RandomWeights(_with_layers(config, 1), dtype), cluster.device_names
    with (
        open_engine(engine, cluster, together=False) as opened,
        Generator(small, {names[0]: (0, 1)}, cluster, opened) as workers,
    ):
        timer = LayerTimer(workers, config, dtype, tokens, blocks, users)
        for _ in range(PASSES):
            timer.measure()
        return timer.times()


class LayerTimer:
    """Times the layers of a model on the workers of a `Generator`, which lose what they hold.

    Attributes and parameters are those of `time_layers`; the vocabulary is the generator's.
    """

    def __init__(
        self,
        workers: Generator,
        config: Any,
        dtype: str,
        tokens: int,
        blocks: Sequence[int] = (),
        users: int = 1,
    ) -> None:
        self.workers, self.tokens, self._dtype = workers, tokens, dtype
        self._counts = _counts(users if workers.joins else min(users, 2))
        self._shallow, self._deep = (_with_layers(config, k) for k in (1, MOST_BLOCKS + 2))
        devices = range(len(workers.cluster.devices))
        self._room = np.array([min(k, MOST_BLOCKS) for k in blocks or [MOST_BLOCKS] * len(devices)])
        self._found: list[list[tuple[float, ...]]] = []
        self._busy: list[FloatArray] = []
        self._trips: list[tuple[FloatArray, FloatArray]] = []

    def measure(self) -> None:
        """Do it once more."""
        devices = range(len(self.workers.cluster.devices))
        self._found.append([self._device(rank) for rank in devices])
        if self._counts:
            self._busy.append(self._steps())
        self._trips.append(self._links())

    def times(self) -> LayerTimes:
        """The least of all that was measured."""
        links = [np.min(part, axis=0) for part in zip(*self._trips, strict=True)]
        block_s, head_s, visit_s, prompt_block_s, prompt_head_s, answer_s = _parts(
            np.min(self._found, axis=0), self._room
        )
        parts = (block_s, head_s, prompt_block_s, prompt_head_s, visit_s, answer_s, *links)
        found = LayerTimes(self.tokens, *(part.tolist() for part in parts))
        return replace(found, busy=self._busy_steps()) if self._busy else found

    def _busy_steps(self) -> tuple[StepTimes, ...]:
        """By number of users."""
        found = []
        for users, seconds in zip(self._counts, np.min(self._busy, axis=0), strict=True):
            one_s, more_s, whole_s, answer_s = seconds
            rows = (*_step_parts(one_s, more_s, whole_s, self._room), answer_s)
            # Where nothing joins, users are computed one after another.
            share = 1 if self.workers.joins else users
            block_s, head_s, visit_s, answer_s = ((share * row).tolist() for row in rows)
            found.append(StepTimes(users, block_s, head_s, visit_s, answer_s))
        return tuple(found)

    def _device(self, rank: int) -> tuple[float, ...]:
        """Seconds of one block, of several, of all that a model of one has; prompts; the answer."""
        self._load({rank: self._whole()})
        answer_s = self._answer_s(rank, 1)
        prompt_whole_s, whole_s = self._stage_s()[rank]
        self._load({rank: self._middle(1)})
        prompt_one_s, one_s = self._stage_s()[rank]
        self._load({rank: self._middle(int(self._room[rank]))})
        prompt_more_s, more_s = self._stage_s()[rank]
        return one_s, more_s, whole_s, prompt_one_s, prompt_more_s, prompt_whole_s, answer_s

    def _steps(self) -> FloatArray:
        """Of one block, of several, of all of a model of one, the answer; shape (counts, 4, m)."""
        devices, found = range(len(self._room)), np.zeros((len(self._counts), 4, len(self._room)))
        for part, blocks in enumerate((np.ones_like(self._room), self._room)):
            self._load({rank: self._middle(int(blocks[rank])) for rank in devices})
            found[:, part] = self._busy_s()
        self._load({rank: self._whole() for rank in devices})
        found[:, 2] = self._busy_s()
        for rank in devices:
            self._load({rank: self._whole()})
            found[:, 3, rank] = [self._answer_s(rank, self._joined(k)) for k in self._counts]
        return found

    def _joined(self, users: int) -> int:
        return users if self.workers.joins else 1

    def _busy_s(self) -> list[list[float]]:
        """Of a token, by number of users and device."""
        return [
            [step_s for _, step_s in self._stage_s(self._joined(users), BUSY_S)]
            for users in self._counts
        ]

    def _load(self, asked: Mapping[int, StageOrder]) -> None:
        """Give some devices a stage of random numbers, and the others nothing."""
        self.workers.give([asked.get(rank) for rank in range(len(self._room))])

    def _whole(self) -> StageOrder:
        """A model of one block."""
        return StageOrder(self._shallow, self._dtype, "", 0, 1, 1)

    def _middle(self, count: int) -> StageOrder:
        """So many blocks from the middle of a model."""
        return StageOrder(self._deep, self._dtype, "", 1, 1 + count, MOST_BLOCKS + 2)

    def _stage_s(self, users: int = 1, least_s: float = 0.0) -> list[tuple[float, float]]:
        """Of the prompt and of a token, by device, on what the workers have loaded."""
        return self.workers.order("time_stage", self.tokens, STEPS, users, least_s)

    def _answer_s(self, rank: int, users: int) -> float:
        """Of a token of each, without what the stage takes of it."""
        self.workers.order("times")
        ids = torch.ones((1, self.tokens), dtype=torch.int64)
        options = {"attention_mask": torch.ones_like(ids), "do_sample": False}
        options |= dict.fromkeys(("max_new_tokens", "min_new_tokens"), STEPS)

        def one(clock: TokenClock) -> None:
            self.workers.generate(ids, streamer=clock, **options)

        clocks = [TokenClock() for _ in range(users)]
        with ThreadPoolExecutor(users) as pool:
            list(pool.map(one, clocks))
        spent_s = self.workers.order("times")[rank][users:]  # behind the prompts
        begin_s = max(clock.times_s[1] for clock in clocks)
        steps_s = [b - a for a, b in pairwise(clocks[0].times_s) if a >= begin_s]
        waits = [a - b for a, b in zip(reversed(steps_s), reversed(spent_s), strict=False)]
        return max(0.0, middle_mean(waits))

    def _links(self) -> tuple[FloatArray, FloatArray]:
        """Latency and seconds per byte of every pair that is joined."""
        latency_s, per_byte, _, _ = self.workers.cluster.link_arrays()
        joined = np.isfinite(latency_s) & ~np.eye(len(latency_s), dtype=bool)
        pairs = tuple((int(i), int(j)) for i, j in np.argwhere(joined))
        for (source, target), trips in self.workers.time_links(pairs).items():
            latency_s[source, target], per_byte[source, target] = link_line(trips)
        return latency_s, per_byte


def _parts(seconds: FloatArray, room: IntArray) -> tuple[FloatArray, ...]:
    """Block, head, visit; of the prompt block and head; the answer.

    `seconds`: what `LayerTimer._device` found, shape (m, 7).
    """
    one_s, more_s, whole_s, prompt_one_s, prompt_more_s, prompt_whole_s, answer_s = seconds.T
    prompt_block_s, prompt_head_s, _ = _step_parts(
        prompt_one_s, prompt_more_s, prompt_whole_s, room
    )
    own = _step_parts(one_s, more_s, whole_s, room)
    return (*own, prompt_block_s, prompt_head_s, answer_s)


def _step_parts(
    one_s: FloatArray, more_s: FloatArray, whole_s: FloatArray, room: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """A block, what follows the last one, and a visit."""
    block_s = _block_s(one_s, more_s, room)
    return block_s, np.maximum(0.0, whole_s - one_s), one_s - block_s


def _block_s(one_s: FloatArray, more_s: FloatArray, room: IntArray) -> FloatArray:
    """Seconds of one block more, from those of one and of `room`.

    A visit is taken for a part of the blocks where there is room for no second one, and where other
    work on the machine has made one block as slow as several.
    """
    each_s = (more_s - one_s) / np.maximum(room - 1, 1)
    return np.where((room > 1) & (each_s > 0), each_s, more_s / np.maximum(room, 1))


def _counts(users: int) -> tuple[int, ...]:
    """Numbers of users whose steps are timed: doubled from 1 up to the last one."""
    if users < 2:
        return ()
    doubled = [1 << k for k in range(users.bit_length()) if 1 << k < users]
    return (*doubled, users)


def _with_layers(config: Any, count: int) -> str:
    """The configuration, as JSON, of a model of so many of its layers."""
    made = type(config).from_dict(config.to_dict())
    text = made.get_text_config()
    types = getattr(text, "layer_types", None)
    if types:  # first: configurations compare both
        text.layer_types = [types[k % len(types)] for k in range(count)]
    text.num_hidden_layers = count
    found: str = made.to_json_string(use_diff=False)
    return found
