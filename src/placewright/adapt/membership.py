"""Who takes part in a run: devices that are lost, devices that come back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from placewright.adapt.job import Job
from placewright.adapt.rejoin_backoff import RejoinBackoff
from placewright.errors import PlacewrightError

TRIES = 3
"""Times that one step is tried again when nobody seems to be gone."""


@dataclass(slots=True)
class Membership:
    """The job's devices.

    Attributes
    ----------
    rejoin_every
        Steps before a lost device is looked for (`placewright.adapt.rejoin_backoff`).
    lost
        Devices that take no part.
    newcomers
        Devices that have come back and have not yet been started with.
    tries
        Faults in a row since workers last did what they were told.
    """

    job: Job
    rejoin_every: int = 20
    lost: set[str] = field(default_factory=set)
    newcomers: set[str] = field(default_factory=set)
    tries: int = 0
    _absences: dict[str, RejoinBackoff] = field(default_factory=dict)

    def alive(self) -> tuple[str, ...]:
        """Devices that are not lost, in the cluster's order."""
        return tuple(n for n in self.job.cluster.device_names if n not in self.lost)

    def missed(self, dead: Collection[str], error: PlacewrightError, step: int) -> set[str]:
        """Strike out who is gone: the `dead`, and whoever the others cannot reach.

        Where that is nobody, those who have just come back are to blame.

        Parameters
        ----------
        dead
            Devices whose worker has ended.
        error
            What made the run look.
        step
            Steps done.

        Raises
        ------
        PlacewrightError
            `error` itself: nobody is gone, more than `TRIES` times in a row.
        """
        left = [n for n in self.alive() if n not in dead]
        reached = self.job.reachable(left or self.alive())  # all dead: is there anything at all?
        gone = set(dead) | (set(left) - set(reached)) or set(self.newcomers)
        self.tries += 1
        if not gone and self.tries > TRIES:
            raise error
        for name in gone:
            self._absence(name).begin(step)
        self.newcomers -= gone
        self.lost |= gone
        return gone

    def back(self, step: int) -> set[str]:
        """Lost devices that are due and answer again, to whoever takes part now."""
        due = [n for n in self.job.cluster.device_names if self._due(n, step)]
        if not due:
            return set()
        found = set(self.job.reachable((*self.alive(), *due)))
        back = found.intersection(due) if found.issuperset(self.alive()) else set()
        for name in set(due) - back:
            self._absence(name).go_on(step)
        return back

    def rejoin(self, names: Collection[str], step: int) -> None:
        """They take part from the next start on."""
        for name in names:
            self._absence(name).end(step)
        self.lost -= set(names)
        self.newcomers |= set(names)

    def started(self) -> None:
        """Workers are up on all who take part: nobody is new any more."""
        self.newcomers.clear()

    def told(self, gone: Collection[str]) -> str:
        """Who is lost, and for how long each is left alone, in words."""
        each = [f"{n} (looked for after step {self._absence(n).until})" for n in sorted(gone)]
        return f"lost {', '.join(each)}"

    def _due(self, name: str, step: int) -> bool:
        return name in self.lost and step >= self._absence(name).until

    def _absence(self, name: str) -> RejoinBackoff:
        return self._absences.setdefault(name, RejoinBackoff(self.rejoin_every))
