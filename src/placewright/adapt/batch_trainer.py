"""BatchTrainer: an ordinary training loop, batch after batch, on a fault-tolerant run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    import torch

    from placewright.adapt.run import FaultTolerantRun
    from placewright.adapt.timeline import Timeline

Run = TypeVar("Run", bound="FaultTolerantRun")


class BatchTrainer(Generic[Run]):
    """What trainers of every wing share; a wing adds how a step is done and what is learned by it.

    `run`: the trainer closes it.
    """

    def __init__(self, model: torch.nn.Module, run: Run) -> None:
        self.model, self.run = model, run
        self._to_skip = run.done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the run and its workers; snapshots stay."""
        self.run.close()

    @property
    def timeline(self) -> Timeline:
        """Step times, losses and events so far."""
        return self.run.timeline

    @property
    def steps_done(self) -> int:
        """Steps done, including those before the snapshot that a continued run started from."""
        return self.run.done

    def remaining(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's batches but for those that a continued run has already taken.

        The loader must give the same order every time it is iterated: once for every epoch.
        """
        for batch in loader:
            if self._to_skip > 0:
                self._to_skip -= 1
            else:
                yield batch
