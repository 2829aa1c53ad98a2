"""The workers of one session under torchrun, as the lead sees them."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from placewright.runtime import file_transfer as parcels
from placewright.runtime.connections.authentication import Listener
from placewright.runtime.connections.channel import Channel, wait
from placewright.runtime.engines.group import STARTING
from placewright.runtime.engines.piped import PipedGroup
from placewright.runtime.host import Host
from placewright.runtime.worker_spec import WorkerSpec

_END_S = 10.0
"""A keeper takes less to end its worker."""


class TorchrunGroup(PipedGroup):
    """One worker per device, a child of the device's keeper.

    Parameters
    ----------
    keepers
        By rank, connections to those who start the workers.
    door
        Where workers dial.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        hosts: Sequence[Host],
        keepers: Sequence[Channel],
        door: Listener,
    ) -> None:
        super().__init__()
        self.specs, self.hosts = tuple(specs), tuple(hosts)
        self.names = tuple(spec.device_name for spec in specs)
        self._keepers, self._door = tuple(keepers), door
        self._codes: dict[int, int | None] = {}

    def start(self) -> None:
        """See `WorkerGroup.start`."""
        for rank, agent in enumerate(self._keepers):
            if not _tell(agent, self.specs[rank]):
                raise self.died(rank, "with the process that torchrun had started")
        self.connections = self._dialled()
        self.answers(self.start_limit_s, STARTING)

    def _dialled(self) -> list[Channel]:
        """The workers' connections; a late one, of a session before, is shut."""
        found: dict[int, Channel] = {}
        deadline = time.monotonic() + self.start_limit_s
        while missing := [r for r in range(len(self.specs)) if r not in found]:
            called = self._door.accept(deadline - time.monotonic())
            if called is None:
                raise self.silent(missing, self.start_limit_s, STARTING)
            (session, rank), connection = called
            if session == self.specs[0].session:
                found[rank] = connection
        return [found[rank] for rank in range(len(self.specs))]

    def watched(self, rank: int) -> Channel:
        """See `PipedGroup.watched`."""
        return self._keepers[rank]

    def exit_code(self, rank: int, patience_s: float = 0.0) -> int | None:
        """See `PipedGroup.exit_code`; a keeper that is gone took its worker along."""
        if rank not in self._codes and wait([self._keepers[rank]], timeout=patience_s):
            self._codes[rank] = _told(self._keepers[rank])[1]
        return self._codes.get(rank)

    def hand_out(self, file: Path) -> list[str]:
        """A copy for every worker, sent in pieces."""
        return parcels.hand_out(self, file)

    def collect(self, verb: str, files: Sequence[Path]) -> None:
        """What workers write comes back in pieces."""
        parcels.collect(self, verb, files)

    def close(self) -> None:
        """See `WorkerGroup.close`; the keepers stay."""
        for agent in self._keepers:
            _tell(agent, None)
        for agent in self._keepers:
            while wait([agent], timeout=_END_S) and _told(agent)[0] == "died":
                pass
        for connection in self.connections:
            connection.close()


GONE = ("gone", -int(signal.SIGKILL))
"""What is noted of a keeper that says nothing any more."""


def _tell(agent: Channel, spec: WorkerSpec | None) -> bool:
    """Have a worker started or, told nothing, ended; whether the keeper is there."""
    try:
        agent.send(spec)
    except OSError:
        return False
    return True


def _told(agent: Channel) -> tuple[str, int | None]:
    """What a keeper says of its worker: that it died and how, or that it has ended it."""
    try:
        said: tuple[str, int | None] = agent.recv()
    except (EOFError, OSError):
        return GONE
    return said
