"""What a session needs of its workers, however they were started: orders and answers.

WorkerGroup
├── PipedGroup            orders through connections that a process can wait for
│   ├── LocalGroup        children of this process (also on a testbed)
│   └── TorchrunGroup     children of the processes that torchrun has started
└── RayGroup              actors
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from placewright.errors import WorkerError
from placewright.runtime import limits
from placewright.runtime.host import Host
from placewright.runtime.worker_spec import WorkerSpec

STARTING = "starting and joining the others"

_DOING = {
    "load": "loading its part of the model",
    "steps": "executing a step",
    "migrate": "moving to another placement",
    "state": "writing its state",
    "outputs": "writing its outputs",
    "probe_speeds": "probing its speed",
    "probe_links": "probing its links",
}


def doing(verb: str) -> str:
    """What a worker does at an order, as it goes on after "while"."""
    return _DOING.get(verb, f"carrying out {verb!r}")


class WorkerGroup(ABC):
    """A context manager around the workers of one session, one per device.

    Attributes
    ----------
    names
        Of the devices, by rank.
    specs, hosts
        What each worker is, and where; known once the group is entered.
    limit_s
        Seconds that any order may take which is not given a limit of its own.
    """

    names: tuple[str, ...] = ()
    specs: tuple[WorkerSpec, ...] = ()
    hosts: tuple[Host, ...] = ()
    limit_s = limits.FIRST_STEPS_S

    def __enter__(self) -> Self:
        try:
            self.start()
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
        try:
            if kind is None:
                self.dismiss()
        finally:
            self.close()

    @property
    def start_limit_s(self) -> float:
        """Seconds in which all workers have to be up and to have joined the process group."""
        return limits.patience(limits.START_S + limits.JOIN_S)

    @abstractmethod
    def start(self) -> None:
        """Bring the workers up; they can be told orders afterwards."""

    @abstractmethod
    def order(
        self, verb: str, arguments: Sequence[tuple[Any, ...]], *, limit_s: float | None = None
    ) -> list[Any]:
        """Give every worker one order and collect the answers.

        Raises
        ------
        WorkerError
            A worker died, raised, or did not answer within `limit_s` seconds; names the device
            and shows the worker's own words.
        """

    def order_all(self, verb: str, *arguments: Any, limit_s: float | None = None) -> list[Any]:
        """Give every worker the same order."""
        return self.order(verb, [arguments] * len(self.names), limit_s=limit_s)

    @abstractmethod
    def hand_out(self, file: Path) -> list[str]:
        """Let every worker read a file of the caller's; the path under which each does."""

    @abstractmethod
    def collect(self, verb: str, files: Sequence[Path]) -> None:
        """Have every worker write a file with `verb`; it becomes the caller's file.

        Raises
        ------
        OSError
            A worker cannot write, or this process cannot; all workers go on.
        """

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
        """Raise the `OSError` of the first worker that says why it could not write."""
        for name, why in zip(self.names, answers, strict=True):
            if why:
                raise OSError(errno.EIO, f"device {name!r} could not write: {why}")

    def raised(self, rank: int, words: str) -> WorkerError:
        """The error of a worker that raised one."""
        return WorkerError(
            "the worker raised an error",
            where=f"device {self.names[rank]!r}",
            by=words.strip().splitlines()[-1],
            hint=f"its traceback:\n{words}",
        )

    def broken_off(self) -> WorkerError:
        """The error of an order after one whose answers were not waited for."""
        return WorkerError(
            "an order before this one was broken off, and its answers are still to come",
            where=f"devices {', '.join(repr(name) for name in self.names)}",
            hint="open another session",
        )

    def silent(self, ranks: Sequence[int], limit_s: float, task: str) -> WorkerError:
        """The error of workers that do not answer.

        Parameters
        ----------
        task
            What they were asked for: see `doing`.
        """
        names = ", ".join(repr(self.names[r]) for r in ranks)
        return WorkerError(
            f"no answer in time while {task}: a link may be cut or a node stopped",
            where=f"devices {names}",
            by=f"waited {limit_s:.1f} s",
            hint="check the links between these devices; where they are only slow, "
            f"{limits.VARIABLE}=4 waits four times as long",
        )

    def stood_still(self, rank: int, seconds: float, task: str) -> WorkerError:
        """The error of a worker that somebody has stopped."""
        return WorkerError(
            f"the worker process is stopped (SIGSTOP) while {task}",
            where=f"device {self.names[rank]!r}",
            by=f"for {seconds:.1f} s",
            hint="it is ended, for the others wait for it; run again, or with --adapt, which goes "
            "on without it",
        )

    def died(self, rank: int, how: str) -> WorkerError:
        """The error of a worker whose process is gone."""
        return WorkerError(
            "the worker process died",
            where=f"device {self.names[rank]!r}",
            by=how,
            hint="if it was killed for memory, lower --batch or give the device a memory limit",
        )
