"""A small convolutional network and its gradients, alone and together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.samples.data.images import CLASSES, SIDE

if TYPE_CHECKING:
    from placewright.samples.data.images import Images
    from placewright.samples.training.recipe import Recipe

KEPT = 0.1
"""Share of a gradient that ``top10`` sends; what it holds back is added to the next."""


class Learner:
    """Parameters, data and one gradient vector."""

    def __init__(self, recipe: Recipe) -> None:
        import torch

        self.torch: Any = torch
        self.recipe = recipe
        self.kind = torch.float64 if recipe.precise else torch.float32
        torch.manual_seed(recipe.seed)
        self.model: Any = torch.nn.Sequential(
            *self._convolutions(),
            torch.nn.MaxPool2d(2 * recipe.enlarged),
            torch.nn.Flatten(),
            torch.nn.Linear(recipe.channels * (SIDE // 2) ** 2, CLASSES),
        ).to(self.kind)
        self.gradient: Any = None
        self.held_back: Any = 0.0

    def _convolutions(self) -> list[Any]:
        nn, wide, edge = self.torch.nn, self.recipe.channels, self.recipe.enlarged
        inner = [(1, wide), *[(wide, wide)] * (self.recipe.depth - 1)]
        pairs = [(nn.Conv2d(a, b, 2 * edge + 1, padding=edge), nn.ReLU()) for a, b in inner]
        return [layer for pair in pairs for layer in pair]

    def load(self, samples: Mapping[int, tuple[Any, int]]) -> None:
        """Pixels and labels by sample number."""
        self.row = {sample: k for k, sample in enumerate(samples)}
        pixels = np.array([pixels for pixels, _ in samples.values()], dtype=np.float64)
        self.pixels = self._pixels(pixels.reshape(-1, SIDE, SIDE))
        self.labels = self.torch.tensor([label for _, label in samples.values()])

    def gradients(self, samples: IntArray) -> float:
        """Sum over `samples` of the gradients, kept; and of the losses."""
        torch = self.torch
        self.model.zero_grad(set_to_none=False)
        if len(samples) == 0:
            self.gradient = torch.zeros_like(self._flat())
            return 0.0
        rows = torch.tensor([self.row[int(s)] for s in samples])
        scores = self.model(self.pixels[rows])
        loss = torch.nn.functional.cross_entropy(scores, self.labels[rows], reduction="sum")
        loss.backward()
        self.gradient = torch.cat([p.grad.reshape(-1) for p in self.model.parameters()])
        return float(loss.detach())

    def step_alone(self, count: int) -> None:
        """A step of this node's own."""
        if count:
            self._move(self.gradient / count)

    def step_together(self, dist: Any, count: int) -> None:
        """A step with the gradients of all nodes, weighted by their samples."""
        own = self.torch.cat([self.gradient, self.torch.tensor([float(count)], dtype=self.kind)])
        largest = self.recipe.compression == "top10"
        total = self._largest_summed(dist, own) if largest else self._all_summed(dist, own)
        if float(total[-1]) > 0:
            self._move(total[:-1] / total[-1])

    def average(self, dist: Any, weight: int) -> None:
        """Parameters become their mean over the nodes, weighted by samples."""
        torch = self.torch
        flat = torch.cat([self._flat(), torch.ones(1, dtype=self.kind)]) * float(weight)
        dist.all_reduce(flat)
        self._put(flat[:-1] / flat[-1])

    def summed(self, dist: Any, values: FloatArray) -> FloatArray:
        """Numbers of all nodes added up."""
        total = self.torch.tensor(values, dtype=self.torch.float64)
        dist.all_reduce(total)
        summed: FloatArray = total.numpy()
        return summed

    def tested(self, test: Images) -> tuple[float, float]:
        """Mean loss on the test images, and the share of them that are classified correctly."""
        with self.torch.no_grad():
            scores = self.model(self._pixels(test.pixels))
            labels = self.torch.tensor(test.labels)
            loss = float(self.torch.nn.functional.cross_entropy(scores, labels))
            classes = scores.argmax(dim=1).numpy()
        return loss, float((classes == test.labels).mean())

    def start_from(self, parameters: FloatArray) -> None:
        """Go on from parameters that were trained before."""
        self._put(self.torch.tensor(parameters).to(self.kind))

    def parameters(self) -> FloatArray:
        """All parameters, one after another."""
        flat: FloatArray = self._flat().numpy().astype(np.float64)
        return flat

    def _all_summed(self, dist: Any, own: Any) -> Any:
        """The gradients and counts of all nodes added up, in half the bytes where asked for."""
        if self.recipe.compression == "fp16":
            own = (own / self.recipe.batch).to(self.torch.float16)
        dist.all_reduce(own)
        return own.to(self.kind)

    def _largest_summed(self, dist: Any, own: Any) -> Any:
        """The same of the largest entries alone: each node sends which they are, and what."""
        torch = self.torch
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
            total.index_add_(0, places.long(), values.view(torch.float32).to(self.kind))
        return total

    def _pixels(self, pixels: Any) -> Any:
        scaled = self.torch.tensor(np.asarray(pixels, dtype=np.float64) / 128.0 - 1.0)
        images, times = scaled.to(self.kind)[:, None], self.recipe.enlarged
        return images.repeat_interleave(times, 2).repeat_interleave(times, 3)

    def _flat(self) -> Any:
        return self.torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])

    def _move(self, gradient: Any) -> None:
        self._put(self._flat() - self.recipe.rate * gradient)

    def _put(self, flat: Any) -> None:
        at = 0
        with self.torch.no_grad():
            for p in self.model.parameters():
                p.copy_(flat[at : at + p.numel()].reshape(p.shape))
                at += p.numel()
