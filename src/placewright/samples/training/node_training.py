"""A node's part in training: synchronous SGD on gloo.

In every step node i takes its share b_i of the step's B samples and sums their gradients; the sums
of all nodes are added and divided by B, which is to weight the nodes' mean gradients with
``b_i / B``: the step of one node on the union of the batches. A `Learner` has the node's model, its
state and its gradients.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from placewright.capturing.gradients import MESSAGES, BatchProgram, ProgramRun
from placewright.capturing.update_rule import UpdateRule
from placewright.capturing.updates import OPTIMIZER, Update
from placewright.errors import InputError
from placewright.io.arguments import Count, checked
from placewright.io.tensor_files import write_tensors
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.runtime.program import Worker, WorkerProgram, order
from placewright.samples.data import Shard
from placewright.samples.mover import Fault, MoveOrder, Mover, SamplesSent, SampleTransfer

if TYPE_CHECKING:
    from placewright.runtime.specs import WorkerSpec


@checked
@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How the nodes train.

    Attributes
    ----------
    batch
        Samples of a step, all nodes together.
    seed
        Of the order of samples, and of random numbers that the model draws.
    shares
        ``data``: a node's share of a step is its share of the samples. ``speed``: as many as
        its speed allows, from what it has (LB-BSP). ``weighted``: so many, too, and their gradients
        count for more where the node's share of the samples is larger (`node_weights`).
    local_steps
        Steps between two exchanges; 1 exchanges gradients, more average parameters.
    compression
        ``none``, ``fp16``, or ``top10``: the largest tenth of a gradient, the rest later.
    whole_epochs
        Exchange once per epoch, whatever `local_steps` says (federated averaging).
    """

    epochs: Count = 3
    batch: Count = 64
    seed: int = 0
    shares: Literal["data", "speed", "weighted"] = "data"
    local_steps: Count = 1
    compression: Literal["none", "fp16", "top10"] = "none"
    whole_epochs: bool = False

    def __post_init__(self) -> None:
        if self.shares == "weighted" and (self.local_steps > 1 or self.whole_epochs):
            raise InputError(
                "gradients that are not exchanged have no weight",
                where="recipe: shares",
                by="'weighted'",
                hint="exchange in every step, or take 'speed'",
            )


