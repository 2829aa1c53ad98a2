"""`WorkerSession`: the workers of a cluster while they execute one program, whichever it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar

from placewright.cluster.cluster import Cluster
from placewright.runtime.engines.engine import Engine
from placewright.runtime.engines.group import WorkerGroup
from placewright.runtime.engines.local import Local
from placewright.runtime.messages.layout import Layout
from placewright.runtime.specs import PLACED_STEPS

T = TypeVar("T")


class WorkerSession:
    """A context manager: starts the workers, and knows which of them drives which device.

    Parameters
    ----------
    program
        What the workers execute; see `placewright.runtime.program`.
    engine
        Starts the workers; children of this process by default.
    """

    def __init__(
        self, cluster: Cluster, program: str = PLACED_STEPS, engine: Engine | None = None
    ) -> None:
        self.cluster = cluster
        self.engine: Engine = Local() if engine is None else engine
        self.group: WorkerGroup = self.engine.group(cluster, program)

    def __enter__(self) -> Self:
        try:
            self.group.__enter__()
            self.begin()
        except BaseException:
            self.group.close()
            self.remove()
            raise
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            self.group.__exit__(kind, *rest)
        finally:
            self.remove()

    def begin(self) -> None:
        """What a program needs before its first order."""

    def remove(self) -> None:
        """Remove what is on the disk for the workers; twice is fine."""

    @property
    def layout(self) -> Layout:
        """Which process drives each device, and how tensors travel."""
        return self.group.specs[0].layout

    @property
    def emulated(self) -> str:
        """See `Engine.emulated`."""
        return self.engine.emulated(self.cluster, self.group.hosts)

    def order_all(self, name: str, *arguments: Any, limit_s: float | None = None) -> list[Any]:
        """Give every worker the same order."""
        return self.order(name, [arguments] * len(self.group.specs), limit_s=limit_s)

    def order(
        self, name: str, arguments: Sequence[tuple[Any, ...]], *, limit_s: float | None = None
    ) -> list[Any]:
        """Give every worker an order; see `WorkerGroup.order`."""
        return self.group.order(name, arguments, limit_s=limit_s)

    def lost(self) -> set[str]:
        """Names of the devices whose process is gone."""
        dead = set(self.group.dead())
        names = self.cluster.device_names
        return {n for n, p in zip(names, self.layout.processes, strict=True) if p in dead}

    def by_process(self, values: Sequence[T]) -> list[tuple[T, ...]]:
        """Values of devices as each process gets those of its own."""
        groups = map(self.layout.device_group, range(len(self.group.specs)))
        return [tuple(values[device] for device in own) for own in groups]

    def by_device(self, answers: Sequence[Iterable[T]]) -> list[T]:
        """Answers by process and device, in the cluster's order."""
        # A process answers for its devices in the cluster's order.
        by_process = [iter(answer) for answer in answers]
        return [next(by_process[process]) for process in self.layout.processes]
