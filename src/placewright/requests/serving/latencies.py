"""Seconds of a batch by server, variant and size: measured at first, and kept up to date."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from placewright.errors import InputError
from placewright.numerics.arrays import FloatArray
from placewright.requests.serving.families import Family, Variant
from placewright.requests.serving.models import Computed
from placewright.requests.serving.observing import event
from placewright.requests.serving.row_checks import TOGETHER, Row, RowCheck, unfit
from placewright.requests.serving.tensors import Array, TensorSpec, received, sendable
from placewright.requests.serving.workers import ServerProcess

WEIGHT = 0.05
"""Of the newest batch in a server's and variant's mean factor."""

CLIP = 4.0
"""A batch counts as at most so many times as slow, or as fast, as the table says."""

CHANGED = 0.02
"""Relative change of a factor after which policies get a new table."""

RECENT, FEW = 500, 50
"""Batches whose times make the distribution around the table; before so many, it is the usual."""

USUAL_NOISE, LARGEST_NOISE = 0.05, 0.45

MIDDLE = (0.16, 0.84)
"""Quantiles that are one standard deviation from the mean of a normal distribution: rare batches
that take several times as long, on a machine that others use too, do not move them."""

LATE = 0.99
"""Share of batches that end within `late_s` of their expected end."""


class LatencyTable:
    """Measured seconds of batches, times a factor for each server and variant.

    Sizes that were not measured lie on a line between those that were. While the server runs, the
    ratio of each batch's seconds to the table's moves the factor of its server and variant.

    `seconds`: Shape (servers, variants, most + 1), as `Service.latency_s`.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.seconds: FloatArray = np.zeros((0, 0, most + 1))
        self._factor: FloatArray = np.zeros((0, 0))
        self._published: FloatArray = np.zeros((0, 0))
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)

    @property
    def noise(self) -> float:
        """Relative standard deviation of most batches around the table."""
        if len(self._recent) < FEW:
            return USUAL_NOISE
        low, high = np.quantile(self.ratios, MIDDLE)
        return float(min((high - low) / 2, LARGEST_NOISE))

    @property
    def late_s(self) -> float:
        """Seconds after their expected end within which nearly all batches end."""
        if len(self._recent) < FEW:
            return 0.0
        return max(0.0, float(np.quantile([late_s for _, late_s in self._recent], LATE)))

    @property
    def ratios(self) -> FloatArray:
        """Times of recent batches relative to what was expected."""
        return np.array([ratio for ratio, _ in self._recent])

    def resize(self, servers: int, variants: int) -> None:
        """Room for servers and variants added at the end; what is not measured is ``inf``."""
        old = self.seconds
        self.seconds = np.full((servers, variants, self.most + 1), np.inf)
        self.seconds[:, :, 0] = 0.0
        self.seconds[: old.shape[0], : old.shape[1]] = old
        factor = np.ones((servers, variants))
        factor[: old.shape[0], : old.shape[1]] = self._factor
        self._factor, self._published = factor, factor.copy()

    def remove_variant(self, variant: int) -> None:
        """Forget a variant; later ones move up."""
        self.seconds = np.delete(self.seconds, variant, axis=1)
        self._factor = np.delete(self._factor, variant, axis=1)
        self._published = np.delete(self._published, variant, axis=1)

    def measured(self, server: int, variant: int, samples: dict[int, list[float]]) -> None:
        """Set a server's seconds of a variant: lists of them by batch size."""
        sizes = sorted(samples)
        means = [float(np.mean(samples[size])) for size in sizes]
        whole = np.arange(1, self.most + 1)
        self.seconds[server, variant, 1:] = np.interp(whole, sizes, means)
        self.seconds[server, variant, max(sizes) + 1 :] = np.inf
        self._factor[server, variant] = 1.0

    def latency_s(self) -> FloatArray:
        """Shape (servers, variants, most + 1): what is expected now."""
        found: FloatArray = self.seconds * self._factor[:, :, None]
        return found

    def expected_s(self, server: int, variant: int, batch: int) -> float:
        """Seconds of one batch."""
        return float(self.seconds[server, variant, batch] * self._factor[server, variant])

    def observe(self, server: int, variant: int, batch: int, took_s: float) -> None:
        """A batch took so long."""
        expected_s = self.expected_s(server, variant, batch)
        self._recent.append((took_s / expected_s, took_s - expected_s))
        ratio = float(np.clip(took_s / self.seconds[server, variant, batch], 1 / CLIP, CLIP))
        factor = self._factor[server, variant]
        self._factor[server, variant] = factor + WEIGHT * (ratio - factor)

    def changed(self) -> bool:
        """Whether a factor has changed since this last was true."""
        if (np.abs(self._factor / self._published - 1) > CHANGED).any():
            self._published = self._factor.copy()
            return True
        return False


