"""Links as the executor delivers over them: their own time, and what a message costs beside it.

`placewright.profiling.messages` measures that; here it is data, for which PyTorch is not needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from placewright.errors import WorkerError
from placewright.profiling.caveats import ProfileWarning

KEY = "messages between workers"
"""In a kept profile."""


@dataclass(frozen=True, slots=True)
class MessageCost:
    """Two lines over bytes.

    Attributes
    ----------
    real_s, real_s_per_byte
        All that a message takes over a link that is not emulated: through this machine's memory.
    extra_s, extra_s_per_byte
        What it takes beyond an emulated link's own time.
    """

    real_s: float
    real_s_per_byte: float
    extra_s: float
    extra_s_per_byte: float

    @classmethod
    def of(cls, kept: Mapping[str, float]) -> MessageCost | None:
        """From a kept profile; ``None`` where that lacks a number."""
        names = [field.name for field in fields(cls)]
        return cls(**{n: kept[n] for n in names}) if kept.keys() >= set(names) else None

    def as_entries(self) -> dict[str, float]:
        """For a kept profile."""
        return asdict(self)

    def line(self, latency_s: float, s_per_byte: float, *, given: bool) -> tuple[float, float]:
        """Latency and seconds per byte of a link as the executor delivers over it.

        Parameters
        ----------
        given
            Whether the cluster gives the link. One that it does not give is this machine's memory,
            and takes what was measured; one that it gives takes its own time and what the executor
            adds, and no less than this machine needs.
        """
        if not given:
            return self.real_s, self.real_s_per_byte
        return (
            max(latency_s + self.extra_s, self.real_s),
            max(s_per_byte + self.extra_s_per_byte, self.real_s_per_byte),
        )


class MessagesNotMeasuredWarning(ProfileWarning):
    """Links are taken as they are given, because two workers could not be started."""


def warn_of_messages(what: str, error: WorkerError) -> None:
    """Warn that messages are taken to cost nothing beside their links, and why."""
    warnings.warn(
        f"messages of {what} cost what its links say: two workers could not measure more "
        f"({error.what})\n  next: see that processes of this machine can connect to each other",
        MessagesNotMeasuredWarning,
        stacklevel=5,
    )
