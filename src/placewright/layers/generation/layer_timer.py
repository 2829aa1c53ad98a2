"""`time_layers`: what a model's layers, links and the caller take where it will generate.

Layers of random numbers are executed by the workers that would execute the real ones. A stage is
timed as it is in a chain: after a pause, with cold caches. Its seconds are a constant for each
visit (the call, what a CPU quota gives in advance) and a time for each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from placewright.cluster.cluster import Cluster
from placewright.layers.generation.generator import Generator, TokenClock
from placewright.layers.generation.sources import RandomWeights
from placewright.layers.generation.stage import StageOrder
from placewright.layers.generation.times import LayerTimes
from placewright.layers.generation.worker import middle_mean
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.runtime.engines.engine import open_engine
from placewright.runtime.probe import link_line

STEPS = 8
"""Tokens of which the mean of the middle half counts."""

PASSES = 2
"""Over all devices: the least counts, for what else runs on a machine adds to some of them."""

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
    """
    small, names = RandomWeights(_with_layers(config, 1), dtype), cluster.device_names
    with (
        open_engine(engine, cluster, together=False) as opened,
        Generator(small, {names[0]: (0, 1)}, cluster, opened) as workers,
    ):
        timer = LayerTimer(workers, config, dtype, tokens, blocks)
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
    ) -> None:
        self.workers, self.tokens, self._dtype = workers, tokens, dtype
        self._shallow, self._deep = (_with_layers(config, k) for k in (1, MOST_BLOCKS + 2))
        devices = range(len(workers.cluster.devices))
        self._room = np.array([min(k, MOST_BLOCKS) for k in blocks or [MOST_BLOCKS] * len(devices)])
        self._found: list[list[tuple[float, ...]]] = []
        self._trips: list[tuple[FloatArray, FloatArray]] = []

    def measure(self) -> None:
        """Do it once more."""
        devices = range(len(self.workers.cluster.devices))
        self._found.append([self._device(rank) for rank in devices])
        self._trips.append(self._links())

    def times(self) -> LayerTimes:
        """The least of all that was measured."""
        links = [np.min(part, axis=0) for part in zip(*self._trips, strict=True)]
        parts = (*_parts(np.min(self._found, axis=0), self._room), *links)
        return LayerTimes(self.tokens, *(part.tolist() for part in parts))

    def _device(self, rank: int) -> tuple[float, ...]:
        """Seconds of one block, of several, of all that a model of one has; prompts; the answer."""
        self._load(rank, StageOrder(self._shallow, self._dtype, "", 0, 1, 1))
        answer_s = self._answer_s(rank)
        prompt_whole_s, whole_s = self._stage_s(rank)
        prompt_one_s, one_s = self._blocks_s(rank, 1)
        prompt_more_s, more_s = self._blocks_s(rank, int(self._room[rank]))
        return one_s, more_s, whole_s, prompt_one_s, prompt_more_s, prompt_whole_s, answer_s

    def _load(self, rank: int, asked: StageOrder) -> None:
        """Give one device a stage of random numbers, and the others nothing."""
        names = self.workers.cluster.device_names
        self.workers.give([asked if each == rank else None for each in range(len(names))])

    def _blocks_s(self, rank: int, count: int) -> tuple[float, float]:
        """Of so many blocks from the middle of a model."""
        layers = MOST_BLOCKS + 2
        self._load(rank, StageOrder(self._deep, self._dtype, "", 1, 1 + count, layers))
        return self._stage_s(rank)

    def _stage_s(self, rank: int) -> tuple[float, float]:
        """Of the prompt and of a token, on what the worker has loaded."""
        found: tuple[float, float] = self.workers.order("time_stage", self.tokens, STEPS)[rank]
        return found

    def _answer_s(self, rank: int) -> float:
        """Of a token, without what the stage takes of it."""
        self.workers.order("times")
        clock, ids = TokenClock(), torch.ones((1, self.tokens), dtype=torch.int64)
        self.workers.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=STEPS,
            min_new_tokens=STEPS,
            do_sample=False,
            streamer=clock,
        )
        spent_s = self.workers.order("times")[rank]
        waits = [a - b for a, b in zip(clock.seconds, spent_s, strict=True)]
        return middle_mean(waits[1:])

    def _links(self) -> tuple[FloatArray, FloatArray]:
        """Latency and seconds per byte of every pair that is joined."""
        latency_s, per_byte, _, _ = self.workers.cluster.link_arrays()
        joined = np.isfinite(latency_s) & ~np.eye(len(latency_s), dtype=bool)
        pairs = tuple((int(i), int(j)) for i, j in np.argwhere(joined))
        for (source, target), trips in self.workers.time_links(pairs).items():
            latency_s[source, target], per_byte[source, target] = link_line(trips)
        return latency_s, per_byte


def _parts(seconds: FloatArray, room: IntArray) -> tuple[FloatArray, ...]:
    """From `LayerTimes.block_s` to `answer_s`, by what `LayerTimer._device` found; shape (m, 7)."""
    one_s, more_s, whole_s, prompt_one_s, prompt_more_s, prompt_whole_s, answer_s = seconds.T
    block_s = _block_s(one_s, more_s, room)
    prompt_block_s = _block_s(prompt_one_s, prompt_more_s, room)
    return (
        block_s,
        np.maximum(0.0, whole_s - one_s),
        prompt_block_s,
        np.maximum(0.0, prompt_whole_s - prompt_one_s),
        one_s - block_s,
        answer_s,
    )


def _block_s(one_s: FloatArray, more_s: FloatArray, room: IntArray) -> FloatArray:
    """Seconds of one block more, from those of one and of `room`.

    A visit is taken for a part of the blocks where there is room for no second one, and where other
    work on the machine has made one block as slow as several.
    """
    each_s = (more_s - one_s) / np.maximum(room - 1, 1)
    return np.where((room > 1) & (each_s > 0), each_s, more_s / np.maximum(room, 1))


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
