"""One worker process per device on this machine, started, ordered about and ended.

Workers come from a forkserver that has torch loaded, so that each starts in a few
hundredths of a second. Whatever happens to the caller, no worker outlives it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from placewright.errors import WorkerError
from placewright.execute.worker import WorkerSpec, worker_main


class WorkerGroup:
    """A context manager around the worker processes of one run.

    Parameters
    ----------
    specs
        One per device; `rank`, `world` and `rendezvous` are filled in here.

    Attributes
    ----------
    limit_s
        Seconds that any order may take which is not given a limit of its own.
    """

    def __init__(self, specs: Sequence[WorkerSpec]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="placewright-")
        self.folder = Path(self._folder.name)
        seat = specs[0].seat
        inside = f"tcp://{seat.address}:{RENDEZVOUS_PORT}" if seat is not None else ""
        rendezvous = inside or f"file://{self.folder / 'rendezvous'}"
        self.specs = tuple(
            replace(spec, rank=rank, world=len(specs), rendezvous=rendezvous)
            for rank, spec in enumerate(specs)
        )
        self.limit_s = float("inf")
        self.processes: list[BaseProcess] = []
        self._orders: list[Connection] = []
        self._lifelines: list[Connection] = []

    def __enter__(self) -> WorkerGroup:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read once, when torch is loaded
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "placewright.execute.worker"])
        try:
            for spec in self.specs:
                self._start(context, spec)
            self._answers(range(len(self.specs)))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            for orders in self._orders:
                orders.send(("stop", ()))
        self.close()

    def order(
        self,
        verb: str,
        arguments: Sequence[tuple[Any, ...]],
        *,
        limit_s: float | None = None,
    ) -> list[Any]:
        """Give every worker one order and collect the answers.

        Raises
        ------
        WorkerError
            A worker died, raised, or did not answer within `limit_s` seconds; names the device
            and shows the worker's own words.
        """
        for orders, values in zip(self._orders, arguments, strict=True):
            try:
                orders.send((verb, values))
            except (BrokenPipeError, OSError):
                continue  # it has died: its sentinel says so below
        limit = self.limit_s if limit_s is None else limit_s
        return self._answers(range(len(self.specs)), limit)

    def order_all(self, verb: str, *arguments: Any, limit_s: float | None = None) -> list[Any]:
        """Give every worker the same order."""
        return self.order(verb, [arguments] * len(self.specs), limit_s=limit_s)

    def dead(self) -> tuple[int, ...]:
        """Ranks whose process was killed or crashed (one that raised an error ends by itself)."""
        return tuple(r for r, p in enumerate(self.processes) if p.exitcode not in (None, 0))

    def close(self) -> None:
        """End every worker now."""
        for lifeline in self._lifelines:
            lifeline.close()
        deadline = time.monotonic() + 5.0
        for process in self.processes:
            process.join(timeout=max(0.0, min(0.5, deadline - time.monotonic())))
            if process.is_alive():
                process.kill()
                process.join(timeout=5.0)
        self._folder.cleanup()

    def _start(self, context: Any, spec: WorkerSpec) -> None:
        orders, theirs = context.Pipe()
        lifeline, their_lifeline = context.Pipe()
        process = context.Process(
            target=worker_main,
            args=(spec, theirs, their_lifeline),
            name=f"placewright-{spec.device_name}",
            daemon=True,
        )
        with main_hidden():
            process.start()
        theirs.close()
        their_lifeline.close()
        self.processes.append(process)
        self._orders.append(orders)
        self._lifelines.append(lifeline)

    def _answers(self, ranks: Sequence[int], limit_s: float = float("inf")) -> list[Any]:
        """One answer per worker; the first death or error ends the wait, and so does the limit."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + limit_s
        while len(answers) < len(ranks):
            open_ranks = [r for r in ranks if r not in answers]
            pipes = {self._orders[r]: r for r in open_ranks}
            sentinels = {self.processes[r].sentinel: r for r in open_ranks}
            left = deadline - time.monotonic()
            ready = wait([*pipes, *sentinels], timeout=min(max(0.0, left), _LONGEST_WAIT_S))
            if not ready and left <= 0:
                raise self._silence(open_ranks, limit_s)
            spoke = [pipes[p] for p in ready if isinstance(p, Connection) and p in pipes]
            for rank in spoke:
                answers[rank] = self._receive(rank)
            died = [sentinels[s] for s in ready if isinstance(s, int) and s in sentinels]
            for rank in set(died) - set(answers):
                raise self._death(rank)
        return [answers[r] for r in ranks]

    def _receive(self, rank: int) -> Any:
        try:
            status, value = self._orders[rank].recv()
        except (EOFError, OSError):
            raise self._death(rank) from None
        if status == "error":
            raise self._first_cause(rank, str(value))
        return value

    def _first_cause(self, rank: int, words: str) -> WorkerError:
        """A peer's death makes the others raise too: blame the dead one if there is one."""
        others = [p.sentinel for r, p in enumerate(self.processes) if r != rank]
        wait(others, timeout=0.3)
        for other, process in enumerate(self.processes):
            if process.exitcode not in (None, 0):
                return self._death(other)
        return WorkerError(
            "the worker raised an error",
            where=f"device {self.specs[rank].device_name!r}",
            by=words.strip().splitlines()[-1],
            hint=f"its traceback:\n{words}",
        )

    def _silence(self, ranks: Sequence[int], limit_s: float) -> WorkerError:
        names = ", ".join(repr(self.specs[r].device_name) for r in ranks)
        return WorkerError(
            "no answer in time: a link may be cut or a node stopped",
            where=f"devices {names}",
            by=f"waited {limit_s:.1f} s",
            hint="check the links between these devices",
        )

    def _death(self, rank: int) -> WorkerError:
        process = self.processes[rank]
        process.join(timeout=1.0)
        code = process.exitcode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return WorkerError(
            "the worker process died",
            where=f"device {self.specs[rank].device_name!r}",
            by=how,
            hint="if it was killed for memory, lower --batch or give the device a memory limit",
        )


RENDEZVOUS_PORT = 29500
"""Free in a testbed, whose nodes have networks of their own."""

_LONGEST_WAIT_S = 3600.0
"""A wait without a limit wakes up once an hour: poll() takes no infinite timeouts."""


@contextmanager
def main_hidden() -> Iterator[None]:
    """Keep a starting worker from executing the caller's script again.

    Workers need nothing of it, and a script of three lines has no ``__main__`` guard.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
