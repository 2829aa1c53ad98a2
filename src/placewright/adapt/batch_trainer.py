"""BatchTrainer: an ordinary training loop, batch after batch, on a fault-tolerant run."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    import torch

    from placewright.adapt.run import FaultTolerantRun
    from placewright.adapt.timeline import Timeline

Run = TypeVar("Run", bound="FaultTolerantRun")


class UnfinishedWarning(UserWarning):
    """A trainer was closed, and the model does not have what was learned."""


class BatchTrainer(ABC, Generic[Run]):
    """What trainers of every wing share; a wing adds how a step is done and what is learned by it.

    A ``with`` block that ends without an error calls `finish` where the loop did not. After an
    error the model is as it was, and the error has a note that says so.

    `run`: the trainer closes it.
    """

    def __init__(self, model: torch.nn.Module, run: Run) -> None:
        self.model, self.run = model, run
        self._to_skip = run.done
        self._kept = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None and self._unfinished():
                self.finish()
            elif error is not None and self._unfinished():
                error.add_note(self._lost())
        finally:
            self._kept = self.run.done
            self.close()

    @abstractmethod
    def _write_back(self) -> None:
        """Write what was learned into the model."""

    def finish(self) -> torch.nn.Module:
        """Write trained parameters and buffers into the model, and a last snapshot; the model.

        The optimizer object, if one was given, gets its state. Steps may follow, and another
        `finish`.

        Raises
        ------
        RunError
            The last snapshot cannot be written, though the model has what was learned; or the
            trainer is closed, and the model is as it was.
        """
        self._write_back()
        self._kept = self.run.done
        self.run.finish()
        return self.model

    def close(self) -> None:
        """End the run and its workers; snapshots stay.

        Warns (`UnfinishedWarning`) where steps were done after the last `finish`.
        """
        if self._unfinished():
            warnings.warn(self._lost(), UnfinishedWarning, stacklevel=2)
        self.run.close()

    def _unfinished(self) -> bool:
        """Whether the workers have learned what the model does not have."""
        return self.run.done > self._kept and not self.run.closed

    def _lost(self) -> str:
        steps = f"steps {self._kept + 1} to {self.run.done}"
        return (
            f"the model does not have what was learned ({steps}): finish() was not called\n"
            f"  next: call it before the trainer is closed; snapshots, if they are kept, have step "
            f"{self.run.log.saved}"
        )

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
