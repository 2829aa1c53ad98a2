"""The program of one worker process: one device, its part of the step, and its orders.

A worker obeys orders that come through its pipe one at a time and answers each one. It ends
when it is told to, when an order fails, or when the process that started it is gone.
"""

from __future__ import annotations

import datetime
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file

from placewright.execute.emulation import ShapedLink, Stretch, precise_sleeps
from placewright.execute.partition import Part
from placewright.execute.slots import CompiledPart, compile_part
from placewright.execute.transport import Courier, Mailbox


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a worker must know before its first order.

    Attributes
    ----------
    rendezvous
        ``init_method`` of the process group, for example ``file:///...``.
    threads
        Intra-operator threads.
    stretch
        How many times slower than this machine the device is, 1 for not emulated.
    links
        Emulated outgoing links by target rank.
    cores
        CPU numbers to pin the process to, empty for none.
    torch_device
        Where operators run: ``cpu`` or ``cuda:0``. Messages pass through host memory.
    """

    rank: int
    world: int
    rendezvous: str
    device_name: str
    threads: int = 1
    stretch: float = 1.0
    links: Mapping[int, ShapedLink] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    torch_device: str = "cpu"
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class StepLog:
    """What one worker saw of one step, ``time.perf_counter()`` seconds of this machine."""

    start_s: float
    end_s: float
    operators: tuple[int, ...] = ()
    spans_s: tuple[float, ...] = ()
    transfers: tuple[tuple[int, int, float, float], ...] = ()


def worker_main(spec: WorkerSpec, orders: Connection, lifeline: Connection) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    try:
        worker = Worker(spec)
        orders.send(("ok", None))
        _obey(worker, orders)
    except (EOFError, BrokenPipeError):
        pass
    except BaseException:
        with suppress(OSError):
            orders.send(("error", traceback.format_exc()))
    finally:
        os._exit(0)


def _obey(worker: Worker, orders: Connection) -> None:
    verbs: dict[str, Callable[..., Any]] = {
        "load": worker.load,
        "steps": worker.steps,
        "seed": worker.seed,
        "outputs": worker.outputs,
        "state": worker.state,
    }
    while True:
        verb, arguments = orders.recv()
        if verb == "stop":
            return
        orders.send(("ok", verbs[verb](*arguments)))


def _end_with_parent(lifeline: Connection) -> None:
    """Exit at once when the other end of the lifeline is closed, whatever the worker does."""
    with suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


class Worker:
    """One device of the cluster."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        if spec.cores:
            os.sched_setaffinity(0, spec.cores)
        torch.set_num_threads(spec.threads)
        precise_sleeps()
        dist.init_process_group(
            "gloo",
            init_method=spec.rendezvous,
            rank=spec.rank,
            world_size=spec.world,
            timeout=datetime.timedelta(seconds=spec.timeout_s),
        )
        self.part: CompiledPart
        self.state_names: tuple[str, ...] = ()
        self.mailbox = Mailbox(())
        self.courier = Courier(spec.links)
        self.stretch = Stretch(spec.stretch) if spec.stretch > 1 else None

    def load(self, part: Part, state_file: str) -> None:
        """Take a part and the initial state that lives here."""
        with safe_open(state_file, framework="pt") as file:
            stored = set(file.keys())
            state = {
                # A copy: what is mapped from the file is not aligned, and kernels round by that.
                item.name: file.get_tensor(item.name).clone()
                if item.name in stored
                else torch.zeros(item.spec.shape, dtype=getattr(torch, item.spec.dtype))
                for item in part.inputs
            }
        device = self.spec.torch_device
        self.part = compile_part(part, {n: t.to(device) for n, t in state.items()}, device)
        self.mailbox = Mailbox(part.receives, device)
        self.state_names = tuple(i.name for i in part.inputs if i.mutated)

    def seed(self, seed: int) -> None:
        """Set the global random-number generator."""
        torch.manual_seed(seed)

    def steps(self, count: int, watched: bool) -> list[StepLog]:
        """Execute `count` steps; all workers start each one together."""
        return [self._step(watched) for _ in range(count)]

    def _step(self, watched: bool) -> StepLog:
        self.mailbox.post()
        self.courier.log.clear()
        dist.barrier()
        spans: list[float] = []
        start = time.perf_counter()
        if watched or self.stretch is not None:
            self.part.run_watched(self.mailbox, self.courier, self.stretch, spans)
        else:
            self.part.run(self.mailbox, self.courier)
        end = time.perf_counter()
        self.courier.flush()
        if not watched:
            return StepLog(start, end)
        transfers = tuple((s.tag, s.target, s.start_s, s.end_s) for s in self.courier.log)
        operators = tuple(slot.operator for slot in self.part.slots)
        return StepLog(start, end, operators, tuple(spans), transfers)

    def outputs(self, path: str) -> tuple[str, ...]:
        """Write the outputs of the last step that were made here to a safetensors file."""
        found = {name: self.part.registers[k] for name, k in self.part.outputs.items()}
        return _write(path, {name: t for name, t in found.items() if t is not None})

    def state(self, path: str) -> tuple[str, ...]:
        """Write the state that lives here and changes to a safetensors file."""
        index, registers = self.part.index, self.part.registers
        return _write(path, {name: registers[index[name]] for name in self.state_names})


def _write(path: str, tensors: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    save_file({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}, path)
    return tuple(tensors)
