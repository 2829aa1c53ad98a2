"""The worker program that executes its part of a plan of layers."""

from __future__ import annotations

import math
import os
import signal
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load
from torch import Tensor

from placewright.capturing.program_calls import random_state
from placewright.capturing.update_rule import UpdateRule
from placewright.capturing.updates import OPTIMIZER, Update
from placewright.graph.graph import Const, Instruction, Ref, TensorSpec
from placewright.io.tensor_files import write_tensors
from placewright.layers.execution import timing
from placewright.layers.execution.layer_module import (
    LayerOrder,
    LayerProgram,
    SizedLayers,
    StageOrder,
    WorkerStepTimes,
)
from placewright.layers.execution.layouts import differentiable, shard_times
from placewright.layers.execution.stage_step import StageStep
from placewright.layers.execution.timing import LayerTimer, LayerTimes, slowdown
from placewright.runtime.emulation import Stretch, precise_sleeps
from placewright.runtime.messages import join
from placewright.runtime.program import Worker, WorkerProgram, order

ROUNDS = 5
"""Of timed layers, after one that warms up."""

MESSAGES = 7
"""Timed ones of each size."""

LONG_MESSAGE_S, MOST_TIMES = 0.3, 64
"""How long the longest timed message takes, and how many times the largest size it has at most."""


