"""Extend a profile of single forward passes to backward passes and other micro-batches.

One forward pass of one sample, timed with a synchronisation after each layer, holds three parts
that grow differently. With f_t the time at tensor degree t and one sample:

    f_t = launch + split / t + whole + collectives_t

launch
    Dispatching and starting kernels: the same for every micro-batch and, as the backward pass
    starts kernels of its own, once in each pass.
split, whole
    Work on the device that tensor parallelism divides, and that it does not: grows with the
    samples; the backward pass has twice of it (gradients of inputs and of weights).
collectives_t
    Two all-reduces of the layer's output in each pass: grow with the samples, once per pass.

They are told apart by the profile itself. An embedding does one all-reduce of the same size and
nearly no work: its growth over degree 1 is what one costs; without an embedding the nominal
bandwidth says. What a block takes at degree t less its all-reduces, against degree 1, gives
``split``. Blocks of one model run about the same kernels whatever their width, so ``launch`` is
at most the smallest time of any block less its work by the data sheet (`roofline_s`). Layers of a
single operation have no launch part beyond what twice the roofline leaves: kernels reach at
least half of it. Every backward pass adds its gradients to those of the micro-batches before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewright.layers.readers.datasheets import data_sheet
from placewright.numerics.arrays import BoolArray, FloatArray


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a transformer; zeros where the file does not say."""

    hidden: int
    heads: int
    sequence: int
    element_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class SinglePass:
    """Forward passes of one sample.

    Attributes
    ----------
    forward_s
        Shape (T, n): by tensor degree and layer, NaN where not measured.
    degrees
        Shape (T,).
    parameters, output_bytes
        Shape (n, T).
    device
        Its name, for the data sheet.
    bandwidth
        Bytes per second between the workers of a node, nominal.
    """

    forward_s: FloatArray
    degrees: tuple[int, ...]
    parameters: FloatArray
    output_bytes: FloatArray
    device: str
    bandwidth: float
    shape: Shape

    def tables(self, sizes: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Forward and backward seconds, shape (T, sizes, n)."""
        even = self._averaged()
        launch = even._launch()
        collective = np.stack([even._collective(t) for t in range(len(self.degrees))])
        work = np.maximum(even.forward_s - launch - collective, 0.0)
        grow = sizes[None, :, None]
        ahead = launch[:, None] + grow * (work + collective)[:, None]
        held = np.where(np.isfinite(self.parameters), self.parameters, 0.0).T
        added = 3 * self.shape.element_bytes * held / data_sheet(self.device).memory_bandwidth
        back = (launch + added)[:, None] + grow * (2 * work + collective)[:, None]
        return np.asarray(ahead, dtype=np.float64), np.asarray(back, dtype=np.float64)

    def _averaged(self) -> SinglePass:
        """Layers of the same parameters and outputs do the same: each takes their mean time."""
        even = self.forward_s.copy()
        alike: dict[tuple[float, ...], list[int]] = {}
        for i in np.flatnonzero(self._blocks()):
            alike.setdefault((*self.parameters[i], *self.output_bytes[i]), []).append(int(i))
        for layers in alike.values():
            even[:, layers] = even[:, layers].mean(axis=1, keepdims=True)
        return replace(self, forward_s=even)

    def _blocks(self) -> BoolArray:
        """Shape (n,): layers that tensor parallelism splits and that come more than once alike."""
        last = self.parameters[:, -1]
        split = (last < self.parameters[:, 0]) & np.isfinite(last)
        alike = np.array([(self.parameters[:, 0] == x).sum() > 2 for x in self.parameters[:, 0]])
        return np.asarray(split & alike, dtype=np.bool_)

    def roofline_s(self) -> FloatArray:
        """Shape (n,): least seconds of a forward pass of one sample at degree 1.

        Matrix products with all parameters for every token, at the peak; or weights and outputs
        over the memory's bandwidth.
        """
        sheet, width = data_sheet(self.device), max(self.shape.hidden, 1)
        item = self.shape.element_bytes
        outputs, held = self.output_bytes[:, 0], self.parameters[:, 0]
        tokens = np.where(self._blocks() | (held > 0), outputs / item / width, 0.0)
        if self.shape.sequence:
            tokens = np.minimum(tokens, self.shape.sequence)
        inputs = np.concatenate([outputs[:1], outputs[:-1]])
        moved = (held * item + outputs + inputs) / sheet.memory_bandwidth
        return np.asarray(np.maximum(2 * tokens * held / sheet.flops_16, moved), dtype=np.float64)

    def _all_reduce_s(self, t: int) -> float:
        """Seconds of one all-reduce of a block's output for one sample."""
        degree = self.degrees[t]
        if degree == 1:
            return 0.0
        blocks = np.flatnonzero(self._blocks())
        sent = float(self.output_bytes[blocks[0], 0]) if len(blocks) else 0.0
        nominal = 2 * (degree - 1) / degree * sent / self.bandwidth
        first = self.forward_s[:, 0]
        embeds = self.parameters[0, t] < self.parameters[0, 0]
        same = len(blocks) and self.output_bytes[0, 0] == sent
        measured = float(first[t] - first[0]) if embeds and same else 0.0
        return max(nominal, measured)

    def _collective(self, t: int) -> FloatArray:
        """Shape (n,): all-reduces of a forward pass, two in a block, one in an embedding."""
        once = self._all_reduce_s(t)
        found = np.where(self._blocks(), 2 * once, 0.0)
        if self.parameters[0, t] < self.parameters[0, 0]:
            found[0] = once
        return np.asarray(np.minimum(found, np.nan_to_num(self.forward_s[t])), dtype=np.float64)

    def _launch(self) -> FloatArray:
        """Shape (T, n): seconds of a pass that do not depend on the samples."""
        blocks, least = self._blocks(), self.roofline_s()
        single = np.maximum(self.forward_s - 2 * least[None, :], 0.0)
        if not blocks.any():
            return np.asarray(single, dtype=np.float64)
        launch = single.copy()
        whole = np.full(int(blocks.sum()), np.inf)
        for t, degree in enumerate(self.degrees[1:], 1):
            rest = self.forward_s[t, blocks] - self._collective(t)[blocks]
            # Time = launch + work / degree: two degrees give the work, and what is left of degree 1
            # is launch.
            split = (self.forward_s[0, blocks] - rest) / (1 - 1 / degree)
            whole = np.minimum(whole, self.forward_s[0, blocks] - np.maximum(split, 0.0))
        for t in range(len(self.degrees)):
            own = self.forward_s[t, blocks] - self._collective(t)[blocks]
            floor = float(np.min(own - least[blocks] / self.degrees[t]))
            launch[t, blocks] = np.clip(np.minimum(np.median(whole), floor), 0.0, own)
        return np.asarray(launch, dtype=np.float64)
