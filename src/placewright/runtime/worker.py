"""The program of one worker process: its devices and its orders.

A worker obeys orders that come through its pipe one at a time and answers each one. It ends
when it is told to, when an order fails, or when the process that started it is gone.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from placewright.graph.graph import TensorSpec
from placewright.runtime.connections.channel import Channel
from placewright.runtime.device_group import DeviceGroup, StepLog
from placewright.runtime.emulation import Stretch, precise_sleeps
from placewright.runtime.file_transfer import FileTransfer
from placewright.runtime.freed_memory import keep_freed_memory
from placewright.runtime.joining import direct_group, join
from placewright.runtime.machine_load import cpu_reading
from placewright.runtime.messages.exchange import Exchange
from placewright.runtime.probe import LinkSeconds, SpeedProbe, link_seconds
from placewright.runtime.storable import storable
from placewright.runtime.worker_spec import WorkerSpec


def worker_main(spec: WorkerSpec, orders: Channel, lifeline: Connection) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(lifeline)
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


def _obey(worker: Worker, orders: Channel) -> None:
    while True:
        verb, arguments = orders.recv()
        if verb == "stop":
            return
        orders.send(("ok", worker.obey(verb, arguments)))


def end_with_parent(lifeline: Connection) -> None:
    """Exit as soon as the other end of the lifeline is closed, whatever the process does then.

    A thread alone is not enough: some of torch's waits, for the file that workers meet in for one,
    let no other thread of Python run. So the kernel is asked to send a signal, where it can.
    """

    def end() -> None:
        with suppress(EOFError, OSError):
            lifeline.recv()
        os._exit(1)

    with suppress(OSError, AttributeError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    threading.Thread(target=end, daemon=True).start()
    if lifeline.poll():  # closed before anybody listened
        os._exit(1)


class Worker:
    """The devices of the cluster that this process drives, and what they are told."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        if spec.handle is not None:
            spec.handle.enter()
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            if spec.handle is not None:
                os.environ[name] = spec.handle.interface
            elif spec.interface:
                os.environ.setdefault(name, spec.interface)
        if spec.cores:
            os.sched_setaffinity(0, spec.cores)
        torch.set_num_threads(spec.threads)
        precise_sleeps()
        keep_freed_memory()
        join(spec)
        self.parcels = FileTransfer()
        self.places = [
            spec.layout.devices[d].torch_device for d in spec.layout.device_group(spec.rank)
        ]
        if self.places[0].startswith("cuda"):  # else whatever names no device touches the first GPU
            torch.cuda.set_device(self.places[0])
        self.device_group = DeviceGroup(
            Exchange(spec.layout, spec.rank, spec.links, direct_group(spec))
        )
        self.speed_probes: list[SpeedProbe] = []
        self.stretch = Stretch(spec.stretch) if spec.stretch > 1 else None

    def obey(self, verb: str, arguments: Sequence[Any]) -> Any:
        """Carry out one order and answer it."""
        verbs: dict[str, Callable[..., Any]] = {
            "load": self.device_group.load,
            "steps": self.steps,
            "seed": self.seed,
            "outputs": self.outputs,
            "state": self.state,
            "migrate": self.device_group.migrate,
            "feed": self.feed,
            "random_state": self.random_state,
            "set_random_state": self.set_random_state,
            "disturb": self.disturb,
            "cpu_reading": cpu_reading,
            "probe_speeds": self.probe_speeds,
            "probe_links": self.probe_links,
            "begin_parcel": self.parcels.begin,
            "append_parcel": self.parcels.append,
            "pack_parcel": lambda verb: self.parcels.pack(lambda path: verbs[verb](path)),
            "take_parcel": self.parcels.take,
        }
        return verbs[verb](*arguments)

    def feed(self, batch: bytes, specs: Mapping[str, TensorSpec]) -> None:
        """Replace inputs and targets from the next step on.

        Parameters
        ----------
        batch
            Tensors by program input as safetensors.
        specs
            Their layouts.
        """
        self.device_group.feed(load(batch), specs)

    def seed(self, seed: int) -> None:
        """Set the global random-number generator."""
        torch.manual_seed(seed)

    def random_state(self) -> bytes:
        """State of the global random-number generator."""
        return bytes(torch.get_rng_state().numpy())

    def set_random_state(self, state: bytes) -> None:
        """Continue a sequence of random numbers that began elsewhere."""
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def probe_speeds(self) -> list[float]:
        """Seconds that a small piece of work takes on each device."""
        self.speed_probes = self.speed_probes or [SpeedProbe(place) for place in self.places]
        return [probe.seconds(self.stretch) / probe.count for probe in self.speed_probes]

    def probe_links(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], LinkSeconds]:
        """Round trips of the pairs that start here; every worker is given the same list."""
        found, courier = {}, self.device_group.exchange.courier
        for source, target in pairs:
            processes = [self.spec.layout.devices[d].process for d in (source, target)]
            if self.spec.rank in processes:
                here = (source, target)[processes.index(self.spec.rank)]
                seconds = link_seconds(here, source, target, courier)
                if here == source:
                    found[source, target] = seconds
        return found

    def disturb(self, factor: float) -> None:
        """Emulate another slowness from the next step on."""
        self.stretch = Stretch(factor) if factor > 1 else None

    def steps(self, count: int, watched: bool) -> list[tuple[StepLog, ...]]:
        """Execute `count` steps; all workers start each one together. Logs by step and device."""
        return [self._step(watched) for _ in range(count)]

    def _step(self, watched: bool) -> tuple[StepLog, ...]:
        self.device_group.exchange.start()
        dist.barrier()
        return self.device_group.step(watched, self.stretch)

    def outputs(self, path: str) -> str:
        """Write the outputs of the last step that were made here to a safetensors file.

        Returns
        -------
        str
            Why it cannot be written; empty if it is.
        """
        return _written(path, self.device_group.outputs())

    def state(self, path: str) -> str:
        """Write the state that lives here and changes, likewise."""
        return _written(path, self.device_group.state())


def _written(path: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """A disk that takes no file is no reason to end: the caller is told and decides."""
    try:
        save_file(storable(tensors), path)
    except (OSError, SafetensorError) as error:
        return str(error)
    return ""
