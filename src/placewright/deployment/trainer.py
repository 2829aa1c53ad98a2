"""Trainer: place a training step and train it, in one object."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.adapt.training_loop import TrainingLoop
from placewright.deployment.placed_model import PlacedModel
from placewright.deployment.placing import place
from placewright.errors import UnknownNameError
from placewright.io.arguments import checked
from placewright.operators.adaptive.run import AdaptiveRun

if TYPE_CHECKING:
    import torch

    from placewright.cluster.cluster import Cluster
    from placewright.runtime.engines.engine import Engine, EngineName


@checked
class Trainer(TrainingLoop[AdaptiveRun]):
    """Places a training step and executes it batch after batch, in the user's own loop.

    In five lines::

        with Trainer(model, x, cluster, loss_fn=loss_fn, targets=y, optimizer=optimizer) as trainer:
            for x, y in trainer.remaining(loader):
                loss = trainer.step(x, y)
            trainer.finish()

    As ``placewright operators run --training`` does, it calibrates on the workers of the engine,
    plans, and with `adapt` tries plans, watches its steps, migrates and notes every event. Lost
    workers are survived with and without `adapt`.

    Parameters
    ----------
    model, inputs, cluster
        As of `placewright.place`.
    engine
        ``local``, ``testbed``, ``torchrun``, ``ray``. Under torchrun every process executes the
        script up to here; rank 0 goes on, the others serve it and end in `SystemExit`.
    adapt
        Plan again when something changes, and try plans in the first of `steps` steps.
    check, folder, steps, schedulers
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
        cluster: Cluster | str | Path | None = None,
        *,
        engine: EngineName | Engine = "local",
        adapt: bool = True,
        check: bool = False,
        folder: str | Path | None = None,
        steps: int | None = None,
        schedulers: Any = (),
        loop: dict[str, Any] | None = None,
        **placing: Any,
    ) -> None:
        # A run that adapts tries plans in its first steps, where it knows how many there are.
        placing = {"trials": not adapt or steps is None, **placing}
        known = [*signature(PlacedModel.trainer).parameters][1:]
        for name in loop or {}:
            if name not in known:
                raise UnknownNameError("setting", str(name), known, where="Trainer(loop=...)")
        placed = place(model, inputs, cluster, training=True, engine=engine, **placing)
        settings = {"adapt": adapt, "check": check, "steps": steps, "schedulers": schedulers}
        try:
            program = placed.training_program(folder, **settings, **(loop or {}))
            super().__init__(program, placed.monitor, placed)
        except BaseException:
            placed.close()
            raise

    def close(self) -> None:
        """End the run and its workers; snapshots stay."""
        try:
            super().close()
        finally:
            self.placed.close()
