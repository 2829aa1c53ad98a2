"""Whether a variant answers each row as if it were alone: tried once, when it is timed.

Random rows are computed one by one, together, and one by one again:

    a row has another answer the second time       refused, unless the family's file says random
    other rows change it by more than a tenth      refused: a mistake, as a softmax over the batch
    it is another at another place of a batch      refused: an output that belongs to no row
    other rows change it by less, or a label       batches of one row: scales of quantised models
    padding changes it                             refused
    it has another answer on another server        refused: the factory does not make one model

Half of the digits of a datatype pass for rounding: kernels add up a larger batch in another order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from placewright.errors import InputError
from placewright.requests.serving.families import Family
from placewright.requests.serving.models import Computed
from placewright.requests.serving.tensors import Array, TensorSpec

TOGETHER, MORE, MORE_S = 4, 16, 2.0
"""Random rows; others of each kind, as few change a label; the seconds after which none is
begun."""

INFLUENCE = 0.1
"""Of other rows, as a share of an output's largest value; more is a mistake."""

ROUNDING, ROUNDING_OF_HALF = 2.4e-4, 2.2e-2
"""Shares of an output's largest value, the second of numbers of 16 bits."""

LARGE, LARGE_WHOLE = 1e4, 100
"""By which a row is multiplied that others should not feel, and its numbers where they are whole:
every datatype and most tables have such a one."""

LEAST_ROUNDING = 0.1
"""Share of the rounding of an output's largest value that is one of small values beside it, too."""

KEPT = 1000
"""Values of each output by which a model is known again."""

