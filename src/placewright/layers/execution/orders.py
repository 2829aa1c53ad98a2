"""What the workers of a plan are sent: layers as programs, and each worker's part of a stage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from placewright.capturing.updates import Update
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Instruction
from placewright.layers.profile.splitting import Split, split_layer


@dataclass(frozen=True, slots=True)
class LayerProgram:
    """Calls of one layer on a fixed number of samples.

    Attributes
    ----------
    inputs, outputs
        Values that come from the layer before, and go to the next one.
    feeds
        Values of the batch that it reads.
    parameters, buffers, constants
        Value -> name in the file of the model's state.
    specs
        Of all values.
    autocast
        See `placewright.layers.profile.tracing.TracedStep`.
    """

    samples: int
    instructions: tuple[Instruction, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    feeds: tuple[str, ...]
    parameters: Mapping[str, str]
    buffers: Mapping[str, str]
    constants: Mapping[str, str]
    specs: Mapping[str, TensorSpec]
    autocast: str = ""

    def split(self, degree: int, shared: frozenset[str] = frozenset()) -> Split:
        """The layer over `degree` workers; parameters named in `shared` stay whole."""
        free = frozenset(v for v, name in self.parameters.items() if name not in shared)
        return split_layer(self.instructions, self.specs, free, self.outputs, degree)


@dataclass(frozen=True, slots=True)
class LayerOrder:
    """One layer on one worker.

    `strategy`: a value of `placewright.layers.plan.Strategy`.
    `program`: on the samples that this worker takes of a micro-batch.
    """

    name: str
    strategy: str
    program: LayerProgram


@dataclass(frozen=True, slots=True)
class SizedLayers:
    """All layers on one number of samples, and a batch of so many as safetensors."""

    programs: tuple[LayerProgram, ...]
    batch: bytes


@dataclass(frozen=True, slots=True)
class StageOrder:
    """One worker's part of a plan.

    Attributes
    ----------
    stage, stages
        Its number, and how many there are.
    layers
        In order.
    replica, column
        Its position in the stage's mesh of replicas x tensor degree.
    shares
        Samples of a micro-batch of every replica of this stage.
    micro_batches, schedule
        As of `placewright.layers.plan.LayerPlan`.
    zero_stage, recompute
        As of `placewright.layers.plan.Stage`.
    chain
        Ranks of the pipeline that this worker is in, by stage.
    across
        Ranks of the same column in all replicas: gradients are summed over them.
    inside
        Ranks of its replica: they split layers among each other.
    feeds, batched
        Values of a batch in order; those that are cut along samples.
    loss_share
        Weight of the loss of this worker's samples of a micro-batch in that of the whole batch.
    counts
        Whether its loss is counted: workers that compute the same one count once.
    received, sent
        Activations of a micro-batch from the stage before, and to the one after.
    shared
        Parameters that several layers use.
    update
        Of the parameters.
    everyone
        Ranks of all workers of the plan, which clip gradients together.
    draws
        Whether the model draws random numbers.
    """

    stage: int
    stages: int
    layers: tuple[LayerOrder, ...]
    replica: int
    column: int
    shares: tuple[int, ...]
    micro_batches: int
    schedule: str
    zero_stage: int
    recompute: bool
    chain: tuple[int, ...]
    across: tuple[int, ...]
    inside: tuple[int, ...]
    feeds: tuple[str, ...]
    batched: tuple[str, ...]
    loss_share: float
    counts: bool
    received: tuple[TensorSpec, ...]
    sent: tuple[TensorSpec, ...]
    update: Update
    shared: tuple[str, ...] = ()
    everyone: tuple[int, ...] = ()
    draws: bool = False

    @property
    def draws_in_order(self) -> bool:
        """Whether all stages draw one after another, as one process does."""
        return self.draws and len(self.shares) == 1 and self.micro_batches == 1


@dataclass(frozen=True, slots=True)
class WorkerStepTimes:
    """One step of one worker, seconds of its own clock after the barrier.

    Attributes
    ----------
    step_s
        The whole step.
    forward_s, backward_s
        Inside its layers, waiting for other workers included.
    loss
        Its part of the loss of the whole batch.
    work_s
        `forward_s` without waiting for the other workers of its replica: how fast it is itself.
    grad_norm
        Of all gradients before they were clipped; NaN where they are not.
    overflow
        Whether a scaled gradient was infinite, so that nothing was updated.
    random
        State of the generator after the step, of the worker that knows it.
    """

    step_s: float
    forward_s: float
    backward_s: float
    loss: float
    work_s: float = 0.0
    grad_norm: float = math.nan
    overflow: bool = False
    random: bytes = b""