def steps_of(total: int, batch: int) -> int:
    """Steps of an epoch."""
    return max(1, -(-total // batch))


def parts(samples: IntArray, steps: int, seed: int, epoch: int) -> list[IntArray]:
    """A node's samples of each step: shuffled, in parts that differ by at most one."""
    first = int(samples[0]) if len(samples) else 0
    shuffled = np.random.default_rng((seed, epoch, first)).permutation(samples)
    return [np.asarray(part) for part in np.array_split(shuffled, steps)]


def visits_by_speed(
    samples: IntArray, work: FloatArray, rank: int, recipe: Recipe, steps: int, epoch: int
) -> list[IntArray]:
    """A node's samples of each step where its speed tells how many: some more than once.

    `work`: shape (nodes,), seconds per sample of every node.
    """
    size = _by_speed(work, rank, recipe) * steps if len(samples) else 0
    rng = np.random.default_rng((recipe.seed, epoch, rank))
    rounds = -(-size // max(1, len(samples)))
    drawn = [rng.permutation(samples) for _ in range(rounds)]
    visits = np.concatenate(drawn)[:size] if drawn else samples
    return [np.asarray(part) for part in np.array_split(visits, steps)]


def part_sizes(held: int, total: int, work: FloatArray, rank: int, recipe: Recipe) -> set[int]:
    """Sizes of a node's parts of the steps of an epoch, those without a sample left out.

    `held`, `total`: samples of the node, and of all.
    """
    if recipe.shares != "data":
        return {_by_speed(work, rank, recipe)} if held else set()
    least, more = divmod(held, steps_of(total, recipe.batch))
    return {least, least + (more > 0)} - {0}


def _by_speed(work: FloatArray, rank: int, recipe: Recipe) -> int:
    speed = 1.0 / work
    return max(1, round(recipe.batch * float(speed[rank] / speed.sum())))


def node_weights(held: Sequence[int], sizes: Sequence[int]) -> FloatArray:
    """How much a sample of each node counts, one on average: shape (nodes,).

    Proportional to ``sqrt(p / q)``, with p the node's share of the samples and q that of a step.
    Weights of 1 leave the bias that samples of fast nodes are visited more often; those of p / q,
    importance sampling, have none, but few samples with large weights make steps noisy. Their
    square root lies between the two (H. Shimodaira, 2000, doi:10.1016/S0378-3758(00)00115-4,
    lambda = 1/2).

    `held`: samples of each node. `sizes`: those of a step, none where it has none.
    """
    p, q = (np.array(each) / sum(each) for each in (held, sizes))
    weights = np.sqrt(np.divide(p, q, out=np.zeros(len(q)), where=q > 0))
    scaled: FloatArray = weights / (weights * q).sum()
    return scaled


@dataclass(frozen=True, slots=True, eq=False)
class TrainingOrder:
    """A node's part in some epochs; times are those of the problem divided by the run's speed.

    Attributes
    ----------
    rendezvous
        Where the nodes meet, another place for every order.
    folder
        Of its samples.
    programs, counts
        Loss and gradients, for every size of part that the node may have; and what the means of the
        loss of so many samples are divided by, where that is not their number.
    reduction, counted
        Of `placewright.samples.training.job.SampleJob.split`: the second is how many means are
        counted.
    statistics
        Names of the buffers in `state` that are means over samples, such as those of batch norm.
    update
        As of `placewright.samples.training.job.SampleJob`.
    state
        File of the training state that it starts from.
    tests, test
        Loss and outputs of batches of the test samples, and their file; none without them.
    saved
        Where the node writes the training state when it is done, empty for all but one.
    work
        Shape (nodes,): seconds per sample of every node.
    weight
        How much its gradients count, for each sample; see `node_weights`.
    first_epoch
        Where training goes on from.
    dies
        Injected fault: killed in the middle of its first epoch.
    """

    rendezvous: str
    folder: str
    recipe: Recipe
    total: int
    work: FloatArray
    fixed_s: float
    sync_s: float
    programs: tuple[BatchProgram, ...]
    counts: tuple[BatchProgram, ...]
    reduction: str
    counted: int
    statistics: tuple[str, ...]
    update: Update
    state: str
    tests: tuple[BatchProgram, ...] = ()
    test: str = ""
    saved: str = ""
    weight: float = 1.0
    first_epoch: int = 0
    dies: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """One epoch.

    `loss`: mean over the samples that were visited.
    `test_loss`, `accuracy`: on the test samples after the epoch; without them the epoch's own loss.
    """

    seconds: float
    loss: float
    test_loss: float
    accuracy: float


@dataclass(frozen=True, slots=True, eq=False)
class NodeTraining:
    """What a node answers.

    Attributes
    ----------
    epochs
        As it saw them; the test samples are looked at by the fastest node alone.
    compute_s, visited
        Seconds of its own gradients, and samples that they were of.
    spans_s
        Shape (steps, 3): when each step began, had its gradients, ended; by the machine's clock.
    unsaved
        Why the state after training cannot be written, empty where it is.
    """

    epochs: tuple[Epoch, ...]
    compute_s: float
    visited: int
    spans_s: FloatArray
    unsaved: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class NodeStepTimes:
    """Shape (steps,): seconds of a node's own gradients, and of the exchange."""

    compute_s: FloatArray
    exchange_s: FloatArray


def train_node(spec: WorkerSpec, order: TrainingOrder) -> NodeTraining:
    """Train with the other nodes; an error where one of them is lost."""
    with _process_group(spec, order) as dist:
        part = _NodePart(spec, order, dist)
        epochs = tuple(part.epoch(order.first_epoch + e) for e in range(order.recipe.epochs))
        unsaved = part.learner.save(Path(order.saved)) if order.saved else ""
    spans_s = np.array(part.spans_s)
    return NodeTraining(epochs, part.compute_s, part.visited, spans_s, unsaved)


def time_steps(spec: WorkerSpec, order: TrainingOrder, sizes: tuple[int, ...]) -> NodeStepTimes:
    """Take synchronous steps as training does, on samples that are not kept."""
    with _process_group(spec, order) as dist:
        learner = Learner(order)
        found = load_file(order.test)
        leaves = [found[str(k)].numpy() for k in range(len(found))]
        learner.load({s: [leaf[s] for leaf in leaves] for s in range(max(sizes))})
        times = np.array([_timed_step(learner, dist, size) for size in sizes])
    return NodeStepTimes(times[:, 0], times[:, 1])


def _timed_step(learner: Learner, dist: Any, size: int) -> tuple[float, float]:
    divisors = learner.divisors(np.arange(size), dist)
    start = time.perf_counter()
    _, weight = learner.gradients(np.arange(size), divisors)
    middle = time.perf_counter()
    learner.step_together(dist, weight)
    return middle - start, time.perf_counter() - middle


@contextmanager
def _process_group(spec: WorkerSpec, order: TrainingOrder) -> Iterator[Any]:
    """`torch.distributed` while this node is one of the group."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=order.rendezvous,
        rank=spec.rank,
        world_size=spec.world,
        timeout=timedelta(seconds=120),
    )
    yield dist
    dist.destroy_process_group()


class _NodePart:
    """One node's part in every epoch."""

    def __init__(self, spec: WorkerSpec, order: TrainingOrder, dist: Any) -> None:
        self.spec, self.order, self.dist, self.recipe = spec, order, dist, order.recipe
        self.learner = Learner(order)
        self.shard = Shard(Path(order.folder))
        self.samples = np.array(self.shard.samples(), dtype=np.int64)
        if len(self.samples):
            self.learner.load({int(s): self.shard.read(int(s)) for s in self.samples})
        self.compute_s, self.visited = 0.0, 0
        self.spans_s: list[tuple[float, float, float]] = []
        self._warm_up()

    def epoch(self, number: int) -> Epoch:
        """All steps, then how good the parameters are; looking at that costs no time."""
        # By the epoch's number, so that a run that goes on draws what it would have drawn.
        drawn = np.random.SeedSequence((self.recipe.seed, number, self.spec.rank))
        torch.manual_seed(int(drawn.generate_state(1, np.uint64)[0]))
        self.dist.barrier()
        start = time.perf_counter()
        loss, count = 0.0, 0.0
        own = self._parts(number)
        for k, part in enumerate(own):
            if self.order.dies and k == len(own) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            loss_sum, weight = self._step(part, last=k == len(own) - 1, number=k + 1)
            loss, count = loss + loss_sum, count + weight
        self._wait(self.order.fixed_s)
        self.dist.barrier()
        took_s = time.perf_counter() - start
        self.learner.agree_on_buffers(self.dist, len(self.samples))
        # One node looks at the test samples, and the sum with zeros of the others tells all.
        order = self.order
        tester = int(np.argmin(order.work)) == self.spec.rank and order.test
        seen = self.learner.tested(order.tests, order.test) if tester else (0.0, 0.0)
        loss, count, *tested = self.learner.summed(self.dist, np.array([loss, count, *seen]))
        mean = float(loss / count)
        if not order.test:
            return Epoch(took_s, mean, mean, math.nan)
        return Epoch(took_s, mean, float(tested[0]), float(tested[1]))

    def _warm_up(self) -> None:
        """Gradients of each size of part once: PyTorch prepares for a size when it first comes."""
        # Parts of one epoch have two sizes at most.
        by_size = {len(part): part for part in self._parts(self.order.first_epoch)}
        for part in by_size.values():
            with self.learner.buffers_kept():
                self.learner.gradients(part, self.learner.divisors(part))

    def _parts(self, epoch: int) -> list[IntArray]:
        order, recipe = self.order, self.recipe
        steps = steps_of(order.total, recipe.batch)
        if recipe.shares == "data":
            return parts(self.samples, steps, recipe.seed, epoch)
        return visits_by_speed(self.samples, order.work, self.spec.rank, recipe, steps, epoch)

    def _step(self, part: IntArray, *, last: bool, number: int) -> tuple[float, float]:
        """Gradients of a part, as slowly as this node is, then the exchange where it is due.

        The sum of the losses, and of how many samples it is.
        """
        recipe = self.recipe
        together = recipe.local_steps == 1 and not recipe.whole_epochs
        divisors = self.learner.divisors(part, self.dist if together else None)
        start = time.perf_counter()
        loss, weight = self.learner.gradients(part, divisors)
        work_s = float(self.order.work[self.spec.rank]) * len(part)
        self._wait(work_s - (time.perf_counter() - start))
        computed = time.perf_counter()
        self.compute_s += computed - start
        self.visited += len(part)
        if together:
            self.learner.gradient *= self.order.weight
            self.learner.step_together(self.dist, weight * self.order.weight)
            due = True
        else:
            self.learner.step_alone(weight)
            due = last or (number % recipe.local_steps == 0 and not recipe.whole_epochs)
            if due:
                self.learner.average(self.dist, len(self.samples))
        if due:
            self._wait(self.order.sync_s)
        self.spans_s.append((start, computed, time.perf_counter()))
        return loss, weight

    def _wait(self, seconds: float) -> None:
        """Emulate a slower node by waiting; one of a testbed is slow by itself."""
        if self.spec.handle is None:
            time.sleep(max(0.0, seconds))


KEPT = 0.1
"""Share of a gradient that ``top10`` sends; what it holds back is added to the next."""

PARAMETER = "parameter:"


class Learner:
    """Parameters, samples and one gradient vector."""

    def __init__(self, order: TrainingOrder) -> None:
        self.recipe, self.mean = order.recipe, order.reduction == "mean"
        self.counted = order.counted
        kept = load_file(order.state)
        self.state = {n: v for n, v in kept.items() if not n.startswith(OPTIMIZER)}
        trained = {o.name for p in order.programs[:1] for o in p.outputs} - {"loss"}
        self.trained = {
            name.removeprefix(PARAMETER): nn.Parameter(value)
            for name, value in self.state.items()
            if name.startswith(PARAMETER) and name.removeprefix(PARAMETER) in trained
        }
        for name, parameter in self.trained.items():
            self.state[PARAMETER + name] = parameter.data
        self.optimizer = order.update.made(self.trained.values(), self.trained)
        self._restore(kept)
        self.runs = {p.samples: _TensorProgram(p, self.state) for p in order.programs}
        self.counts = {p.samples: _TensorProgram(p, self.state) for p in order.counts}
        self.updated = {
            name
            for program in (*order.programs, *order.counts, *order.tests)
            for call in program.instructions
            for name in map(name_in_state, call.mutates)
        }
        changed = sorted(name for name in self.updated if name.startswith("buffer:"))
        self.statistics = [name for name in changed if name in order.statistics]
        self.counters = [name for name in changed if name not in order.statistics]
        self.gradient: Any = None
        self.held_back: Any = 0.0

    def _restore(self, kept: Mapping[str, Tensor]) -> None:
        """Give the optimizer the states that it had; those of frozen parameters wait."""
        self.frozen_states: dict[str, Tensor] = {}
        for name, value in kept.items():
            if name.startswith(OPTIMIZER):
                slot, _, key = name.removeprefix(OPTIMIZER).partition(":model.")
                if key in self.trained:
                    self.optimizer.state[self.trained[key]][slot] = value
                else:
                    self.frozen_states[name] = value

    def save(self, path: Path) -> str:
        """Write the training state; why it cannot be, empty where it can."""
        names = {id(p): key for key, p in self.trained.items()}
        states = {
            f"{OPTIMIZER}{slot}:model.{names[id(p)]}": value
            for p, slots in self.optimizer.state.items()
            for slot, value in slots.items()
            if isinstance(value, Tensor) and id(p) in names
        }
        try:
            write_tensors(path, {**self.state, **self.frozen_states, **states})
        except OSError as error:
            return str(error)
        return ""

    def load(self, samples: Mapping[int, Sequence[np.ndarray[Any, Any]]]) -> None:
        """Take the tensors of each sample, inputs first, by sample number."""
        self.row = {sample: k for k, sample in enumerate(samples)}
        leaves = zip(*samples.values(), strict=True)
        self.leaves = [torch.from_numpy(np.stack(leaf)) for leaf in leaves]

    def divisors(self, samples: IntArray, dist: Any = None) -> Tensor:
        """What the counted means of `samples` are divided by: their share of what all nodes count.

        Of this node alone without `dist`.
        """
        leaves = self._leaves(samples)
        own = torch.tensor([len(samples)], dtype=torch.float64)
        total = own = torch.cat([self._counts(leaves), own])
        if not self.counted or (dist is None and not len(samples)):
            return own[:-1]
        if dist is not None:
            total = own.clone()
            dist.all_reduce(total)
        return total[:-1] * (own[-1] / total[-1] if self.mean else 1.0)

    def gradients(self, samples: IntArray, divisors: Tensor) -> tuple[float, float]:
        """Sum over `samples` of the gradients, kept; that of the losses, and how many they are.

        `divisors`: of `samples`; see `divisors`.
        """
        if len(samples) == 0:
            self.gradient = torch.zeros_like(self._flat())
            return 0.0, 0.0
        made = self.runs[len(samples)]([*self._leaves(samples), *divisors])
        times = float(len(samples)) if self.mean else 1.0
        self.gradient = torch.cat([made[name].reshape(-1) for name in self.trained]) * times
        return float(made["loss"]) * times, float(len(samples))

    def _leaves(self, samples: IntArray) -> list[Tensor]:
        rows = torch.tensor([self.row[int(s)] for s in samples], dtype=torch.int64)
        return [leaf[rows] for leaf in self.leaves] if len(samples) else []

    def _counts(self, leaves: Sequence[Tensor]) -> Tensor:
        """What the counted means of a batch would be divided by."""
        if not self.counted or not leaves:
            return torch.zeros(self.counted, dtype=torch.float64)
        with self.buffers_kept():
            return self.counts[len(leaves[0])](leaves)["output"]

    @contextmanager
    def buffers_kept(self) -> Iterator[None]:
        """Put buffers back afterwards."""
        held = {n: v.clone() for n, v in self.state.items() if n in self.updated}
        yield
        for name, value in held.items():
            self.state[name].copy_(value)

    def step_alone(self, count: float) -> None:
        """A step of this node's own."""
        if count:
            self._step(self.gradient / count if self.mean else self.gradient)

    def step_together(self, dist: Any, count: float) -> None:
        """A step with the gradients of all nodes, weighted by their samples."""
        own = torch.cat([self.gradient, self.gradient.new_tensor([count])])
        largest = self.recipe.compression == "top10"
        total = self._largest_summed(dist, own) if largest else self._all_summed(dist, own)
        if float(total[-1]) > 0:
            self._step(total[:-1] / total[-1] if self.mean else total[:-1])

    def average(self, dist: Any, weight: int) -> None:
        """Parameters become their mean over the nodes, weighted by samples."""
        self._averaged(dist, weight, [p.data for p in self.trained.values()])

    def agree_on_buffers(self, dist: Any, weight: int) -> None:
        """Statistics become their mean over the nodes, each of its own samples; others are equal.

        But for nodes that had no sample in some step: those of the node with the most are taken.
        """
        if held := [self.state[name] for name in self.statistics]:
            self._averaged(dist, weight, held)
        if not self.counters:
            return
        weights = torch.zeros(dist.get_world_size(), dtype=torch.int64)
        weights[dist.get_rank()] = weight
        dist.all_reduce(weights)
        for name in self.counters:
            dist.broadcast(self.state[name], src=int(weights.argmax()))

    def summed(self, dist: Any, values: FloatArray) -> FloatArray:
        """Numbers of all nodes added up."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        summed: FloatArray = total.numpy()
        return summed

    def tested(self, programs: Sequence[BatchProgram], file: str) -> tuple[float, float]:
        """Mean loss on the test samples, and the share that is classified correctly.

        Not a number where outputs are no scores of classes.
        """
        found = load_file(file)
        leaves = [found[str(k)] for k in range(len(found))]
        count, largest = len(leaves[0]), max(p.samples for p in programs)
        runs = {p.samples: _TensorProgram(p, self.state) for p in programs}
        parts = [
            [leaf[first : first + largest] for leaf in leaves] for first in range(0, count, largest)
        ]
        whole = torch.stack([self._counts(part) for part in parts]).sum(0)
        loss = correct = 0.0
        for own in parts:
            share = len(own[0]) / count if self.mean else 1.0
            with self.buffers_kept():
                made = runs[len(own[0])]([*own, *(whole * share)])
            loss += share * float(made["output.0"])
            correct += correct_of(made.get("output.1"), own[-1])
        return loss if self.mean else loss / count, correct / count

    def _all_summed(self, dist: Any, own: Tensor) -> Tensor:
        """The gradients and counts of all nodes added up, in half the bytes where asked for."""
        sent = (own / self.recipe.batch).to(torch.float16) if self._halves else own
        dist.all_reduce(sent)
        return sent.to(own.dtype) * (self.recipe.batch if self._halves else 1)

    @property
    def _halves(self) -> bool:
        return self.recipe.compression == "fp16"

    def _largest_summed(self, dist: Any, own: Tensor) -> Tensor:
        """The same of the largest entries alone: each node sends which they are, and what."""
        whole = own[:-1] + self.held_back
        largest = whole.abs().topk(max(1, int(KEPT * len(whole)))).indices
        at = torch.cat([largest, torch.tensor([len(whole)])])
        sent = torch.cat([whole[largest], own[-1:]]).to(torch.float32)
        self.held_back = whole.index_fill(0, largest, 0.0)
        message = torch.stack([at.to(torch.int32), sent.view(torch.int32)])
        received = [torch.empty_like(message) for _ in range(dist.get_world_size())]
        dist.all_gather(received, message)
        total = torch.zeros_like(own)
        for places, values in received:
            total.index_add_(0, places.long(), values.view(torch.float32).to(own.dtype))
        return total

    def _averaged(self, dist: Any, weight: int, held: Sequence[Tensor]) -> None:
        flat = torch.cat([value.reshape(-1) for value in held])
        flat = torch.cat([flat, flat.new_ones(1)]) * float(weight)
        dist.all_reduce(flat)
        _put(flat[:-1] / flat[-1], held)

    def _flat(self) -> Tensor:
        return torch.cat([p.data.reshape(-1) for p in self.trained.values()])

    def _step(self, gradient: Tensor) -> None:
        """One step of the optimizer."""
        parameters = list(self.trained.values())
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter.data)
        _put(gradient, [p.grad for p in parameters if p.grad is not None])
        self.optimizer.step()


def _put(flat: Tensor, held: Sequence[Tensor]) -> None:
    at = 0
    with torch.no_grad():
        for value in held:
            value.copy_(flat[at : at + value.numel()].reshape(value.shape))
            at += value.numel()


class _TensorProgram:
    """A program on the tensors of a batch, those of inputs first, and on a node's state."""

    def __init__(self, program: BatchProgram, state: Mapping[str, Tensor]) -> None:
        names = {i.name: name_in_state(i.name) for i in program.inputs}
        held = {name: state[own] for name, own in names.items() if own in state}
        self.run = ProgramRun(program, held)
        self.batch = [i.name for i in program.inputs if i.role in ("input", "target")]

    def __call__(self, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
        return self.run(dict(zip(self.batch, leaves, strict=True)))


def name_in_state(name: str) -> str:
    """Of an input of a program; one for evaluation has the model inside of another one."""
    return name.replace(":model.", ":", 1)


def correct_of(scores: Tensor | None, labels: Tensor) -> float:
    """How many are classified correctly; not a number where `scores` are none of classes."""
    if scores is None or scores.dim() != 2 or labels.dim() != 1 or labels.is_floating_point():
        return float("nan")
    return float((scores.argmax(dim=1) == labels).sum())


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
