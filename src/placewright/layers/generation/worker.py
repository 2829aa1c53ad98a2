"""The worker program that keeps layers of a language model, and their caches."""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from placewright.layers.generation.stage import Stage, StageOrder, needed_names
from placewright.runtime.emulation import Stretch, precise_sleeps, sleep_until
from placewright.runtime.process_group import join
from placewright.runtime.program import WorkerProgram, order
from placewright.runtime.worker import Worker

# Three seconds, once: in the process that workers are forked from.
with suppress(ImportError):
    import transformers.modeling_utils  # noqa: F401


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

    @order("loading its layers")
    def load(self, asked: StageOrder | None, files: tuple[str, ...]) -> int:
        """Make a stage of what the files hold of it; the bytes that it has."""
        self.stage, self.asked = None, asked
        self.caches.clear()
        if asked is None:
            return 0
        stage = Stage(asked)
        wanted, tensors = set(needed_names(stage)), dict[str, Tensor]()
        with ExitStack() as stack:
            for name in files:
                file = stack.enter_context(safe_open(name, "pt", device=str(self.device)))
                tensors |= {key: file.get_tensor(key) for key in wanted.intersection(file.keys())}
            stage.load(tensors, self.device)
        self.stage = stage
        held = {*stage.model.parameters(), *stage.model.buffers()}
        return sum(each.nbytes for each in held)

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
        self.stretch.begin()
        found = self.stage(hidden, inputs, self.caches[user])
        self.stretch.pay()
        if self.asked.following is None:
            return found.float().cpu().numpy()
        self._send(found, self.asked.following)
        return None

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