class LayerWorker(WorkerProgram):
    """One worker of a layer plan; `placewright.layers.execution.session` orders.

    Process groups of the same workers are made once and used by all plans.
    """

    messages = (
        *(StageOrder, LayerOrder, LayerProgram, SizedLayers, WorkerStepTimes, LayerTimes),
        *(Instruction, Ref, Const, TensorSpec, Update, UpdateRule),
    )
    noun = "worker"

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        spec = worker.spec
        torch.set_num_threads(spec.threads)
        # DDP's new name of the option is unknown to older releases.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        # FSDP2's warning is for models that change such an output; `LayerModule` changes a copy.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        precise_sleeps()
        join(spec)
        own = spec.layout.device_group(spec.rank)[0]
        self.device = torch.device(spec.layout.devices[own].torch_device)
        self.rank = spec.rank
        self.stretch = Stretch(spec.stretch)
        self.ends = False
        self.groups: dict[tuple[int, ...], Any] = {}
        self.step: StageStep | None = None
        self.says_random = False

    @order("joining the workers of its stage")
    def join_groups(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Make the process groups of a plan; all workers make all of them in one order."""
        for ranks in groups:
            if ranks not in self.groups:
                backend = "nccl" if self.device.type == "cuda" else "gloo"
                self.groups[ranks] = dist.new_group(list(ranks), backend=backend, sort_ranks=False)

    @order("loading its layers")
    def load_stage(
        self, stages: tuple[StageOrder, ...], state_file: str, trained: tuple[str, ...]
    ) -> None:
        """Replace what was loaded by stages of another plan; none for a worker left out."""
        self.step = None
        if not stages:
            return
        programs = [layer.program for stage in stages for layer in stage.layers]
        parameters = {name for p in programs for name in p.parameters.values()}
        others = {n for p in programs for n in (*p.buffers.values(), *p.constants.values())}
        state: dict[str, Tensor] = {}
        with safe_open(state_file, "pt", device=str(self.device)) as file:
            for name in parameters | others:
                value = file.get_tensor(name)
                state[name] = (
                    torch.nn.Parameter(value, requires_grad=name in trained)
                    if name in parameters
                    else value
                )
            of_optimizer = {
                name: file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118 - it is no dict
                if name.startswith(OPTIMIZER) and name.rpartition(":")[2] in parameters
            }
        self.step = StageStep(stages, state, self.device, self.groups, self.stretch)
        self.step.restore(of_optimizer)

    @order("taking another number of samples")
    def resize_stage(self, stages: tuple[StageOrder, ...]) -> None:
        """Compute the loaded stages on batches of another size."""
        if self.step is not None:
            self.step.resize(stages)

    @order("taking a batch")
    def feed(self, batch: bytes) -> None:
        """Inputs and targets of all steps from the next one on, as safetensors."""
        if self.step is not None:
            tensors = {name: value.to(self.device) for name, value in load(batch).items()}
            self.step.feed(tensors)

    @order("taking a random state")
    def draw_from(self, random: bytes) -> None:
        """Draw from this state in the next step, and say where it has come to."""
        if self.step is not None:
            self.step.draw_from(random)
            self.says_random = self.step.ends_random

    @order("training a step")
    def train(self, count: int, update: bool) -> list[WorkerStepTimes]:
        """Do `count` steps, each begun by all workers together."""
        return [self._train(update) for _ in range(count)]

    def _train(self, update: bool) -> WorkerStepTimes:
        dist.barrier()
        if self.ends:
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.perf_counter()
        if self.step is None:
            return WorkerStepTimes(0.0, 0.0, 0.0, 0.0)
        loss = self.step.run(update=update)
        step = self.step
        return WorkerStepTimes(
            time.perf_counter() - start,
            step.forward_s,
            step.backward_s,
            loss,
            step.work_s,
            step.grad_norm,
            step.overflow,
            random_state() if self.says_random else b"",
        )

    @order("slowing down")
    def slow_down(self, times: float) -> None:
        """Take so many times as long as now from the next step on, by waiting: a disturbance."""
        self.stretch.factor *= times

    @order("preparing to be killed")
    def end_in_next_step(self, ends: bool) -> None:
        """Kill this process in the next step, when the others have begun it: a disturbance."""
        self.ends = ends

    @order("timing the layers")
    def time_layers(
        self,
        sizes: tuple[SizedLayers, ...],
        state_file: str,
        degrees: tuple[int, ...],
        shared: tuple[str, ...],
        update: Update,
        throttled: bool,
        solo: int,
    ) -> tuple[list[list[LayerTimes]], float]:
        """Costs of all layers, by number of samples and tensor degree.

        Sizes are taken in turns, on all workers at the same time; the middle one also says what
        passes over all layers hold, on one worker. Last, how long a round of the largest takes on
        the worker `solo` while the others wait, over what it takes when all work; 1 on others.
        """
        self.step = None
        state = self._timed_state(sizes[0].programs, state_file)
        slower = slowdown(self.stretch, throttled=throttled)
        common = state, self.device, slower
        feeds = [{k: v.to(self.device) for k, v in load(own.batch).items()} for own in sizes]
        timers = [
            [LayerTimer(*common, own.programs, fed, d, frozenset(shared)) for d in degrees]
            for own, fed in zip(sizes, feeds, strict=True)
        ]
        alone = [LayerTimer(*common, sizes[-1].programs, feeds[-1])] if self.rank == solo else []
        middle = timers[(len(sizes) - 1) // 2][0]
        held = middle.passes_bytes()
        for _ in range(ROUNDS + 1):
            for turn in (*timers, alone):
                dist.barrier()
                for timer in turn:
                    timer.round()
        found = [
            [timer.times(update.made, held if timer is middle else math.nan) for timer in row]
            for row in timers
        ]
        return found, alone[0].round_s / timers[-1][0].round_s if alone else 1.0

    def _timed_state(self, programs: tuple[LayerProgram, ...], file_name: str) -> dict[str, Tensor]:
        """Parameters, buffers and constants of all layers."""
        trained = {n for p in programs for n in p.parameters.values()}
        names = {n for p in programs for n in (*p.buffers.values(), *p.constants.values())}
        state: dict[str, Tensor] = {}
        with safe_open(file_name, "pt", device=str(self.device)) as file:
            for name in trained | names:
                value = file.get_tensor(name)
                trainable = differentiable(value.dtype)
                state[name] = torch.nn.Parameter(value) if name in trained and trainable else value
        return state

    @order("timing messages")
    def time_messages(
        self, pairs: tuple[tuple[int, int], ...], sizes: tuple[int, ...], throttled: bool
    ) -> list[tuple[float, ...]]:
        """Seconds of messages from the first to the second of each pair, as the first sees them.

        Then the bytes of a message that takes about `LONG_MESSAGE_S`, and its seconds: larger ones
        go at its rate, over which waiting for a CPU quota's periods evens out. Last, as both ends
        see it, the seconds that they compute less for each byte, and for each message: nothing
        without a quota, where another core may send.

        The least of several, for other load on the machine can only add time; under a CPU quota
        the median, for there a message may have to wait for the next period.
        """
        taken = MESSAGES // 2 if throttled else 0
        slower = slowdown(self.stretch, throttled=True) if throttled else 0.0
        return [self._message_s(a, b, sizes, taken, slower) for a, b in pairs]

    def _message_s(
        self, a: int, b: int, sizes: tuple[int, ...], taken: int, slower: float
    ) -> tuple[float, ...]:
        dist.barrier()
        if self.rank not in (a, b):
            return ()
        cpu_s = time.process_time()  # gloo sends and receives in a thread of its own
        times = [self._exchange_s(a, b, 0, MESSAGES)]
        each_s = slower * (time.process_time() - cpu_s) / (2 * MESSAGES)
        times += [self._exchange_s(a, b, size, MESSAGES) for size in sizes]
        # Both ends must send the same number of bytes: the first one's time decides.
        chosen = torch.tensor([times[-1][0]], device=self.device)
        if self.rank == a:
            dist.send(chosen, b)
        else:
            dist.recv(chosen, a)
        more = min(max(int(LONG_MESSAGE_S / float(chosen)), 1), MOST_TIMES)
        cpu_s = time.process_time()
        long = self._exchange_s(a, b, sizes[-1] * more, 3)
        each_byte_s = slower * (time.process_time() - cpu_s) / (3 * sizes[-1] * more)
        # An exchange of two empty messages: half of it is the answer that every exchange has on
        # top.
        answer_s = times[0][taken] / 2
        found = [max(t[taken] - answer_s, answer_s) for t in times[1:]]
        longest_s = max(long[min(taken, 1)] - answer_s, answer_s)
        return *found, float(sizes[-1] * more), longest_s, each_byte_s, each_s

    def _exchange_s(self, a: int, b: int, size: int, count: int) -> list[float]:
        """Seconds of a message and an empty answer, so many times, ascending."""
        tiny = torch.zeros(1, device=self.device)
        message, times = torch.zeros(max(size // 4, 1), device=self.device), []
        for _ in range(count):
            start = time.perf_counter()
            if self.rank == a:
                dist.send(message, b)
                dist.recv(tiny, b)
            else:
                dist.recv(message, a)
                dist.send(tiny, a)
            times.append(time.perf_counter() - start)
        return sorted(times)

    @order("timing shards")
    def time_shards(self, layers: tuple[tuple[int, int], ...]) -> list[tuple[float, float]]:
        """See `placewright.layers.execution.layouts.shard_times`; of all workers."""
        everyone = tuple(range(dist.get_world_size()))
        self.join_groups((everyone,))
        return shard_times(self.groups[everyone], self.stretch, layers)

    @order("saying what it holds")
    def held_bytes(self) -> int:
        """Bytes of memory that this process holds now."""
        return timing.resident_bytes()

    @order("forgetting its peak memory")
    def forget_peak(self) -> None:
        """Count the most memory held from now on."""
        timing.forget_peak()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    @order("saying what it held")
    def peak_bytes(self) -> float:
        """Most resident memory of this process, or tensor memory of its GPU; NaN if unknown."""
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated())
        return timing.peak_bytes()

    @order("counting optimizer states")
    def state_elements(self) -> int:
        """Elements of optimizer states that this worker keeps."""
        return 0 if self.step is None else self.step.state_elements()

    @order("writing its gradients")
    def gradients(self, path: str) -> str:
        """Write the gradients of the last step, whole, where this worker is the first to have them.

        Returns
        -------
        str
            Why it cannot, empty where it could.
        """
        return _written(path, {} if self.step is None else self.step.gradients())

    @order("writing its training state")
    def training_state(self, path: str) -> str:
        """Likewise parameters, buffers and states of the optimizer."""
        step = self.step
        return _written(path, {} if step is None else step.parameters() | step.optimizer_state())

    @order("writing its parameters")
    def parameters(self, path: str) -> str:
        """Likewise the parameters and buffers."""
        return _written(path, {} if self.step is None else self.step.parameters())


def _written(path: str, tensors: Mapping[str, Tensor]) -> str:
    try:
        write_tensors(Path(path), tensors)
    except OSError as error:
        return str(error)
    return ""
