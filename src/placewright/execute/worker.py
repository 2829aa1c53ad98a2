"""The program of one worker process: one device, its part of the step, and its orders.

A worker obeys orders that come through its pipe one at a time and answers each one. It ends
when it is told to, when an order fails, or when the process that started it is gone.
"""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load, save_file
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from placewright.execute.emulation import ShapedLink, Stretch, precise_sleeps
from placewright.execute.parcels import Parcels
from placewright.execute.partition import Message, Part
from placewright.execute.probe import LinkSeconds, SpeedProbe, link_seconds
from placewright.execute.slots import CompiledPart, compile_part
from placewright.execute.transport import Courier, Mailbox
from placewright.graph.graph import TensorSpec
from placewright.testbed.seat import NodeSeat


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a worker must know before its first order.

    Attributes
    ----------
    rendezvous
        Where the process group meets, for example ``file:///...`` or torchrun's ``env://``.
    session
        What sets this group apart from others that met at the same place.
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
    seat
        The node of a testbed to work in, ``None`` for this machine as it is.
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
    seat: NodeSeat | None = None
    session: str = "0"
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class StepLog:
    """What one worker saw of one step, ``time.perf_counter()`` seconds of this machine.

    Attributes
    ----------
    scalars
        Outputs of one element that were made here: the loss.
    """

    start_s: float
    end_s: float
    operators: tuple[int, ...] = ()
    spans_s: tuple[float, ...] = ()
    transfers: tuple[tuple[int, int, float, float], ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)


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
    while True:
        verb, arguments = orders.recv()
        if verb == "stop":
            return
        orders.send(("ok", worker.obey(verb, arguments)))


def _end_with_parent(lifeline: Connection) -> None:
    """Exit at once when the other end of the lifeline is closed, whatever the worker does."""
    with suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


