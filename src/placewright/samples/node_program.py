"""The worker program of a node: it moves samples and trains with the other nodes."""

from __future__ import annotations

from placewright.capturing.gradients import MESSAGES
from placewright.capturing.update_rule import UpdateRule
from placewright.capturing.updates import Update
from placewright.runtime.program import Worker, WorkerProgram, order
from placewright.samples.mover import Fault, MoveOrder, Mover, SamplesSent, SampleTransfer
from placewright.samples.training.node_training import (
    Epoch,
    NodeStepTimes,
    NodeTraining,
    TrainingOrder,
    time_steps,
    train_node,
)
from placewright.samples.training.recipe import Recipe


class SampleNode(WorkerProgram):
    """One node; orders come from `moving.move`, `training.train` and `measuring`."""

    messages = (
        *(MoveOrder, SampleTransfer, Fault, SamplesSent),
        *(TrainingOrder, Recipe, NodeTraining, Epoch, NodeStepTimes, Update, UpdateRule, *MESSAGES),
    )
    noun = "node"
    listens = True

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._mover: Mover | None = None

    @order("getting ready to move samples")
    def prepare_move(self, move: MoveOrder) -> None:
        """Listen for other nodes, and be ready to send."""
        if self._mover is None:
            self._mover = Mover(self.worker.port(), move)
        else:
            self._mover.prepare(move)

    @order("sending samples")
    def send_samples(self) -> SamplesSent:
        """Send everything that the move asks of this node."""
        assert self._mover is not None
        return self._mover.send()

    @order("training")
    def train(self, training: TrainingOrder) -> NodeTraining:
        """Train all epochs together with the others."""
        return train_node(self.worker.spec, training)

    @order("timing a few steps")
    def time_steps(self, training: TrainingOrder, sizes: tuple[int, ...]) -> NodeStepTimes:
        """Take synchronous steps of these sizes on samples that are not kept."""
        return time_steps(self.worker.spec, training, sizes)
