"""Engines: ways to start workers; their groups, which take orders and give answers.

WorkerGroup
├── PipedGroup            orders through connections that a process can wait for
│   ├── LocalGroup        children of this process (also on a testbed)
│   └── TorchrunGroup     children of the processes that torchrun has started
└── RayGroup              actors
"""

from __future__ import annotations

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, TypeAlias

from placewright.cluster.cluster import Cluster
from placewright.errors import (
    InputError,
    PlacewrightError,
    WorkerError,
    WorkerLostError,
    check_known,
)
from placewright.io.arguments import OneOf
from placewright.runtime import limits
from placewright.runtime.host import Host
from placewright.runtime.program import PIECE_BYTES, describe_order, load_program
from placewright.runtime.specs import PLACED_STEPS, WorkerSpec

STARTING = "starting and joining the others"


_CUT = re.compile(r"gloo/transport/\S+\] (.*?)(?:\. This is typically|$)")
"""What gloo says where a connection ends while both of its processes live."""

_FULL = re.compile(r"No space left on device|Disk quota exceeded")


class WorkerGroup(ABC):
    """A context manager around the workers of one session.

    Attributes
    ----------
    names
        What messages call each worker, by rank: its devices or its node.
    specs, hosts
        What each worker is, and where; known once the group is entered.
    program
        What the workers execute.
    limit_s
        Seconds that any order may take which is not given a limit of its own.
    """

    names: tuple[str, ...] = ()
    specs: tuple[WorkerSpec, ...] = ()
    hosts: tuple[Host, ...] = ()
    program: str = PLACED_STEPS
    limit_s = limits.FIRST_STEPS_S
    sent_whole = True
    """Whether all that was posted is sent: what is large and not read is still on its way."""
    _ahead = 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            if kind is None:
                self._collect_ahead()
                self.dismiss()
        finally:
            self.close()

    @property
    def start_limit_s(self) -> float:
        """Seconds in which all workers have to be up and to have joined the process group."""
        return limits.patience(limits.START_S + limits.JOIN_S)

    @abstractmethod
    def start(self) -> None:
        """Start the workers; they take orders afterwards."""

    @abstractmethod
    def post(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Give every worker an order, behind those that it has not answered; waits for nothing.

        `arguments`: by rank; small ones, where orders are on their way.
        """

    @property
    @abstractmethod
    def unanswered(self) -> int:
        """Orders of `post` whose answers were not collected."""

    @abstractmethod
    def collect_answers(self, limit_s: float | None = None) -> list[Any]:
        """By rank, the answers to the oldest order of `post` of which none were collected.

        Raises `WorkerError`: a worker died, raised, or did not answer within `limit_s` seconds;
        names the worker and shows its traceback.
        """

    def order(
        self, name: str, arguments: Sequence[tuple[Any, ...]], *, limit_s: float | None = None
    ) -> list[Any]:
        """Give every worker one order and collect the answers; no other is on its way.

        `arguments`: by rank.
        Raises `WorkerError`: see `collect_answers`.
        """
        if self.unanswered > self._ahead:
            raise self.interrupted_error()
        self.post(name, arguments)
        self._collect_ahead()
        return self.collect_answers(limit_s)

    def order_ahead(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Give every worker an order that has no answer but errors: the next `order` raises them.

        That saves a wait, unless workers do not read it at once.
        """
        if self.unanswered > self._ahead:
            raise self.interrupted_error()
        self.post(name, arguments)
        self._ahead += 1
        if not self.sent_whole:
            self._collect_ahead()

    def _collect_ahead(self) -> None:
        while self._ahead:
            self._ahead -= 1
            self.collect_answers()

    def order_all(self, name: str, *arguments: Any, limit_s: float | None = None) -> list[Any]:
        """Give every worker the same order."""
        return self.order(name, [arguments] * len(self.names), limit_s=limit_s)

    def distribute(self, file: Path) -> list[str]:
        """Give every worker a copy of a file, in pieces; the paths where they find them."""
        paths = self.order_all("begin_file")
        with file.open("rb") as source:
            while piece := source.read(PIECE_BYTES):
                self.order_all("append_file", piece)
        return paths

    def distribute_each(self, files: Sequence[Path]) -> list[str]:
        """Give every worker a file of its own, in pieces; the paths where they find them."""
        paths = self.order_all("begin_file")
        with ExitStack() as stack:
            sources = [stack.enter_context(file.open("rb")) for file in files]
            while any(pieces := [source.read(PIECE_BYTES) for source in sources]):
                self.order("append_file", [(piece,) for piece in pieces])
        return paths

    def collect(self, name: str, files: Sequence[Path]) -> None:
        """Have every worker write a file by the order `name`, and fetch it in pieces.

        Raises `OSError`: a worker cannot write, or this process cannot; all workers go on.
        """
        self.check_written(self.order_all("write_file", name))
        with ExitStack() as stack:
            targets = [stack.enter_context(file.open("wb")) for file in files]
            # All are asked until all have given everything; those that have, give nothing more.
            while any(pieces := self.order_all("read_file")):
                for target, piece in zip(targets, pieces, strict=True):
                    target.write(piece)

    @abstractmethod
    def dead(self) -> tuple[int, ...]:
        """Ranks whose process was killed or crashed (one that raised an error ends by itself)."""

    @abstractmethod
    def dismiss(self) -> None:
        """Let the workers end by themselves."""

    @abstractmethod
    def close(self) -> None:
        """End every worker now."""

    def check_written(self, answers: Sequence[str]) -> None:
        """Raise the `OSError` of the first worker that could not write its file."""
        for name, why in zip(self.names, answers, strict=True):
            if why:
                raise OSError(errno.EIO, f"device {name!r} could not write: {why}")

    def describe(self, order: str) -> str:
        """What a worker does at an order, as it goes on after "while"."""
        return describe_order(self.program, order)

    def worker_name(self, *ranks: int) -> str:
        """How messages name these workers: ``device 'a'``."""
        noun = load_program(self.program).noun + ("s" if len(ranks) > 1 else "")
        return f"{noun} {', '.join(repr(self.names[rank]) for rank in ranks)}"

    def raised_error(self, rank: int, traceback: str) -> WorkerError:
        """The error of a worker that raised one: of our own what to do next, of others all."""
        lines = [line for line in traceback.splitlines() if line[:1].strip()]
        by = lines[-1]  # what follows is indented: a hint of our own errors
        known = by.startswith(f"{PlacewrightError.__module__}.")
        by = by.removeprefix(f"{PlacewrightError.__module__}.")
        if cut := _CUT.search(by):
            return WorkerError(
                "its connection to another worker is lost",
                where=self.worker_name(rank),
                by=cut[1],
                hint="check the links between these devices, and run it again",
            )
        if _FULL.search(by) and not known:
            return WorkerError(
                "a disk is full",
                where=self.worker_name(rank),
                by=by,
                hint="free space there, or name another temporary folder in TMPDIR",
            )
        hint = traceback.rpartition("\n  next: ")[2].strip() if known else ""
        return WorkerError(
            "the worker raised an error",
            where=self.worker_name(rank),
            by=by,
            hint=hint or f"its traceback:\n{traceback}",
        )

    def interrupted_error(self) -> WorkerError:
        """The error of an order after one whose answers were not waited for."""
        return WorkerError(
            "an order before this one was broken off, and its answers are still to come",
            where=self.worker_name(*range(len(self.names))),
            hint="open another session",
        )

    def silent_error(self, ranks: Sequence[int], limit_s: float, task: str) -> WorkerError:
        """The error of workers that do not answer.

        `task`: what they were asked for: see `describe`.
        """
        return WorkerError(
            f"no answer in time while {task}: a link may be cut or a node stopped",
            where=self.worker_name(*ranks),
            by=f"waited {limit_s:.1f} s",
            hint="check the links between these devices; where they are only slow, "
            f"{limits.VARIABLE}=4 waits four times as long",
        )

    def stopped_error(self, rank: int, seconds: float, task: str) -> WorkerLostError:
        """The error of a worker that is stopped."""
        return WorkerLostError(
            f"the worker process is stopped (SIGSTOP) while {task}",
            where=self.worker_name(rank),
            by=f"for {seconds:.1f} s",
            hint="it is ended, for the others wait for it; run again, or with --adapt, which goes "
            "on without it",
        )

    def died_error(self, rank: int, how: str) -> WorkerLostError:
        """The error of a worker whose process is gone."""
        return WorkerLostError(
            "the worker process died",
            where=self.worker_name(rank),
            by=how,
            hint="if it was killed for memory, lower --batch or give the device a memory limit",
        )


ENGINES = {
    "local": "placewright.runtime.engines.local:local",
    "testbed": "placewright.runtime.engines.local:on_testbed",
    "torchrun": "placewright.runtime.engines.torchrun:Torchrun",
    "ray": "placewright.runtime.engines.ray_engine:Ray",
}
"""Where each is: what opens it for a cluster, with `emulate` as a keyword."""

EngineName: TypeAlias = Annotated[str, OneOf(*ENGINES)]


class Engine(Protocol):
    """A way to have workers."""

    @property
    def name(self) -> str:
        """As on the command line."""

    def group(self, cluster: Cluster, program: str = PLACED_STEPS) -> WorkerGroup:
        """Workers that execute `program` for the devices of `cluster`; none is started yet.

        Raises `PlacewrightError`: they cannot be had here.
        """

    def emulated(self, cluster: Cluster, hosts: Sequence[Host]) -> str:
        """What is emulated on these hosts, in words; empty if nothing."""


def open_engine(
    name: str, cluster: Cluster, *, emulate: bool = True, together: bool | None = None
) -> AbstractContextManager[Engine]:
    """The engine of that name, ready for sessions on `cluster` and on parts of it.

    Raises `PlacewrightError`: it cannot be had here; the message names what is missing. Or it has
    one process for each GPU, and `together` wants another number.

    Parameters
    ----------
    emulate
        Wait where devices and links are slower than the machines.
    together
        One process for all GPUs of a node, or one each (`layout.assign_processes`);
        torchrun and Ray start one each.
    """
    if together and name in ENGINES and name != "local":
        raise InputError(
            "one process for all GPUs of a node is for the engine local",
            where=f"engine {name}",
            by="it has one process for each device",
            hint="use --engine local, or leave out --gpus together",
        )
    check_known("engine", name, ENGINES)
    module, _, attribute = ENGINES[name].partition(":")
    opened: Callable[..., AbstractContextManager[Engine]]
    opened = getattr(import_module(module), attribute)
    if name == "local":
        return opened(cluster, emulate=emulate, together=together)
    return opened(cluster, emulate=emulate)