class Worker:
    """One device of the cluster."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        if spec.seat is not None:
            spec.seat.enter()
            os.environ["GLOO_SOCKET_IFNAME"] = spec.seat.interface
        if spec.cores:
            os.sched_setaffinity(0, spec.cores)
        torch.set_num_threads(spec.threads)
        precise_sleeps()
        keep_freed_memory()
        dist.init_process_group(
            "gloo",
            store=_meeting_point(spec),
            rank=spec.rank,
            world_size=spec.world,
            timeout=datetime.timedelta(seconds=spec.timeout_s),
        )
        self.parcels = Parcels()
        self.part: CompiledPart
        self.state_names: tuple[str, ...] = ()
        self.state_file = ""
        self.fed: dict[str, torch.Tensor] = {}
        self.speed_probe: SpeedProbe | None = None
        self.first_probe_s = 0.0
        self.mailbox = Mailbox(())
        self.courier = Courier(spec.links)
        self.stretch = Stretch(spec.stretch) if spec.stretch > 1 else None

    def obey(self, verb: str, arguments: Sequence[Any]) -> Any:
        """Carry out one order and answer it."""
        verbs: dict[str, Callable[..., Any]] = {
            "load": self.load,
            "steps": self.steps,
            "seed": self.seed,
            "outputs": self.outputs,
            "state": self.state,
            "migrate": self.migrate,
            "feed": self.feed,
            "random_state": self.random_state,
            "set_random_state": self.set_random_state,
            "disturb": self.disturb,
            "slowness": self.slowness,
            "probe_links": self.probe_links,
            "begin_parcel": self.parcels.begin,
            "append_parcel": self.parcels.append,
            "pack_parcel": lambda verb: self.parcels.pack(lambda path: verbs[verb](path)),
            "take_parcel": self.parcels.take,
        }
        return verbs[verb](*arguments)

    def load(self, part: Part, state_file: str) -> None:
        """Take a part and the initial state that lives here."""
        self.state_file, self.fed = state_file, {}
        self._take(part, {})

    def migrate(self, part: Part, moves: Sequence[Message]) -> None:
        """Take another part between two steps; state that both have in common stays as it is.

        Parameters
        ----------
        moves
            What leaves and what arrives here, over the links that carry tensors.
        """
        index, registers = self.part.index, self.part.registers
        arriving = [m for m in moves if m.target == self.spec.rank]
        leaving = [m for m in moves if m.source == self.spec.rank]
        mailbox = Mailbox(arriving, self.spec.torch_device)
        mailbox.post()
        for message in leaving:
            self.courier.send(message, registers[index[message.value]])
        here = {name: registers[index[name]] for name in self.state_names}
        here.update({m.value: mailbox.take(m) for m in arriving})
        self.courier.flush()
        self._take(part, here)

    def _take(self, part: Part, here: Mapping[str, torch.Tensor]) -> None:
        """Make a part ready: inputs that are here, else what was fed, else what was loaded."""
        device = self.spec.torch_device
        known = {**self.fed, **here}
        with safe_open(self.state_file, framework="pt") as file:
            stored = set(file.keys())
            for item in part.inputs:
                if item.name not in known:
                    given = file.get_tensor(item.name) if item.name in stored else None
                    known[item.name] = laid_out(given, item.spec).to(device)
        self.part = compile_part(part, known, device)
        self.mailbox = Mailbox(part.receives, device)
        self.state_names = tuple(i.name for i in part.inputs if i.mutated)

    def feed(self, batch: bytes, specs: Mapping[str, TensorSpec]) -> None:
        """Replace inputs and targets from the next step on.

        Parameters
        ----------
        batch
            Tensors by program input as safetensors.
        specs
            Their layouts.
        """
        device = self.spec.torch_device
        for name, tensor in load(batch).items():
            self.fed[name] = laid_out(tensor, specs[name]).to(device)
            if name in self.part.index:
                self.part.registers[self.part.index[name]] = self.fed[name]

    def seed(self, seed: int) -> None:
        """Set the global random-number generator."""
        torch.manual_seed(seed)

    def random_state(self) -> bytes:
        """State of the global random-number generator."""
        return bytes(torch.get_rng_state().numpy())

    def set_random_state(self, state: bytes) -> None:
        """Continue a sequence of random numbers that began elsewhere."""
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def slowness(self) -> float:
        """How many times slower the device is than when it was first asked."""
        if self.speed_probe is None:
            self.speed_probe = SpeedProbe()
            self.first_probe_s = self.speed_probe.seconds(self.stretch)
            return 1.0
        return self.speed_probe.seconds(self.stretch) / self.first_probe_s

    def probe_links(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], LinkSeconds]:
        """Round trips of the pairs that start here; every worker is given the same list."""
        found = {}
        for source, target in pairs:
            if self.spec.rank in (source, target):
                seconds = link_seconds(self.spec.rank, source, target, self.courier)
                if self.spec.rank == source:
                    found[source, target] = seconds
        return found

    def disturb(self, factor: float) -> None:
        """Emulate another slowness from the next step on."""
        self.stretch = Stretch(factor) if factor > 1 else None

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
        scalars = self._scalars()
        if not watched:
            return StepLog(start, end, scalars=scalars)
        transfers = tuple((s.tag, s.target, s.start_s, s.end_s) for s in self.courier.log)
        operators = tuple(slot.operator for slot in self.part.slots)
        return StepLog(start, end, operators, tuple(spans), transfers, scalars)

    def _scalars(self) -> dict[str, float]:
        values = {name: self.part.registers[k] for name, k in self.part.outputs.items()}
        return {name: float(v) for name, v in values.items() if v is not None and v.numel() == 1}

    def outputs(self, path: str) -> tuple[str, ...]:
        """Write the outputs of the last step that were made here to a safetensors file."""
        found = {name: self.part.registers[k] for name, k in self.part.outputs.items()}
        return _write(path, {name: t for name, t in found.items() if t is not None})

    def state(self, path: str) -> tuple[str, ...]:
        """Write the state that lives here and changes to a safetensors file."""
        index, registers = self.part.index, self.part.registers
        return _write(path, {name: registers[index[name]] for name in self.state_names})


def _meeting_point(spec: WorkerSpec) -> Any:
    """The store in which the workers of one session, and of no other, find each other."""
    store, *_ = next(iter(rendezvous(spec.rendezvous, spec.rank, spec.world)))
    return PrefixStore(f"placewright/{spec.session}", store)


def keep_freed_memory() -> None:
    """Ask glibc to keep what is freed for the next step instead of handing it back each time.

    Handing back costs a page fault for every 4 KiB of every activation in every step.
    """
    trim_threshold, mmap_max = -1, -4
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_max, 0)


def laid_out(tensor: torch.Tensor | None, spec: TensorSpec) -> torch.Tensor:
    """A copy with the strides that `spec` promises, zeros where there is none.

    Never a view of a file's bytes: those are not aligned, and kernels round by that.
    """
    made = torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype))
    return made.zero_() if tensor is None else made.copy_(tensor)


def _write(path: str, tensors: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    save_file({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}, path)
    return tuple(tensors)
