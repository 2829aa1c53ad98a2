"""A small convolutional network and its gradients, alone and together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.arrays import FloatArray, IntArray
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
        torch = self.torch
        message = torch.cat([self._compressed(), torch.tensor([float(count)], dtype=self.kind)])
        if self.recipe.compression == "fp16":
            message = (message / self.recipe.batch).to(torch.float16)
        dist.all_reduce(message)
        message = message.to(self.kind)
        if float(message[-1]) > 0:
            self._move(message[:-1] / message[-1])

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
        """Mean loss on the test images, and the share of them that are told right."""
        with self.torch.no_grad():
            scores = self.model(self._pixels(test.pixels))
            labels = self.torch.tensor(test.labels)
            loss = float(self.torch.nn.functional.cross_entropy(scores, labels))
            told = scores.argmax(dim=1).numpy()
        return loss, float((told == test.labels).mean())

    def start_from(self, parameters: FloatArray) -> None:
        """Go on from parameters that somebody has trained."""
        self._put(self.torch.tensor(parameters).to(self.kind))

    def parameters(self) -> FloatArray:
        """All parameters, one after another."""
        flat: FloatArray = self._flat().numpy().astype(np.float64)
        return flat

    def _compressed(self) -> Any:
        """The gradient, or its largest entries."""
        if self.recipe.compression != "top10":
            return self.gradient
        whole = self.gradient + self.held_back
        few = max(1, int(KEPT * len(whole)))
        largest = whole.abs().topk(few).indices
        sent = self.torch.zeros_like(whole)
        sent[largest] = whole[largest]
        self.held_back = whole - sent
        return sent

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