SIZES = (1, 2, 4, 8, 16, 32)
REPEATS = 8
MEASURED_S = 2.0
"""Batch sizes that are measured, how often, and the seconds after which no size is begun."""

ORDER_S = 60.0
"""Of a batch that is timed."""


class VariantTimer:
    """Times batches of variants, and checks each variant once (`RowCheck`).

    `most`: rows of the largest batch.
    `alone`: why rows of a variant are computed by themselves, by the label of its family; empty
    where they are not.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.alone: dict[tuple[str, Variant], str] = {}
        self._answers: dict[tuple[str, Variant], list[Row]] = {}

    def forget_others(self, variants: Collection[Variant]) -> None:
        """Of the variants that were checked, keep these."""
        self.alone = {each: why for each, why in self.alone.items() if each[1] in variants}
        self._answers = {each: own for each, own in self._answers.items() if each[1] in variants}

    async def timed(
        self, process: ServerProcess, made: Family, chosen: Variant
    ) -> dict[int, list[float]]:
        """Seconds of batches by size, after one batch of each size that does not count."""
        samples = {}
        row, most = made.example(zeros), made.most(self._most)
        where = _where(process, made, chosen)
        began_s = time.monotonic()
        # A fixed batch takes as long for one row as for all.
        for size in {1, most} if made.batch else [s for s in SIZES if s <= most]:
            taken = []
            for repeat in range(REPEATS + 1):
                sent_s = time.monotonic()
                computed = await _computed(process, made, chosen, [row] * size)
                if repeat:
                    taken.append(time.monotonic() - sent_s)
                elif computed.error:
                    raise _cannot_compute(where, size, computed.error)
                elif why := made.wrong_outputs(computed.outputs, size):
                    raise unfit(where, why)
            samples[size] = taken
            if time.monotonic() - began_s > MEASURED_S:
                break
        if (made.label, chosen) not in self.alone:
            compute = partial(_computed, process, made, chosen)
            await self._check(RowCheck(made, compute, max(samples), where), chosen)
        else:
            await self.demand_same_model(process, made, chosen)
        return {1: samples[1]} if self.alone[made.label, chosen] else samples

    async def demand_same_model(
        self, process: ServerProcess, made: Family, chosen: Variant
    ) -> None:
        """Raise `InputError` where a factory has made another model than on the first server."""
        before = self._answers.get((made.label, chosen))
        if before is not None:
            compute = partial(_computed, process, made, chosen)
            check = RowCheck(made, compute, TOGETHER, _where(process, made, chosen))
            await check.demand_same_model(before)

    async def _check(self, check: RowCheck, chosen: Variant) -> None:
        made, why = check.made, await check.why_alone()
        if made.layout.pads:
            await check.check_padding()
        if chosen.kind == "factory":  # files are the same bytes on all servers
            self._answers[made.label, chosen] = await replace(check, most=TOGETHER).answers()
        self.alone[made.label, chosen] = why
        if why:
            event("variant-computed-alone", variant=worker_key(made, chosen), reason=why)


async def _computed(
    process: ServerProcess,
    made: Family,
    chosen: Variant,
    rows: Sequence[Sequence[Array]],
) -> Computed:
    key, inputs = worker_key(made, chosen), made.stacked(rows)
    sent = {name: sendable(value) for name, value in inputs.items()}
    found: Computed = await process.order("compute", key, sent, limit_s=ORDER_S)
    return replace(found, outputs=tuple(map(received, found.outputs)))


def _where(process: ServerProcess, made: Family, chosen: Variant) -> str:
    """What errors call a variant on a server."""
    sizes = f", {made.label}" if made.bucket else ""
    return f"server {process.name!r}, variant {chosen.name!r}{sizes}"


def worker_key(family: Family, variant: Variant) -> str:
    """What workers call a variant."""
    again = f"#{variant.generation}" if variant.generation else ""
    return f"{family.name}/{variant.name}{again}"


def _cannot_compute(where: str, size: int, error: str) -> InputError:
    hint = (
        "let it return arrays for rows of zeros and empty strings, which are timed at the start; "
        "where it takes one size of batches only, give that in its shapes: [4, 8]"
    )
    if size > 1:
        hint = "export it with an open first dimension, or serve with --max-batch 1"
    return InputError(
        "a variant cannot be served",
        where=where,
        by=f"a batch of {size}: {error:.300}",
        hint=hint,
    )


def zeros(spec: TensorSpec, shape: tuple[int, ...]) -> Array:
    """A tensor of zeros, or of empty strings."""
    return np.full(shape, "" if spec.datatype == "BYTES" else 0, spec.dtype)
