"""How long a lost device is left alone: longer every time that it is lost again."""

from __future__ import annotations

import math
from dataclasses import dataclass

FORGIVEN = 10
"""A device that has stayed for so many times the steps that it had to wait begins anew."""


@dataclass(slots=True)
class RejoinBackoff:
    """One device's; a worker that is killed for its memory every time costs ever fewer restarts.

    Attributes
    ----------
    every
        Steps before it is looked for after a first loss, and between two looks that find nothing.
    until
        The step from which it is looked for.
    """

    every: int
    until: int = 0
    _wait: int = 0
    _returned: float = -math.inf

    def begin(self, step: int) -> None:
        """It is lost: the wait is doubled unless it had stayed for long."""
        stayed = step - self._returned
        self._wait = self.every if stayed > FORGIVEN * self._wait else 2 * self._wait
        self.until = step + self._wait

    def go_on(self, step: int) -> None:
        """It was looked for and does not answer."""
        self.until = step + self.every

    def end(self, step: int) -> None:
        """It is back."""
        self._returned = step
