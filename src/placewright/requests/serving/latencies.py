"""Seconds of a batch by server, variant and size: measured at first, and kept up to date."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from placewright.errors import InputError
from placewright.numerics.arrays import FloatArray
from placewright.requests.serving.families import Family, Variant
from placewright.requests.serving.models import Computed
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

TOGETHER, INFLUENCE = 4, 0.1
"""Rows of which it is looked at whether they change each other's outputs, and by which share of
the largest output at least: scales of quantised models, which a batch shares, stay below."""

PADDED = 0.02
"""The same of padding, by which a mask or a causal model is not changed at all."""

ORDER_S = 60.0
"""Of a batch that is timed."""


class VariantTimer:
    """Times batches of variants, and checks each variant once: a row of outputs for one of inputs.

    `most`: rows of the largest batch.
    """

    def __init__(self, most: int) -> None:
        self._most, self._checked = most, set[tuple[str, Variant]]()

    def forget_others(self, variants: Collection[Variant]) -> None:
        """Of the variants that were checked, keep these."""
        self._checked = {each for each in self._checked if each[1] in variants}

    async def timed(
        self, process: ServerProcess, made: Family, chosen: Variant
    ) -> dict[int, list[float]]:
        """Seconds of batches by size, after one batch of each size that does not count."""
        samples = {}
        row, most = made.example(zeros), made.most(self._most)
        began_s = time.monotonic()
        # A fixed batch takes as long for one row as for all.
        for size in {1, most} if made.batch else [s for s in SIZES if s <= most]:
            taken = []
            for repeat in range(REPEATS + 1):
                sent_s = time.monotonic()
                computed = await _computed(process, made, chosen, [row] * size)
                if repeat:
                    taken.append(time.monotonic() - sent_s)
                elif why := computed.error or made.wrong_outputs(computed.outputs, size):
                    raise _unfit(process, chosen, f"a batch of {size}: {why:.300}")
            samples[size] = taken
            if time.monotonic() - began_s > MEASURED_S:
                break
        if (made.label, chosen) not in self._checked:
            if most > 1:
                await self._check_apart(process, made, chosen)
            if made.layout.pads:
                await self._check_padding(process, made, chosen)
            self._checked.add((made.label, chosen))
        return samples

    async def _check_apart(self, process: ServerProcess, made: Family, chosen: Variant) -> None:
        """Raise `InputError` where the outputs of a row depend on the others of its batch.

        Clients would get other answers the more of them there are. What cannot compute random
        numbers, or makes its own, is not judged.
        """
        make = _random(np.random.default_rng(0))
        count = min(TOGETHER, made.most(self._most))
        rows = [made.example(make) for _ in range(count)]
        together = await _computed(process, made, chosen, rows)
        *apart, again = [
            await _computed(process, made, chosen, [rows[k]]) for k in (*range(count), 0)
        ]
        if any(each.error for each in (together, *apart, again)):
            return
        if why := made.wrong_outputs(together.outputs, count):
            raise _unfit(process, chosen, why)
        singly = [made.outputs_of(each.outputs, 0) for each in (*apart, again)]
        for n, spec in enumerate(made.outputs):
            *own, other = [outputs[n] for outputs in singly]
            if _differ(own[0], other):
                continue  # it makes random numbers
            shared = [made.outputs_of(together.outputs, k)[n] for k in range(count)]
            alike = all(a.shape == b.shape for a, b in zip(own, shared, strict=True))
            if not alike or _differ(np.stack(own), np.stack(shared)):
                why = f"output {spec.name!r} of a row depends on the other rows of its batch"
                raise _unfit(process, chosen, why)

    async def _check_padding(self, process: ServerProcess, made: Family, chosen: Variant) -> None:
        """Raise `InputError` where outputs change with the padding of inputs."""
        make = _random(np.random.default_rng(0))
        for sizes in made.shorter():
            short = tuple(make(spec, made.row_shape(spec, sizes)) for spec in made.inputs)
            plain = await _computed(process, made, chosen, [short])
            padded = await _computed(process, made, chosen, [made.padded(short)])
            if not (plain.error or padded.error):
                break
        else:
            return  # it takes some sizes only, or no random numbers
        cut = made.cut(padded.outputs, sizes)
        for spec, one, other in zip(made.outputs, plain.outputs, cut, strict=True):
            if _differ(one, other, PADDED):
                raise InputError(
                    "padded inputs have other outputs than those that are not padded",
                    where=f"variant {chosen.name!r}, {made.label}",
                    by=f"output {spec.name!r} of inputs of {sizes}",
                    hint="give padding the values by which the model knows it (padding: {mask: "
                    "0}), export it with a mask, or leave padding out and serve exact sizes",
                )


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


def worker_key(family: Family, variant: Variant) -> str:
    """What workers call a variant."""
    again = f"#{variant.generation}" if variant.generation else ""
    return f"{family.name}/{variant.name}{again}"


def _unfit(process: ServerProcess, chosen: Variant, why: str) -> InputError:
    return InputError(
        "a variant cannot be served",
        where=f"server {process.name!r}, variant {chosen.name!r}",
        by=why,
        hint="export it so that every row of a batch is computed by itself; if batches of 1 are "
        "right, serve with --max-batch 1; if outputs belong to a request as a whole, write whole: "
        "true into the family's file",
    )


def zeros(spec: TensorSpec, shape: tuple[int, ...]) -> Array:
    """A tensor of zeros, or of empty strings."""
    return np.full(shape, "" if spec.datatype == "BYTES" else 0, spec.dtype)


def _random(rng: np.random.Generator) -> Callable[[TensorSpec, tuple[int, ...]], Array]:
    """Makes tensors of random numbers; of 0 and 1 where they are no floating-point numbers.

    Of 1 alone where they are called masks: one that keeps nothing is never sent.
    """

    def make(spec: TensorSpec, shape: tuple[int, ...]) -> Array:
        if "mask" in spec.name.lower() and spec.datatype != "BYTES":
            return np.ones(shape, spec.dtype)
        if spec.dtype.kind == "f":
            return rng.standard_normal(size=shape).astype(spec.dtype)
        whole = rng.integers(0, 2, size=shape)
        return whole.astype(str if spec.datatype == "BYTES" else spec.dtype).astype(spec.dtype)

    return make


def _differ(one: Array, other: Array, share: float = INFLUENCE) -> bool:
    """Whether outputs differ by more than a share of the largest; only floats are looked at."""
    if one.shape != other.shape:
        return True
    if one.dtype.kind != "f" or not np.isfinite(one).all():
        return False
    largest = share * np.abs(one).max(initial=0.0)
    return not (np.abs(other - one) <= largest).all()
