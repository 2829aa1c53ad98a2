"""Extend a profile of single forward passes to backward passes and other micro-batches.

One forward pass of one sample, timed with a synchronisation after each layer, holds parts that
training sees in other ways. With f_t the time at tensor degree t and one sample:

    f_t = exposed + split / t + whole + start_t + sent_t

exposed
    Launching kernels while the device is idle, as it is at the beginning of a layer timed alone.
    In training kernels are launched ahead of the device: a pass through a stage pays it once.
split, whole
    Work on the device that tensor parallelism divides, and that it does not: grows with the
    samples; the backward pass has twice of it (gradients of inputs and of weights).
start_t, sent_t
    Two all-reduces of the layer's output in each pass: beginning them takes the same for every
    micro-batch, sending grows with the samples.

A pass takes what the device needs for work and for sending, at least `launch`, what the processor
needs to start its kernels, and begins its all-reduces beside that. Every backward pass adds its
gradients to those of the micro-batches before it.

The parts are told apart by the profile itself. An embedding does one all-reduce of the same size
and nearly no work: its growth over degree 1 is what one costs, and from one degree to another only
the bytes sent grow, which gives the bandwidth; without an embedding the nominal bandwidth holds,
and the growth of the smallest block is that of beginning them. What a block takes at degree t less
its all-reduces, against degree 1, gives ``split``; the rest is ``exposed``. Where time does not
shrink with the degree, blocks of one model run about the same kernels whatever their width, so
``launch`` is at most the smallest time of any block less its work by the data sheet
(`roofline_s`). Where in a block the device gets more work than launching takes is not known then:
``exposed`` is taken as half of it. Layers of a single operation have no launch part beyond what
twice the roofline leaves: kernels reach at least half of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray

from .datasheets import data_sheet


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
        launch, exposed = even._launch()
        start, sent = even._collectives()
        work = np.maximum(even.forward_s - exposed - start - sent, 0.0)
        grow = sizes[None, :, None]
        held = np.where(np.isfinite(self.parameters), self.parameters, 0.0).T
        added = 3 * self.shape.element_bytes * held / data_sheet(self.device).memory_bandwidth
        passes = [
            start[:, None] + np.maximum(launch[:, None], grow * (times * work + sent)[:, None])
            for times in (1, 2)
        ]
        return passes[0], passes[1] + added[:, None]

    def exposed_s(self) -> float:
        """Seconds by which a pass through any number of layers is longer than in `tables`."""
        blocks = self._blocks()
        _, exposed = self._averaged()._launch()
        return float(exposed[0, blocks].min()) if blocks.any() else 0.0

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

    def ring_bandwidth(self) -> float:
        """Bytes per second between the workers of a node: nominal, or what an embedding shows."""
        split = [t for t, degree in enumerate(self.degrees) if degree > 1]
        if not self._embeds() or len(split) < 2:
            return self.bandwidth
        first, last = split[0], split[-1]
        grown = float(self.forward_s[last, 0] - self.forward_s[first, 0])
        moved = (self._ring_part(last) - self._ring_part(first)) * float(self.output_bytes[0, 0])
        return min(self.bandwidth, moved / grown) if grown > 0 else self.bandwidth

    def _ring_part(self, t: int) -> float:
        """What a worker sends in an all-reduce, as a part of what is reduced."""
        return 2 * (self.degrees[t] - 1) / self.degrees[t]

    def _embeds(self) -> bool:
        """Whether the first layer ends with an all-reduce of as much as a block has."""
        alike = self.output_bytes[self._blocks(), 0] == self.output_bytes[0, 0]
        return bool(alike.any()) and bool(self.parameters[0, -1] < self.parameters[0, 0])

    def _collectives(self) -> tuple[FloatArray, FloatArray]:
        """Shape (T, n) each: beginning the all-reduces of a forward pass, and sending.

        There are two in a block, one in an embedding.
        """
        blocks, embeds = self._blocks(), self._embeds()
        count = 2.0 * blocks
        if embeds:
            count[0] = 1.0
        part = np.array([self._ring_part(t) for t in range(len(self.degrees))])[:, None]
        sent = count * part * self.output_bytes[:, 0] / self.ring_bandwidth()
        grown = self.forward_s - self.forward_s[0] - sent  # by more than what is sent
        start = np.zeros((len(part), 1))
        if embeds:
            start = np.maximum(grown[:, :1], 0.0)
        elif blocks.any():
            start = np.maximum(grown[:, blocks].min(axis=1, keepdims=True), 0.0) / 2
        at_most = np.nan_to_num(self.forward_s)
        sent = np.minimum(sent, at_most)
        return np.minimum(count * start * (part > 0), at_most - sent), sent

    def _launch(self) -> tuple[FloatArray, FloatArray]:
        """Shape (T, n) each: seconds to start a pass's kernels, and what of it shows (exposed)."""
        blocks, least = self._blocks(), self.roofline_s()
        launch = np.maximum(self.forward_s - 2 * least[None, :], 0.0)
        exposed = launch.copy()
        if not blocks.any():
            return launch, exposed
        own = (self.forward_s - sum(self._collectives()))[:, blocks]
        whole = np.full(int(blocks.sum()), np.inf)
        for t, degree in enumerate(self.degrees[1:], 1):
            # Time = exposed + work / degree: two degrees give the work, what is left is exposed.
            split = (own[0] - own[t]) / (1 - 1 / degree)
            whole = np.minimum(whole, own[0] - np.maximum(split, 0.0))
        for t, degree in enumerate(self.degrees):
            floor = float(np.min(own[t] - least[blocks] / degree))
            divided = float(np.median(whole))
            launch[t, blocks] = np.clip(min(divided, floor), 0.0, own[t])
            exposed[t, blocks] = launch[t, blocks] * (1.0 if divided <= floor else 0.5)
        return launch, exposed
