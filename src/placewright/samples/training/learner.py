"""A node's model: its state, its gradients, and steps with those of the other nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from placewright.capturing.gradients import BatchProgram, ProgramRun
from placewright.capturing.updates import OPTIMIZER
from placewright.numerics.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    from placewright.samples.training.node_training import TrainingOrder

KEPT = 0.1
"""Share of a gradient that ``top10`` sends; what it holds back is added to the next."""

PARAMETER = "parameter:"


class Learner:
    """Parameters, samples and one gradient vector."""

    def __init__(self, order: TrainingOrder) -> None:
        self.recipe, self.mean = order.recipe, order.reduction == "mean"
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
        self.runs = {p.samples: _Run(p, self.state) for p in order.programs}
        self.counts = {p.samples: _Run(p, self.state) for p in order.counts}
        self.gradient: Any = None
        self.held_back: Any = 0.0

    def _restore(self, kept: Mapping[str, Tensor]) -> None:
        """Give the optimizer the states that it had."""
        for name, value in kept.items():
            if name.startswith(OPTIMIZER):
                slot, _, key = name.removeprefix(OPTIMIZER).partition(":model.")
                if key in self.trained:
                    self.optimizer.state[self.trained[key]][slot] = value

    def save(self, path: Path) -> None:
        """Write the training state."""
        names = {id(p): key for key, p in self.trained.items()}
        states = {
            f"{OPTIMIZER}{slot}:model.{names[id(p)]}": value.contiguous()
            for p, slots in self.optimizer.state.items()
            for slot, value in slots.items()
            if isinstance(value, Tensor) and id(p) in names
        }
        save_file({**self.state, **states}, path)

    def load(self, samples: Mapping[int, Sequence[np.ndarray[Any, Any]]]) -> None:
        """Take the tensors of each sample, inputs first, by sample number."""
        self.row = {sample: k for k, sample in enumerate(samples)}
        leaves = zip(*samples.values(), strict=True)
        self.leaves = [torch.from_numpy(np.stack(leaf)) for leaf in leaves]

    def gradients(self, samples: IntArray) -> tuple[float, float]:
        """Sum over `samples` of the gradients, kept; that of the losses, and how many they are.

        That is what the mean over a batch is divided by: samples, or labels that are not ignored.
        """
        if len(samples) == 0:
            self.gradient = torch.zeros_like(self._flat())
            return 0.0, 0.0
        rows = torch.tensor([self.row[int(s)] for s in samples])
        leaves = [leaf[rows] for leaf in self.leaves]
        made = self.runs[len(samples)](leaves)
        count = self._count(leaves)
        flat = torch.cat([made[name].reshape(-1) for name in self.trained])
        if count == 0:  # no label of the part counts, and nothing is divided by zero
            self.gradient = torch.zeros_like(flat)
            return 0.0, 0.0
        times = count if self.mean else 1.0
        self.gradient = flat * times
        return float(made["loss"]) * times, count

    def _count(self, leaves: Sequence[Tensor]) -> float:
        """What the loss of a batch is divided by."""
        run = self.counts.get(len(leaves[0]))
        return float(len(leaves[0])) if run is None else float(run(leaves)["output"])

    @contextmanager
    def buffers_kept(self) -> Iterator[None]:
        """Put buffers back afterwards."""
        held = {n: v.clone() for n, v in self.state.items() if n.startswith("buffer:")}
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

    def average_buffers(self, dist: Any, weight: int) -> None:
        """Buffers become their mean: each node's are of its own samples."""
        held = [
            value
            for name, value in self.state.items()
            if name.startswith("buffer:") and value.is_floating_point()
        ]
        if held:
            self._averaged(dist, weight, held)

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
        largest = max(p.samples for p in programs)
        runs = {p.samples: _Run(p, self.state) for p in programs}
        loss = counted = correct = 0.0
        for first in range(0, len(leaves[0]), largest):
            own = [leaf[first : first + largest] for leaf in leaves]
            made = runs[len(own[0])](own)
            count = self._count(own)
            loss += float(made["output.0"]) * (count if self.mean else 1.0) if count else 0.0
            counted += count
            correct += _correct(made.get("output.1"), own[-1])
        return loss / counted, correct / len(leaves[0])

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


class _Run:
    """A program on the tensors of a batch, those of inputs first, and on a node's state."""

    def __init__(self, program: BatchProgram, state: Mapping[str, Tensor]) -> None:
        # A program for evaluation has the model inside of another one.
        names = {i.name: i.name.replace(":model.", ":", 1) for i in program.inputs}
        held = {name: state[own] for name, own in names.items() if own in state}
        self.run = ProgramRun(program, held)
        self.batch = [i.name for i in program.inputs if i.role in ("input", "target")]

    def __call__(self, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
        return self.run(dict(zip(self.batch, leaves, strict=True)))


def _correct(scores: Tensor | None, labels: Tensor) -> float:
    if scores is None or scores.dim() != 2 or labels.dim() != 1 or labels.is_floating_point():
        return float("nan")
    return float((scores.argmax(dim=1) == labels).sum())