Row = tuple[Array, ...]
Make = Callable[[TensorSpec, tuple[int, ...]], Array]
Draw = Callable[[np.random.Generator], Make]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows that are computed together.

    `own`: by place in the batch, the row's position among the random ones, of those that are
    compared.
    `must`: whether it is a fault if they cannot be computed: others hold values that a model may
    refuse.
    """

    rows: Sequence[Row]
    own: Mapping[int, int]
    must: bool = True


@dataclass(frozen=True, slots=True)
class RowCheck:
    """The check of one variant.

    Attributes
    ----------
    compute
        Lets a server compute a batch of rows.
    most
        Rows of its largest batch.
    where
        What errors call it.
    """

    made: Family
    compute: Callable[[Sequence[Row]], Awaitable[Computed]]
    most: int
    where: str

    async def answers(self) -> list[Row]:
        """First values of its outputs for random rows; nothing of models that draw numbers."""
        if self.made.layout.random:
            return []
        _, own = await self._singly()
        return [tuple(x.reshape(-1)[:KEPT] for x in row) for row in own]

    async def demand_same_model(self, before: Sequence[Row]) -> None:
        """Raise `InputError` where its `answers` were others when it was loaded before."""
        now = await self.answers()
        comparable = bool(now) and len(now) == len(before)
        why = "" if len(now) == len(before) else "random rows can be computed by one of them only"
        for n, spec in enumerate(self.made.outputs if comparable else ()):
            share = _difference(spec, [x[n] for x in before], [x[n] for x in now])
            if share > (INFLUENCE if spec.dtype.kind == "f" else 0):
                why = f"output {spec.name!r} {_said(share)}"
        if why:
            raise InputError(
                "its factory makes another model each time",
                where=self.where,
                by=why,
                hint="let it read weights from a file, or draw them with a seed "
                "(torch.manual_seed); where its files were changed, load the model again",
            )

    async def why_alone(self) -> str:
        """Why it has to compute each row by itself; empty where batches have the same answers.

        Raises `InputError`: its answers depend on earlier calls, or too much on other rows.
        """
        if self.made.layout.random:
            return ""
        rows, own = await self._singly()
        if not own:
            return "random rows cannot be computed, so that batches cannot be compared"
        batches = list(self._batches(rows))
        together = [await self.compute(batch.rows) for batch in batches]
        places = min(self.most, self.made.batch or TOGETHER)
        copies = await self.compute(rows[:1] * places)
        # After all others: what a model keeps of them shows. The first row three times, of which
        # models that take turns among answers give two at least.
        again = [await self.compute([row]) for row in (*rows, *rows[:1] * 2)]
        answers = [self._answer(each) for each in again if not each.error]
        self._demand_same([*own, *own[:1] * 2], answers)
        self._demand_no_place(copies, places)
        pairs = zip(batches, together, strict=True)
        found = next(filter(None, (self._influence(own, *pair) for pair in pairs)), "")
        until_s = time.monotonic() + MORE_S
        for draw in DRAWS if self.most > 1 else ():
            if not found and time.monotonic() < until_s:
                found = await self._influence_of(draw, until_s)
        return found

    async def check_padding(self) -> None:
        """Raise `InputError` where outputs change with the padding of inputs."""
        if self.made.layout.random:
            return
        # Of each size the same numbers with both signs, which a slow model has to do with.
        kinds, compared, until_s = (normal, opposite, positive, wide), 0, time.monotonic() + MORE_S
        for (seed, sizes), kind in product(enumerate(self.made.shorter()), kinds):
            if compared > 1 and time.monotonic() > until_s:
                return
            short = self._row(kind(np.random.default_rng(seed)), sizes, padded=True)
            plain = await self.compute([short])
            padded = await self.compute([self.made.padded(short)])
            if plain.error or padded.error:
                continue  # it takes some sizes only, or no such numbers
            compared += 1
            cut = self.made.cut(padded.outputs, sizes)
            for spec, one, other in zip(self.made.outputs, plain.outputs, cut, strict=True):
                if _difference(spec, [one], [other]):
                    raise InputError(
                        "padded inputs have other outputs than those that are not padded",
                        where=self.where,
                        by=f"output {spec.name!r} of inputs of {sizes}",
                        hint="give padding the values by which the model knows it (padding: "
                        "{mask: 0}), export it with a mask, or leave padding out and serve exact "
                        "sizes",
                    )

    async def _singly(self) -> tuple[list[Row], list[Row]]:
        """Random rows and their answers, of the first kind of numbers that the model takes."""
        for make in (normal(np.random.default_rng(0)), positive(np.random.default_rng(0))):
            rows = [self._row(make) for _ in range(min(TOGETHER, self.most))]
            own = [await self.compute([row]) for row in rows]
            if not any(each.error for each in own):
                return rows, [self._answer(each) for each in own]
        return [], []

    def _row(
        self, make: Make, sizes: Mapping[str, int] | None = None, *, padded: bool = False
    ) -> Row:
        """A random row; one that is `padded` has no whole number that padding has."""

        def made(spec: TensorSpec) -> Array:
            value = make(spec, self.made.row_shape(spec, sizes))
            fill = self.made.layout.fill(spec.name)
            if "mask" in spec.name.lower() and spec.datatype != "BYTES":
                # One that keeps nothing is never sent.
                return np.full_like(value, fill != 1)
            if padded and spec.dtype.kind in "iu":
                if not self.made.bucket.keys() & set(spec.names):
                    return np.ones_like(value)  # it may say how long a row is
                return np.where(value == fill, value + 1, value).astype(spec.dtype)
            return value

        return tuple(map(made, self.made.inputs))

    def _answer(self, computed: Computed) -> Row:
        """The outputs of a row that was computed alone."""
        if wrong := self.made.wrong_outputs(computed.outputs, 1):
            raise unfit(self.where, wrong)
        return self.made.outputs_of(computed.outputs, 0)

    def _batches(self, rows: Sequence[Row]) -> Iterator[_Batch]:
        """Batches with the random rows, or some of them."""
        if self.most == 1:
            return
        count = len(rows)
        yield _Batch(rows, {k: k for k in range(count)})
        for size in range(max(count + 1, self.most - 1), self.most + 1):
            places = {k: k % count for k in range(size)}
            yield _Batch([rows[k] for k in places.values()], places)
        for kinds, *others in (("f", _large, _large_opposite), ("f", _nan), ("iu", _large_whole)):
            chosen = [spec.dtype.kind in kinds for spec in self.made.inputs]
            if any(chosen):
                beside = [
                    tuple(other(x) if one else x for x, one in zip(rows[1], chosen, strict=True))
                    for other in others
                ]
                yield _Batch([rows[0], *beside][: self.most], {0: 0}, must=False)

    def _demand_same(self, own: Sequence[Row], again: Sequence[Row]) -> None:
        """Raise `InputError` where rows have other answers than before, or one has none."""
        for n, spec in enumerate(self.made.outputs):
            if share := _difference(spec, [x[n] for x in own], [x[n] for x in again]):
                raise InputError(
                    "the answer to a row differs between two calls",
                    where=self.where,
                    by=f"output {spec.name!r} {_said(share)}",
                    hint="make it a function of its inputs, without counters, running statistics "
                    "or other states of earlier calls, and with dropout off (model.eval()); if it "
                    "draws random numbers on purpose, write random: true into the family's file",
                )

    def _demand_no_place(self, copies: Computed, places: int) -> None:
        """Raise `InputError` where one of so many equal rows has another answer."""
        if copies.error or self.made.wrong_outputs(copies.outputs, places):
            return  # a batch that cannot be computed is found by others
        first, *others = (self.made.outputs_of(copies.outputs, k) for k in range(places))
        for n, spec in enumerate(self.made.outputs):
            if any(_difference(spec, [first[n]], [other[n]]) for other in others):
                why = f"output {spec.name!r} of a row depends on its place in the batch"
                raise _mixed(self.where, why)

    async def _influence_of(self, draw: Draw, until_s: float) -> str:
        """Why rows are to be computed by themselves, where those of this kind show it.

        Of a slow model fewer rows than `MORE`: those until then.
        """
        make, rows, own = draw(np.random.default_rng(1)), list[Row](), list[Row]()
        for _ in range(MORE):
            if time.monotonic() > until_s:
                break
            row = self._row(make)
            computed = await self.compute([row])
            if not computed.error:
                rows.append(row)
                own.append(self._answer(computed))
        size = min(self.most, MORE // 2)
        for k in range(0, len(rows) - 1, size):
            places = {place: place for place in range(len(rows[k : k + size]))}
            batch = _Batch(rows[k : k + size], places, must=False)
            if found := self._influence(own[k:], batch, await self.compute(batch.rows)):
                return found
        return ""

    def _influence(self, own: Sequence[Row], batch: _Batch, computed: Computed) -> str:
        """Why rows are to be computed by themselves, where this batch shows it."""
        count = len(batch.rows)
        wrong = "" if computed.error else self.made.wrong_outputs(computed.outputs, count)
        if computed.error or wrong:
            if wrong and batch.must:
                raise unfit(self.where, wrong)
            return f"a batch of {count}: {computed.error:.200}" if batch.must else ""
        for n, spec in enumerate(self.made.outputs):
            ones = [own[k][n] for k in batch.own.values()]
            others = [self.made.outputs_of(computed.outputs, k)[n] for k in batch.own]
            share = _difference(spec, ones, others)
            why = f"output {spec.name!r} of a row depends on the other rows of its batch"
            if share > INFLUENCE and spec.dtype.kind == "f" and batch.must:
                raise _mixed(self.where, f"{why}: it {_said(share)}")
            if share:
                return f"{why}: it {_said(share)}"
        return ""


_OTHERWISE = (
    "if batches of 1 are right, serve with --max-batch 1; if outputs belong to a request as a "
    "whole, write whole: true into the family's file"
)


def unfit(where: str, why: str) -> InputError:
    """A variant whose outputs are not those that its family declares."""
    return InputError(
        "a variant cannot be served",
        where=where,
        by=why,
        hint="return the outputs that the family's file or the ONNX file declares, in their "
        f"datatypes, with a row for each of the input; {_OTHERWISE}",
    )


def _mixed(where: str, why: str) -> InputError:
    """A variant whose rows change each other's outputs."""
    return InputError(
        "a variant cannot be served",
        where=where,
        by=why,
        hint=f"export it so that every row of a batch is computed by itself; {_OTHERWISE}",
    )


