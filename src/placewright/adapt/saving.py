"""When a run's snapshots are written, and what becomes of those that cannot be."""

from __future__ import annotations

import time
from dataclasses import dataclass

from placewright.adapt.adaptation import Adaptation
from placewright.adapt.job import Job
from placewright.adapt.replay_log import ReplayLog
from placewright.adapt.timeline import Kind, Timeline
from placewright.errors import WorkerError
from placewright.runtime.session import Session

TRIES = 2
"""Times that one snapshot is begun where workers are lost over it."""


@dataclass(slots=True)
class Saving:
    """Keeps a run's past up to date. What goes wrong with the disk is an event, not an error.

    Attributes
    ----------
    every
        Steps between two snapshots.
    """

    past: ReplayLog
    job: Job
    timeline: Timeline
    every: int
    _tries: int = 0

    def stepped(self) -> None:
        """A step has been counted; perhaps a snapshot is due."""
        if self.past.counted % self.every == 0:
            self._tries = TRIES

    def catch_up(self, session: Session, adaptation: Adaptation) -> None:
        """Write the snapshot that is due, if one is; asked again, try again, but not for ever.

        Raises
        ------
        WorkerError
            A worker was lost meanwhile.
        """
        if self._tries == 0:
            return
        self._tries -= 1
        try:
            self.save(session, adaptation)
        except WorkerError as error:
            if self._tries == 0:
                self._left_out(error.what)
            raise
        self._tries = 0

    def save(self, session: Session, adaptation: Adaptation) -> bool:
        """Write down where the run stands, unless that has been done; whether it is written.

        A disk that does not take it is an event: the run goes on, and later steps can still be
        repeated from the last snapshot.

        Raises
        ------
        WorkerError
            A worker was lost meanwhile.
        """
        step, start = self.past.counted, time.perf_counter()
        if self.past.saved == step:
            return True
        try:
            self.past.save(self.job, session, adaptation, step)
        except OSError as error:
            self._left_out(str(error.strerror or error))
            return False
        self.timeline.note(step, Kind.SNAPSHOT, "", seconds=time.perf_counter() - start)
        return True

    def _left_out(self, why: str) -> None:
        folder = self.past.snapshots.path
        self.timeline.note(self.past.counted, Kind.UNSAVED, f"{folder}: {why}")
