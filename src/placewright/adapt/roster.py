"""Who takes part in a run: devices that are lost, devices that come back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from placewright.adapt.job import Job
from placewright.errors import WorkerError

TRIES = 3
"""Times that one step is tried again when nobody seems to be gone."""


@dataclass(slots=True)
class Roster:
    """The job's devices.

    Attributes
    ----------
    lost
        Devices that take no part.
    tries
        Faults in a row since workers last did what they were told.
    """

    job: Job
    lost: set[str] = field(default_factory=set)
    tries: int = 0

    def alive(self) -> tuple[str, ...]:
        """Devices that are not lost, in the cluster's order."""
        return tuple(n for n in self.job.cluster.device_names if n not in self.lost)

    def missed(self, dead: Collection[str], error: WorkerError) -> set[str]:
        """Strike out who is gone: the `dead`, and whoever the others cannot reach.

        Parameters
        ----------
        dead
            Devices whose worker has ended.
        error
            What made the run look.

        Raises
        ------
        WorkerError
            `error` itself: nobody is gone, more than `TRIES` times in a row.
        """
        left = [n for n in self.alive() if n not in dead]
        gone = set(dead) | (set(left) - set(self.job.reachable(left)))
        self.tries += 1
        if not gone and self.tries > TRIES:
            raise error
        self.lost |= gone
        return gone

    def back(self) -> set[str]:
        """Lost devices that answer again."""
        return set(self.job.reachable(self.job.cluster.device_names)) & self.lost