WORDS = ("0", "1", "a word", "a few more words, of which one is longer")
"""Texts of different lengths."""


def normal(rng: np.random.Generator) -> Make:
    """Makes tensors of random numbers, of 0 and 1 where these are whole, or of random texts."""
    return _random(
        rng.standard_normal,
        lambda size: np.asarray(rng.integers(0, 2, size=size)),
        lambda size: np.asarray(rng.choice(WORDS, size=size)),
    )


def opposite(rng: np.random.Generator) -> Make:
    """As `normal`, of the other sign; whole numbers, which may be places in tables, from 0 to 3."""
    return _random(
        lambda size: np.negative(rng.standard_normal(size)),
        lambda size: np.asarray(rng.integers(0, 4, size=size)),
        lambda size: np.asarray(rng.choice(WORDS, size=size)),
    )


def positive(rng: np.random.Generator) -> Make:
    """Makes tensors of random numbers in [0, 1), of 1 where these are whole, or of digits."""
    return _random(
        rng.random,
        lambda size: np.ones(size, np.int64),
        lambda size: np.asarray(rng.integers(0, 10, size=size)).astype(str),
    )


def wide(rng: np.random.Generator) -> Make:
    """Makes tensors of small or large numbers, whole ones of up to 100, or of random texts."""
    return _random(
        lambda size: np.multiply(rng.standard_normal(size), 10 ** rng.uniform(-1, 2)),
        lambda size: np.asarray(rng.integers(0, LARGE_WHOLE, size=size)),
        lambda size: np.asarray(rng.choice(WORDS, size=size)),
    )


