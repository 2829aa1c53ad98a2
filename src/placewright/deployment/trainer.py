"""Trainer: place a training step and train it, in one object."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.deployment.adaptive import PlacedTrainer, note_events, note_start
from placewright.deployment.placed_model import PlacedModel
from placewright.deployment.placing import place
from placewright.errors import InputError, UnknownNameError
from placewright.io.arguments import checked
from placewright.planning.contract import monitor_of, silent

if TYPE_CHECKING:
    import torch

    from placewright.cluster.cluster import Cluster
    from placewright.operators.check import Comparison
    from placewright.runtime.engines.engine import Engine, EngineName


@checked
class Trainer(PlacedTrainer):
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
    check
        Do every step in eager PyTorch too, on a copy of the model in this process, and compare
        losses, parameters and buffers; `finish` writes the model and then raises if they differ.
        What was found is in ``timeline.check``.
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
    InputError
        With `check`: the run continues another one, or the model has no weights here.
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
        try:
            settings = {"adapt": adapt, "steps": steps, "schedulers": schedulers, **(loop or {})}
            super().__init__(placed, folder, **settings)
            self._comparison = self._eager() if check else None
        except BaseException:
            placed.close()
            raise
        self._monitor, self._noted = monitor_of(placing.get("progress", silent)), 0
        note_start(self.run, self._monitor)

    def _eager(self) -> Comparison:
        """Eager steps from the state that the run starts with."""
        from placewright.operators.check import Comparison

        load, run = self.placed.workload, self.run
        if run.done or load.weights:
            raise InputError(
                "training cannot be compared with eager PyTorch",
                where="Trainer(check=True)",
                by=f"the run goes on after step {run.done}"
                if run.done
                else "the model's weights are in files",
                hint="give an empty folder for snapshots, or leave folder out"
                if run.done
                else "leave check out, or give a model with its weights",
            )
        devices = load.cluster.devices
        return Comparison.of(load.graph, load.source, seed=run.seed, devices=devices)

    def _follow(self) -> bool:
        changed = super()._follow()
        if changed and self._comparison is not None:
            self._comparison.eager.take_over(self.model)
        return changed

    def step(self, inputs: Any, targets: Any = None) -> float:
        """See `PlacedTrainer.step`; events of the run (a lost worker, a migration) are noted."""
        if self._comparison is not None:  # before schedulers change the optimizer
            self._comparison.eager.feed(inputs, targets)
            if self.settings.optimizer is not None:
                self._comparison.eager.settings_of(self.settings.optimizer)
        loss = super().step(inputs, targets)
        if self._comparison is not None:
            self._comparison.step({"loss": loss}, None)
        note_events(self.run, self._noted, self._monitor)
        self._noted = len(self.timeline.events)
        return loss

    def finish(self) -> torch.nn.Module:
        """See `PlacedTrainer.finish`.

        Raises
        ------
        CheckError
            With `check`: a step differs from eager PyTorch. The model has what was learned.
        """
        if self._comparison is not None:
            self._comparison.after_last(self.run.state())
            self.timeline.check = self._comparison.check()
        model = super().finish()
        if self.timeline.check is not None:
            self.timeline.check.demand()
        return model

    def close(self) -> None:
        """End the run and its workers; snapshots stay."""
        try:
            super().close()
        finally:
            self.placed.close()
