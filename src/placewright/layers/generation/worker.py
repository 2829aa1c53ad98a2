"""The worker program that keeps layers of a language model, and their caches."""

from __future__ import annotations

import gc
import random
import statistics
import time
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from placewright.layers.generation.stage import Stage, StageOrder, needed_names
from placewright.runtime.emulation import Stretch, precise_sleeps, sleep_until
from placewright.runtime.probe import LARGE, SMALL, LinkSeconds
from placewright.runtime.process_group import join
from placewright.runtime.program import WorkerProgram, order
from placewright.runtime.worker import Worker

# Three seconds, once: in the process that workers are forked from.
with suppress(ImportError):
    import transformers.modeling_utils  # noqa: F401

FLUSHED_BYTES = 1 << 26
"""More than a processor's caches hold, which are shared with what others compute."""

PAUSE_S = 0.02
"""Two periods of a CPU quota; up to twice as long, so that steps begin anywhere in a period."""

ROUND_TRIPS = 8

MOST_TIMES = 4096
"""Of the newest computations that are kept."""


def middle_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter.

    Under a CPU quota times are whole periods and a rest: their median jumps by a period.
    """
    quarter = len(values) // 4
    return statistics.fmean(sorted(values)[quarter : len(values) - quarter])


class StageWorker(WorkerProgram):
    """One stage of a language model; `placewright.layers.generation.generator` orders.

    Keys and values stay here; between stages go the activations of the new tokens.
    """

    messages = (StageOrder,)

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.spec = worker.spec
        torch.set_num_threads(self.spec.threads)
        warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
        precise_sleeps()
        join(self.spec)
        layout = self.spec.layout
        own = layout.device_group(self.spec.rank)[0]
        self.device = torch.device(layout.devices[own].torch_device)
        self.stretch = Stretch(self.spec.stretch)
        self.stage: Stage | None = None
        self.asked: StageOrder | None = None
        self.caches: dict[int, Any] = {}
        self.spent_s: deque[float] = deque(maxlen=MOST_TIMES)

    @order("loading its layers")
    def load(self, asked: StageOrder | None, files: tuple[str, ...]) -> int:
        """Make a stage of what the files hold of it; the bytes that it has.

        No files: of random numbers, where only the time counts.
        """
        self.stage, self.asked = None, asked
        self.caches.clear()
        gc.collect()  # a stage is in cycles with its hooks: there may be no room for two
        if asked is None:
            return 0
        stage = Stage(asked)
        wanted = set(needed_names(stage))
        tensors = self._read(wanted, files) if files else stage.random_tensors()
        stage.load(tensors, self.device)
        self.stage = stage
        held = {*stage.model.parameters(), *stage.model.buffers()}
        return sum(each.nbytes for each in held)

    def _read(self, wanted: set[str], files: tuple[str, ...]) -> dict[str, Tensor]:
        """Tensors of a model's files."""
        found: dict[str, Tensor] = {}
        for name in files:
            with safe_open(name, "pt", device=str(self.device)) as file:
                for key in wanted.intersection(file.keys()):
                    tensor = file.get_tensor(key)
                    # On a CPU it is a piece of the file, whose pages the kernel may drop and read
                    # again from disk: a copy stays, and counts as this device's memory.
                    found[key] = tensor.clone() if self.device.type == "cpu" else tensor
        return found

    @order("computing a token")
    def compute(
        self, user: int, tensors: dict[str, np.ndarray[Any, Any]], options: dict[str, int]
    ) -> np.ndarray[Any, Any] | None:
        """The next tokens of a user; logits from the last stage, shape (batch, kept, vocabulary).

        `tensors`, `options`: what the whole model is called with.
        """
        if self.stage is None or self.asked is None:
            return None
        inputs: dict[str, Any] = dict(options)
        for name, value in tensors.items():
            inputs[name] = torch.from_numpy(np.require(value, None, "W")).to(self.device)
        hidden = self._received(inputs["input_ids"]) if self.asked.previous is not None else None
        if user not in self.caches:
            self.caches[user] = self.stage.new_cache()
        found = self._computed(hidden, inputs, self.caches[user])
        if self.asked.following is None:
            return found.float().cpu().numpy()
        self._send(found, self.asked.following)
        return None

    def _computed(self, hidden: Tensor | None, inputs: dict[str, Any], keys: Any) -> Tensor:
        """What the stage makes of them, on the device as it is emulated."""
        assert self.stage is not None
        start_s = time.perf_counter()
        self.stretch.begin()
        found = self.stage(hidden, inputs, keys)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.stretch.pay()
        self.spent_s.append(time.perf_counter() - start_s)
        return found

    @order("reading its times")
    def times(self) -> list[float]:
        """Seconds of what the stage has computed since the last time, waits for others left out."""
        found = list(self.spent_s)
        self.spent_s.clear()
        return found

    @order("timing layers")
    def time_stage(self, tokens: int, steps: int) -> tuple[float, float] | None:
        """Seconds of a prompt, and of a token behind it; ``None`` without a stage.

        Before each there is what is there in a chain of stages: a pause, in which a CPU quota is
        filled up, and caches of the processor that hold something else.
        """
        if self.stage is None or self.asked is None:
            return None
        keys, width = self.stage.new_cache(), self.stage.decoder.config.hidden_size
        other = torch.ones(FLUSHED_BYTES // 4, device=self.device)
        self._alone(2, 0, self.stage.new_cache(), width)  # code is loaded, buffers are made
        self.times()
        for step in range(steps + 1):
            other += 1.0
            time.sleep(PAUSE_S * (1.0 + random.random()))
            before = tokens + step - 1 if step else 0
            self._alone(1 if step else tokens, before, keys, width)
        prompt_s, *token_s = self.times()
        return prompt_s, middle_mean(token_s)

    def _alone(self, count: int, before: int, keys: Any, width: int) -> None:
        """Let the stage compute so many tokens of nobody, behind others."""
        assert self.stage is not None
        assert self.asked is not None
        dtype = getattr(torch, self.asked.dtype)
        hidden = torch.full((1, count, width), 0.01, dtype=dtype, device=self.device)
        ids = torch.ones((1, count), dtype=torch.int64, device=self.device)
        mask = torch.ones((1, before + count), dtype=torch.int64, device=self.device)
        inputs = {"input_ids": ids, "attention_mask": mask, "logits_to_keep": 1}
        self._computed(None if self.stage.first else hidden, inputs, keys)

    @order("timing links")
    def time_links(self, pairs: tuple[tuple[int, int], ...]) -> dict[tuple[int, int], LinkSeconds]:
        """Round trips of the pairs that start here, as stages send; every worker gets one list."""
        found: dict[tuple[int, int], LinkSeconds] = {}
        small = torch.zeros(SMALL, dtype=torch.uint8)
        for source, target in pairs:
            if self.spec.rank not in (source, target):
                continue
            trips: LinkSeconds = {}
            for size in (SMALL, LARGE):
                data = torch.zeros(size, dtype=torch.uint8)
                took = []
                for _ in range(ROUND_TRIPS):
                    start_s = time.perf_counter()
                    if self.spec.rank == source:
                        self._send(data, target)
                        dist.recv(small, target)
                    else:
                        dist.recv(data, source)
                        self._send(small, source)
                    took.append(time.perf_counter() - start_s)
                trips[size] = middle_mean(took)
            if self.spec.rank == source:
                found[source, target] = trips
        return found

    @order("reordering caches")
    def reorder(self, user: int, rows: np.ndarray[Any, Any]) -> None:
        """Let row i of a user's caches be what row `rows[i]` was: beams that go on."""
        if user in self.caches:
            self.caches[user].reorder_cache(torch.from_numpy(rows).to(self.device))

    @order("freeing caches")
    def forget(self, user: int) -> None:
        """A user has ended."""
        self.caches.pop(user, None)

    def _received(self, ids: Tensor) -> Tensor:
        """Activations of the stage before."""
        assert self.stage is not None
        assert self.asked is not None
        shape = (*ids.shape, self.stage.decoder.config.hidden_size)
        found = torch.empty(shape, dtype=getattr(torch, self.asked.dtype))
        dist.recv(found.view(torch.uint8), self.asked.previous)
        return found.to(self.device)

    def _send(self, hidden: Tensor, to: int) -> None:
        """Give activations to the next stage, over an emulated link where there is one."""
        data = hidden.contiguous().cpu().view(torch.uint8)
        link = self.spec.links.get(self.spec.layout.device_group(to)[0])
        if link is not None:
            sleep_until(time.perf_counter() + link.duration_s(data.nbytes))
        dist.send(data, to)