DRAWS: tuple[Draw, ...] = (normal, opposite, wide)
"""Kinds of random rows besides the first ones."""


def _random(
    numbers: Callable[..., Array], whole: Callable[..., Array], texts: Callable[..., Array]
) -> Make:
    def make(spec: TensorSpec, shape: tuple[int, ...]) -> Array:
        if spec.datatype == "BYTES":
            return texts(size=shape).astype(object)
        return (numbers if spec.dtype.kind == "f" else whole)(size=shape).astype(spec.dtype)

    return make


def _large(value: Array) -> Array:
    with np.errstate(over="ignore"):
        found: Array = (value * LARGE).astype(value.dtype)
    return found


def _large_opposite(value: Array) -> Array:
    return -_large(value)


def _nan(value: Array) -> Array:
    return np.full_like(value, math.nan)


def _large_whole(value: Array) -> Array:
    return np.full_like(value, LARGE_WHOLE)


def _difference(spec: TensorSpec, ones: Sequence[Array], others: Sequence[Array]) -> float:
    """By which share of the largest value outputs differ, beyond rounding; 0: they do not.

    ``inf`` where they differ otherwise: in shape, in what is not finite, in labels.
    """
    shapes = [x.shape for x in ones]
    if shapes != [x.shape for x in others]:
        return math.inf
    # Rows of unequal shapes have no places in common.
    joined = np.stack if len(set(shapes)) == 1 else np.concatenate
    one, other = (joined([x.reshape(-1) for x in each]) for each in (ones, others))
    if spec.dtype.kind != "f":
        return 0.0 if np.array_equal(one, other) else math.inf
    one, other = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(one) & np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return math.inf
    one, other = np.where(finite, one, 0.0), np.where(finite, other, 0.0)
    apart, size = np.abs(one - other), np.abs(one)
    # Of each number in a row by itself: a score may stand beside the sides of a box.
    largest, places = size.max(initial=0.0), size.max(axis=0, initial=0.0)
    least = LEAST_ROUNDING if spec.dtype.itemsize > 2 else 1.0
    rounding = ROUNDING_OF_HALF if spec.dtype.itemsize == 2 else ROUNDING
    if (apart <= rounding * np.maximum(places, least * largest)).all():
        return 0.0
    return float(apart.max() / largest) if largest else math.inf


def _said(share: float) -> str:
    """How much an output changes."""
    if math.isinf(share):
        return "has another value"
    return f"changes by {share:.2g} of its largest value"
