"""Trainer: place a training step and train it, in one object."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.deployment.placing import place
from placewright.operators.adaptive.trainer import TrainingLoop

if TYPE_CHECKING:
    import torch

    from placewright.cluster.cluster import Cluster
    from placewright.runtime.engines.engine import Engine


class Trainer(TrainingLoop):
    """Places a training step and executes it batch after batch, in the user's own loop.

    In five lines::

        with Trainer(model, x, cluster, loss_fn=loss_fn, targets=y, optimizer=optimizer) as trainer:
            for x, y in trainer.remaining(loader):
                loss = trainer.step(x, y)
            trainer.finish()

    As ``placewright operators run --training`` does, it calibrates on the workers of the engine,
    plans, and with `adapt` tries plans, watches its steps, migrates and survives lost workers.

    Parameters
    ----------
    model, inputs, cluster
        As of `placewright.place`.
    engine
        ``local``, ``testbed``, ``torchrun``, ``ray``.
    adapt
        Plan again when something changes, and try plans in the first of `steps` steps.
    folder, steps, schedulers
        As of `placewright.PlacedModel.trainer`.
    loop
        Further settings of `placewright.PlacedModel.trainer`.
    placing
        Further settings of `placewright.place`: ``loss_fn``, ``targets``, ``optimizer``, ...

    Raises
    ------
    PlacewrightError
        As of `placewright.place` and `placewright.PlacedModel.trainer`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Any,
        cluster: Cluster | None = None,
        *,
        engine: str | Engine = "local",
        adapt: bool = True,
        folder: str | Path | None = None,
        steps: int | None = None,
        schedulers: Any = (),
        loop: dict[str, Any] | None = None,
        **placing: Any,
    ) -> None:
        # A run that adapts tries plans in its first steps, where it knows how many there are.
        placing = {"trials": not adapt or steps is None, **placing}
        self.placed = place(model, inputs, cluster, training=True, engine=engine, **placing)
        try:
            settings = {"adapt": adapt, "steps": steps, "schedulers": schedulers, **(loop or {})}
            self._loop = self.placed.trainer(folder, **settings)
        except BaseException:
            self.placed.close()
            raise
        vars(self).update(vars(self._loop))

    def close(self) -> None:
        """End the run and its workers; snapshots stay."""
        try:
            super().close()
        finally:
            self.placed.close()
