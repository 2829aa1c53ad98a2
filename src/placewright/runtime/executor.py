"""The worker program that executes steps of a placed program, and probes devices and links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save

from placewright.capturing.program_calls import random_state, set_random_state
from placewright.errors import RunError
from placewright.graph.graph import Const, Instruction, ProgramInput, Ref, TensorSpec
from placewright.io.tensor_files import StoredTensor, write_tensors
from placewright.runtime.emulation import Stretch, precise_sleeps
from placewright.runtime.host import Reading, cpu_reading
from placewright.runtime.memory import MemoryUse, keep_freed_memory
from placewright.runtime.messages import Exchange, join, nccl_group
from placewright.runtime.probe import LinkSeconds, SpeedProbe, probe_links
from placewright.runtime.program import Worker, WorkerProgram, order
from placewright.runtime.step.devices import PlacedDevices, storable
from placewright.runtime.step.partition import Part, Step
from placewright.runtime.step.sequence import Action, Share
from placewright.runtime.step_record import StepLog
from placewright.runtime.stream_executor import Finished, Sample, StreamExecutor, StreamProgress
from placewright.runtime.wire import Message


class StepExecutor(WorkerProgram):
    """Executes the steps of one process's devices, as `placewright.runtime.session` orders."""

    messages = (
        *(Share, Part, Step, Action, Message, StepLog),
        *(Instruction, Ref, Const, ProgramInput, TensorSpec, StoredTensor),
        *(Sample, Finished, StreamProgress),
    )

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.spec = spec = worker.spec
        torch.set_num_threads(spec.threads)
        precise_sleeps()
        keep_freed_memory()
        join(spec)
        own = spec.layout.device_group(spec.rank)
        self.torch_devices = [spec.layout.devices[d].torch_device for d in own]
        if self.torch_devices[0].startswith("cuda"):
            # Otherwise whatever names no device would touch the first GPU.
            torch.cuda.set_device(self.torch_devices[0])
        self.memory = MemoryUse(self.torch_devices)
        exchange = Exchange(spec.layout, spec.rank, spec.links, nccl_group(spec))
        self.devices = PlacedDevices(exchange, self.memory)
        self.speed_probes: list[SpeedProbe] = []
        self.stretch = Stretch(spec.stretch) if spec.stretch > 1 else None
        self.stream: StreamExecutor | None = None
        self.draws_from_caller = False

    def obey(self, name: str, arguments: Sequence[Any]) -> Any:
        """See `WorkerProgram.obey`; where memory does not suffice, says what is held."""
        with self.memory.shortage_reported():
            return super().obey(name, arguments)

    @order("reading its memory")
    def memory_peaks(self) -> list[int]:
        """Most bytes by device since the part was loaded; see `MemoryUse`."""
        return self.memory.peaks()

    @order("setting how much memory it keeps")
    def limit_memory(self, limit_bytes: float) -> None:
        """From the next part on keep freed memory for the next step up to this limit."""
        self.memory.limit_bytes = limit_bytes

    @order("loading its part of the model")
    def load(self, share: Share, state_file: str, weights: Mapping[str, StoredTensor]) -> None:
        """Take over parts of the program and the initial state that lives here.

        Raises `RunError`: a file with weights is not there.
        """
        # The old part first: with both of them the peak, and maybe the limit, would be of two
        # models.
        self.devices.clear()
        self.memory.begin()
        try:
            self.devices.load(share, state_file, weights)
        except OSError as error:
            raise RunError(
                "weights cannot be read on this worker's machine",
                where=str(error.filename or error),
                hint="have the same folder at the same path on every machine",
            ) from error

    @order("moving to another placement")
    def migrate(self, share: Share, moves: Sequence[Message]) -> None:
        """Take over other parts between two steps; see `PlacedDevices.migrate`."""
        self.devices.migrate(share, moves)

    @order("executing a step")
    def steps(self, count: int, watched: bool) -> list[tuple[StepLog, ...]]:
        """Execute `count` steps; all workers start each one together. Logs by step and device."""
        return [self._step(watched) for _ in range(count)]

    def _step(self, watched: bool) -> tuple[StepLog, ...]:
        # Receives are posted before the barrier: behind it no send waits to be asked for, and none
        # can meet the receive of another step, which has the same tag.
        self.devices.exchange.start()
        dist.barrier()
        logs = self.devices.step(watched, self.stretch)
        if self.draws_from_caller:
            logs = (replace(logs[0], random=random_state()), *logs[1:])
        return logs

    @order("opening a stream")
    def open_stream(
        self, lengths: Sequence[Sequence[int]], window: int, deliver: bool, watched: bool
    ) -> None:
        """Begin to execute what is loaded for many samples; see `StreamExecutor`."""
        self.stream = StreamExecutor(
            self.devices,
            lengths,
            window,
            deliver=deliver,
            watched=watched,
            threads=self.spec.threads,
            # One of its own: it counts CPU time of the thread that calls it.
            stretch=None if self.stretch is None else Stretch(self.stretch.factor),
        )

    @order("executing a stream")
    def stream_turn(self, samples: Sequence[Sample], until: int, wait_s: float) -> StreamProgress:
        """Take samples in and say what is done; see `StreamExecutor.turn`."""
        assert self.stream is not None
        return self.stream.turn(samples, until, wait_s)

    @order("closing a stream")
    def close_stream(self) -> None:
        """End a stream whose samples are all done."""
        assert self.stream is not None
        self.stream.close()
        self.stream = None

    @order("taking a batch")
    def feed(self, batch: bytes, specs: Mapping[str, TensorSpec], random: bytes) -> None:
        """Replace inputs and targets from the next step on.

        `batch`: tensors by program input as safetensors.
        `specs`: their layouts.
        `random`: state of the generator that the next step draws from, and gives back; if it is
        empty, the worker's own goes on.
        """
        self.devices.feed(load(batch), specs)
        self._draw_from(random)

    @order("executing a step on a batch")
    def call(
        self, batch: bytes, specs: Mapping[str, TensorSpec], watched: bool, random: bytes
    ) -> tuple[tuple[StepLog, ...], bytes]:
        """Feed, execute one step and return what it made; all workers start it together.

        `batch`, `specs`, `random`: as of `feed`, of the inputs that are read here.

        Returns
        -------
        Logs by device, and the outputs that were made here as safetensors.
        """
        self.feed(batch, specs, random)
        logs = self._step(watched)
        return logs, save(storable(self.devices.outputs()))

    def _draw_from(self, random: bytes) -> None:
        self.draws_from_caller = bool(random)
        if random:
            set_random_state(random)

    @order("taking another program")
    def add_program(self, key: int, share: Share, constants: bytes) -> None:
        """Take another program of the same model and select it; see `PlacedDevices.add`."""
        self.devices.add(key, share, load(constants))

    @order("selecting a program")
    def select_program(self, key: int) -> None:
        """Do the steps of another program that was added, or of the one that was loaded (0)."""
        self.devices.select(key)

    @order("forgetting a program")
    def remove_program(self, key: int) -> None:
        """Forget a program that was added and is not selected."""
        self.devices.remove(key)

    @order("setting its seed")
    def seed(self, seed: int) -> None:
        """Seed the global random-number generator."""
        torch.manual_seed(seed)

    @order("reading its random state")
    def random_state(self) -> bytes:
        """State of the global random-number generator."""
        return random_state()

    @order("setting its random state")
    def set_random_state(self, state: bytes) -> None:
        """Continue a sequence of random numbers that began on another worker."""
        set_random_state(state)

    @order("writing its outputs")
    def outputs(self, path: str) -> str:
        """Write the outputs of the last step that were made here to a safetensors file.

        Returns
        -------
        str
            Why it cannot be written; empty if it is.
        """
        return _write(path, self.devices.outputs())

    @order("writing its state")
    def state(self, path: str) -> str:
        """Write the state that lives here and changes, likewise."""
        return _write(path, self.devices.state())

    @order("reading its CPU time")
    def cpu_reading(self, cores: Sequence[int]) -> Reading:
        """CPU seconds of this process and of all on these cores."""
        return cpu_reading(cores)

    @order("changing its emulated speed")
    def disturb(self, factor: float) -> None:
        """Emulate another slowness from the next step on."""
        self.stretch = Stretch(factor) if factor > 1 else None

    @order("probing its speed")
    def probe_speeds(self) -> list[float]:
        """Seconds that a small piece of work takes on each device."""
        self.speed_probes = self.speed_probes or [SpeedProbe(d) for d in self.torch_devices]
        return [probe.seconds(self.stretch) / probe.count for probe in self.speed_probes]

    @order("probing its links")
    def probe_links(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], LinkSeconds]:
        """Round trips of the pairs that start here; every worker is given the same list."""
        return probe_links(pairs, self.spec.rank, self.devices.exchange.sender)


def _write(path: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """A write error does not end the worker: the caller gets the reason and decides."""
    try:
        write_tensors(Path(path), tensors)
    except OSError as error:
        return str(error)
    return ""
