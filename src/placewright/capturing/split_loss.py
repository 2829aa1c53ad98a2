"""How the loss of a batch is made of the losses of its parts.

share        rows of the part / rows of the batch, or 1 where the loss is a sum over samples
counted      a mean over something else than rows: labels that are not ignored, weights of classes,
             a mask. In a part it is divided by share x what the whole batch counts
loss         sum over the parts of share x loss of the part

Whether that is the loss of the whole, and its gradients, is tried on rows of the example: roots of
means, contrastive losses and models that mix samples are found by it.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from placewright.capturing.checks import python_generators_kept
from placewright.capturing.containers import MicroBatch, refilled, tensors_of
from placewright.capturing.python_state import in_mode
from placewright.capturing.source import ModelAndLoss, ModelSource, TrainingRecipe, default_loss
from placewright.errors import UnsupportedError

MOST_ROWS = 32
"""Of the example that are compared, spread over it: the fewer, the more parts differ by chance."""

ROWS_ALONE = 8
"""Single rows whose divisors are compared."""

STILL = (_BatchNorm, _DropoutNd, nn.RNNBase, nn.MultiheadAttention)
"""In evaluation mode while parts are compared: statistics and dropout differ between parts."""

_LABELLED = {f: inspect.signature(f) for f in (functional.cross_entropy, functional.nll_loss)}
_DIVISIONS = ("__truediv__", "div", "true_divide")


@dataclass(frozen=True, slots=True)
class LossSplit:
    """How a loss is split over parts of a batch.

    Attributes
    ----------
    reduction
        ``mean``: parts count by their share of the rows; ``sum``: they are added up.
    counted
        Of every mean that `CountedMeans` sees, in order: whether it is divided by what the whole
        batch counts.
    inside
        Whether the model, not the loss function, has such a mean.
    refusal
        Why the loss cannot be split, and by how much it differs; empty if it can.
    mixes
        Whether already the outputs of the model differ.
    fails
        Whether model or loss raise an error for a part.
    tried
        Whether parts were compared with a whole.
    unlike
        Buffers that are others after a part than after the whole; not those of batch norm.
    predicted
        Whether a mean is divided by what the model's outputs say, as the samples it is sure of.
    """

    reduction: Literal["mean", "sum"] = "mean"
    counted: tuple[bool, ...] = ()
    inside: bool = False
    refusal: str = ""
    mixes: bool = False
    fails: bool = False
    tried: bool = False
    unlike: tuple[str, ...] = ()
    predicted: bool = False

    def divisors(self, counts: Sequence[Tensor], share: float) -> list[Tensor | None]:
        """What a part divides its means by; `counts`: of the whole batch, the counted ones."""
        given = iter(counts)
        return [next(given) * share if counted else None for counted in self.counted]


class CountedMeans(TorchFunctionMode):
    """Means over labels and masks inside are divided by `divisors` where one is given.

    `counts`: what each mean would be divided by; `labelled`: whether it is one over labels.
    """

    def __init__(self, divisors: Sequence[Tensor | None] = ()) -> None:
        super().__init__()
        self.divisors = divisors
        self.counts: list[Tensor] = []
        self.labelled: list[bool] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _LABELLED:
            given = _LABELLED[function].bind(*args, **kwargs)
            given.apply_defaults()
            if _over_labels(given.arguments):
                return self._mean(_label_count(given.arguments), True, _summed(function, given))
        elif getattr(function, "__name__", "") in _DIVISIONS and _is_scalar_mean(args, kwargs):
            return self._mean(args[1], False, lambda: args[0], lambda: function(*args))
        return function(*args, **kwargs)

    def _mean(
        self,
        count: Tensor,
        labelled: bool,
        total: Callable[[], Tensor],
        plain: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        k = len(self.counts)
        self.counts.append(count.detach().double())
        self.labelled.append(labelled)
        divisor = self.divisors[k] if k < len(self.divisors) else None
        if divisor is None and plain is not None:
            return plain()
        summed = total()
        # As precise as the mean's own kernel: the count is exact in double precision.
        return (summed / (self.counts[k] if divisor is None else divisor)).to(summed.dtype)


def _over_labels(given: dict[str, Any]) -> bool:
    """Whether a call is a mean over labels, which are whole numbers."""
    legacy = given["size_average"] is not None or given["reduce"] is not None
    return not legacy and given["reduction"] == "mean" and not given["target"].is_floating_point()


def _label_count(given: dict[str, Any]) -> Tensor:
    """Labels that are not ignored, by the weights of their classes."""
    kept: Tensor = given["target"] != given["ignore_index"]
    if given["weight"] is None:
        return kept.sum()
    weights = given["weight"].double()[torch.where(kept, given["target"], 0)]
    return torch.where(kept, weights, 0.0).sum()


def _summed(function: Any, given: inspect.BoundArguments) -> Callable[[], Tensor]:
    """The same call as a sum; of half precision in single precision, whose range is larger."""

    def total() -> Tensor:
        values: Any = {**given.arguments, "reduction": "sum"}
        scores = values["input"]
        if scores.dtype.itemsize == 2:
            values["input"] = scores.float()
            if values["weight"] is not None:
                values["weight"] = values["weight"].float()
            return function(**values).to(scores.dtype)  # type: ignore[no-any-return]
        return function(**values)  # type: ignore[no-any-return]

    return total


def _is_scalar_mean(args: Any, kwargs: Any) -> bool:
    """Whether a number of the batch is divided by another that no gradient goes through."""
    if kwargs or len(args) != 2 or not all(isinstance(x, Tensor) and x.dim() == 0 for x in args):
        return False
    return bool(args[0].is_floating_point() and not args[1].requires_grad)


def whole_counts(
    split: LossSplit, loss_fn: Any, outputs: Any, targets: Any, part: MicroBatch
) -> list[Tensor]:
    """What the loss of the whole batch counts, from the outputs of a part and all targets.

    Only targets count: outputs are zeros here, and a trace drops what is computed from them.
    """
    if not any(split.counted):
        return []

    def whole(output: Tensor) -> Tensor:
        if output.dim() == 0 or output.shape[0] != part.rows:
            return output.detach()
        return output.detach().new_zeros((part.batch_rows, *output.shape[1:]))

    zeros = [whole(x).requires_grad_(x.requires_grad) for x in tensors_of(outputs)]
    with CountedMeans() as means:
        loss_fn(refilled(outputs, iter(zeros)), targets)
    return [c for c, counted in zip(means.counts, split.counted, strict=True) if counted]


def split_rows(source: ModelSource) -> LossSplit:
    """How the loss is split over the micro-batches of the source's recipe.

    Raises `UnsupportedError`, which names the loss, by how much it differs, and a way out.
    """
    found, recipe = split_loss(source), source.recipe or TrainingRecipe()
    where = f"loss {loss_name(source)}, micro_batches={recipe.micro_batches}"
    if found.refusal:
        raise UnsupportedError(
            "the model mixes samples of a batch, which micro-batches would change"
            if found.mixes
            else "the loss of a batch is not made of the losses of its micro-batches",
            where=where,
            by=found.refusal,
            hint="train with micro_batches=1, or with a loss that is a mean or a sum over samples",
        )
    if found.inside and any(found.counted):
        raise UnsupportedError(
            "the model computes its loss itself, and labels that are ignored divide it",
            where=where,
            hint="compute the loss in loss_fn, from outputs and targets, or use micro_batches=1",
        )
    if found.predicted:
        raise UnsupportedError(
            "the loss is divided by a number that the model's outputs decide, which no micro-batch "
            "knows of the whole batch",
            where=where,
            hint="divide by a number of the targets or by that of the samples, or use "
            "micro_batches=1",
        )
    if found.reduction != recipe.reduction and found.tried:
        raise UnsupportedError(
            f"the loss is a {found.reduction} over samples",
            where=where,
            by=f"reduction={recipe.reduction!r}",
            hint=f"TrainingRecipe(..., reduction={found.reduction!r})",
        )
    return found


def split_loss(source: ModelSource) -> LossSplit:
    """How the loss of a model is split, tried on rows of the example.

    Where nothing can be tried (a model without data, one that draws random numbers by itself, a
    batch of one row) parts count by their rows.
    """
    for training in (True, False):
        with _still(source, training=training):
            tried = _Comparison(source)
            found = tried.verdict()
        if found is not None:
            return found
    if not tried.error or any(m.value.is_meta for each in source.members() for m in each):
        return LossSplit()
    return LossSplit(refusal=f"rows of the example make no batch: {tried.error}", fails=True)


@contextmanager
def _still(source: ModelSource, *, training: bool) -> Iterator[None]:
    """The model's mode; dropout and batch norm treat each sample by itself."""
    with (
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
        python_generators_kept(),
        torch.enable_grad(),
    ):
        warnings.simplefilter("ignore")
        with in_mode(source.model, source.loss_fn, training=training):
            for module in source.model.modules():
                if isinstance(module, STILL):
                    module.training = False
            yield


@dataclass(slots=True)
class _Evaluated:
    """A loss, its gradients, the outputs, the means that were seen, and buffers afterwards.

    `returned`: what the model returned, in its containers.
    `drew`: whether PyTorch's generator was asked for random numbers.
    """

    loss: Tensor
    gradients: list[Tensor]
    returned: Any
    outputs: list[Tensor]
    means: CountedMeans
    inside: int = 0
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    drew: bool = False


@dataclass(slots=True)
class _Comparison:
    """Two parts of some rows of the example, and these rows as a whole."""

    source: ModelSource
    rows: int = field(init=False)
    whole: _Evaluated = field(init=False)
    error: str = ""

    def __post_init__(self) -> None:
        given = tensors_of((self.source.inputs, self.source.targets))
        self.rows = next((int(x.shape[0]) for x in given if x.dim()), 0)

    @property
    def _training(self) -> tuple[TrainingRecipe, Callable[[Any, Any], Tensor]]:
        source = self.source
        return source.recipe or TrainingRecipe(), source.loss_fn or default_loss

    def verdict(self) -> LossSplit | None:
        """``None`` where the whole cannot be evaluated, or is another one each time."""
        if self.rows < 2 or _without_statistics(self.source.model):
            return LossSplit()
        tried = torch.linspace(0, self.rows - 1, min(self.rows, MOST_ROWS)).long()
        for rows in (tried, torch.arange(self.rows)):
            # Every third row first: what is padded lies together. Or in order: some are sorted.
            for taken in (torch.cat([rows[::3], rows[1::3], rows[2::3]]), rows):
                try:
                    self.whole = self._evaluated(taken)
                except Exception as error:  # capturing the model names what is wrong with it
                    self.error = f"{type(error).__name__}: {error}"[:300]
                    continue
                return self._of_parts(taken)
        return None

    def _of_parts(self, taken: Tensor) -> LossSplit | None:
        means, inside = self.whole.means, self.whole.inside > 0
        found = LossSplit("mean", tuple(means.labelled), inside)
        if self.whole.loss.is_meta:
            return found
        if self._says_nothing():
            loss = float(self.whole.loss)
            return replace(found, refusal=f"the loss of the example is {loss:g}, however it is cut")
        if self.whole.drew and self._is_random(taken):
            return None  # so are its parts
        parts, reasons = torch.split(taken, _sizes(len(taken))), list[str]()
        mixes = fails = True
        for reduction in ("mean", "sum"):
            shares = [len(p) / len(taken) if reduction == "mean" else 1.0 for p in parts]
            try:
                counted, made = self._made(parts, shares)
                fails = False
                reason = self._difference(made, shares)
                mixes = self._outputs_differ(made)
            except _OddDivisorError as error:
                counted, reason, mixes, fails = found.counted, str(error), False, False
            except Exception as error:
                counted, reason = found.counted, f"{type(error).__name__} on a part: {error}"[:300]
            if not reason:
                chance = self._uncounted(taken, counted)
                chance = chance or self._by_chance(taken, parts, shares, counted, made)
                if not chance:
                    found = LossSplit(reduction, counted, inside, tried=True)
                    predicted = self._is_predicted(taken, found)
                    return replace(found, unlike=self._unlike(made), predicted=predicted)
            reasons.insert(0 if not reason else len(reasons), reason or chance)
        if self._is_random(taken):
            return None
        return LossSplit("mean", found.counted, inside, reasons[0], mixes, fails)

    def _unlike(self, parts: Sequence[_Evaluated]) -> tuple[str, ...]:
        """Names of the buffers that parts leave behind otherwise than the whole does."""
        every = self.whole.buffers.items()
        return tuple(
            name
            for name, value in every
            if not all(torch.allclose(value, p.buffers[name], equal_nan=True) for p in parts)
        )

    def _says_nothing(self) -> bool:
        """Whether the loss is no number, or zero with all its gradients: any cut would fit."""
        found = (self.whole.loss, *self.whole.gradients)
        return not bool(self.whole.loss.isfinite()) or not any(bool(x.any()) for x in found)

    def _by_chance(
        self,
        taken: Tensor,
        parts: Sequence[Tensor],
        shares: Sequence[float],
        counted: tuple[bool, ...],
        made: Sequence[_Evaluated],
    ) -> str:
        """Why a way to split fits the example by chance; empty where it fits other values, too.

        A mask of zeros hides a sum, equal lengths a division by the longest, a batch without
        ignored labels or padding a division by how many are left, and a limit that no loss of the
        example reaches what is done behind it.
        """
        source, first = self.source, parts[0].tolist()
        known = [(taken, self.whole), *zip(parts, made, strict=True)]
        tried = []
        if any(map(_can_vary, tensors_of(source.targets))):
            other = _Comparison(replace(source, targets=_varied(source.targets)))
            tried.append(("other targets", other._evaluated))
        inputs = _filled(source.inputs, self.rows, first, None)
        if inputs is not source.inputs:
            other = _Comparison(replace(source, inputs=inputs))
            tried.append(("padding", partial(other._evaluated, differentiated=False)))
        for label in LABELS:
            targets = _filled(source.targets, self.rows, first, label)
            if targets is not source.targets and not self.whole.inside:
                tried.append((f"labels of {label}", partial(self._of_labels, known, targets)))
        absent = _with_nan(source.targets, self.rows, first)
        if absent is not source.targets and not self.whole.inside:
            tried.append(("targets that are nan", partial(self._of_labels, known, absent)))
        for factor in FACTORS:
            inputs = _scaled(source.inputs, self.rows, first, factor)
            if inputs is not source.inputs:
                other = _Comparison(replace(source, inputs=inputs))
                evaluate = partial(other._evaluated, differentiated=False)
                tried.append((f"inputs {factor:g} times as large", evaluate))
        for outputs in self._other_outputs(taken, parts):
            evaluate = partial(self._of_outputs, known, outputs)
            tried.append(("outputs of other sizes", evaluate))
        for what, evaluated in tried:
            if reason := self._otherwise(evaluated, taken, parts, shares, counted):
                return f"with {what} in the batch, {reason}"
        return ""

    def _otherwise(
        self,
        evaluated: Callable[..., _Evaluated],
        taken: Tensor,
        parts: Sequence[Tensor],
        shares: Sequence[float],
        counted: tuple[bool, ...],
    ) -> str:
        """How parts of another example differ from it as a whole, split as this one was."""
        other = _Comparison(self.source)
        try:
            other.whole = evaluated(taken)
            if other._says_nothing():
                return ""
            given = [c for c, own in zip(other.whole.means.counts, counted, strict=True) if own]
            split = LossSplit(counted=counted)
            made = [
                evaluated(part, split.divisors(given, share))
                for part, share in zip(parts, shares, strict=True)
            ]
        except Exception:  # values that the loss does not take
            return ""
        return other._difference(made, shares)

    def _of_labels(
        self,
        known: Sequence[tuple[Tensor, _Evaluated]],
        targets: Any,
        taken: Tensor,
        divisors: Sequence[Tensor | None] = (),
    ) -> _Evaluated:
        """The loss of outputs that are known, those of the rows `taken`, with other targets."""
        recipe, loss_fn = self._training
        before = next(own for rows, own in known if rows is taken)
        torch.manual_seed(0)
        with recipe.casting(), CountedMeans(divisors) as means:
            loss = loss_fn(before.returned, self._rows(targets, taken))
        return replace(before, loss=loss.detach(), gradients=[], means=means)

    def _of_outputs(
        self,
        known: Sequence[tuple[Tensor, _Evaluated]],
        outputs: Sequence[Tensor],
        taken: Tensor,
        divisors: Sequence[Tensor | None] = (),
    ) -> _Evaluated:
        """The loss of other outputs, those of the rows `taken`; others stay as they are known."""
        recipe, loss_fn = self._training
        before = next(own for rows, own in known if rows is taken)
        whole = known[0][0]
        at = [whole.tolist().index(row) for row in taken.tolist()]
        given = (
            new[at] if _of_rows(old, len(taken)) else old
            for old, new in zip(before.outputs, outputs, strict=True)
        )
        torch.manual_seed(0)
        with torch.no_grad(), recipe.casting(), CountedMeans(divisors) as means:
            targets = self._rows(self.source.targets, taken)
            loss = loss_fn(refilled(before.returned, given), targets)
        return replace(before, loss=loss.detach(), gradients=[], means=means)

    def _other_outputs(self, taken: Tensor, parts: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Outputs whose loss is large in the first part and small in the other, of many sizes."""
        own, targets = self.whole.outputs, self._rows(self.source.targets, taken)
        if self.whole.inside or not any(_of_rows(x, len(taken)) for x in own):
            return
        signs = torch.where(torch.arange(len(taken)) < len(parts[0]), 1.0, -1.0)
        large = sum(x.numel() for x in own) > MOST_NUMBERS
        uphill = self._uphill(targets, len(taken))
        drawn = torch.Generator().manual_seed(0)
        for size in SIZES[::2] if large else SIZES:
            yield [
                _within(x, x + size * _by_row(signs, x) * g) if g is not None else x
                for x, g in zip(own, uphill, strict=True)
            ]
            if large:
                continue
            like = [y for y in tensors_of(targets) if y.is_floating_point()]
            scale = torch.where(signs > 0, size, size / 30)
            yield [
                _within(x, _base(x, like) + _by_row(scale, x) * _normal(x, drawn))
                if _of_rows(x, len(taken))
                else x
                for x in own
            ]

    def _uphill(self, targets: Any, rows: int) -> list[Tensor | None]:
        """Directions in which the loss of each row grows; ``None`` for what is not of rows."""
        recipe, loss_fn = self._training
        given = [x.clone().requires_grad_() if _of_rows(x, rows) else x for x in self.whole.outputs]
        leaves = [x for x in given if x.requires_grad]
        made: Sequence[Tensor | None] = [None] * len(leaves)
        # Where the loss changes outputs in place, say.
        with suppress(Exception), torch.enable_grad(), recipe.casting():
            loss = loss_fn(refilled(self.whole.returned, iter(given)), targets)
            made = torch.autograd.grad(loss, leaves, allow_unused=True)
        found = iter(made)
        return [_unit(next(found)) if x.requires_grad else None for x in given]

    def _is_predicted(self, taken: Tensor, split: LossSplit) -> bool:
        """Whether other outputs of the model, as the zeros of `whole_counts`, count otherwise."""
        if split.inside or not any(split.counted):
            return False
        own, outputs = self.whole.means.counts, self.whole.returned
        targets, drawn = self._rows(self.source.targets, taken), torch.Generator().manual_seed(0)
        for scale in (None, 1.0, 100.0):

            def other(value: Tensor, scale: float | None = scale) -> Tensor:
                if scale is None or not value.is_floating_point():
                    return torch.zeros_like(value)
                return value + scale * torch.randn(value.shape, generator=drawn).to(value)

            try:
                with CountedMeans() as found:
                    loss_fn = self.source.loss_fn or default_loss
                    loss_fn(refilled(outputs, map(other, tensors_of(outputs))), targets)
            except Exception:  # values that the loss does not take
                continue
            pairs = zip(found.counts, own, split.counted, strict=True)
            if not all(math.isclose(a, b, rel_tol=1e-6) for a, b, counted in pairs if counted):
                return True
        return False

    def _uncounted(self, taken: Tensor, counted: tuple[bool, ...]) -> str:
        """Why a divisor that is the same for all parts is no constant; empty where it is one."""
        for row in taken[: ROWS_ALONE if not all(counted) else 0]:
            try:
                own = self._evaluated(row[None]).means.counts
            except Exception:  # a row alone may be no batch
                return ""
            for alone, whole, adds_up in zip(own, self.whole.means.counts, counted, strict=False):
                if not adds_up and not math.isclose(alone, whole, rel_tol=1e-6):
                    return (
                        f"the loss is divided by {float(whole):.6g}, of one row by "
                        f"{float(alone):.6g}"
                    )
        return ""

    def _made(
        self, parts: Sequence[Tensor], shares: Sequence[float]
    ) -> tuple[tuple[bool, ...], list[_Evaluated]]:
        """The parts; what is counted is what adds up over them."""
        means = self.whole.means
        counted = (True,) * len(means.counts)
        for _ in range(2):
            split = LossSplit(counted=counted)
            given = [c for c, own in zip(means.counts, counted, strict=True) if own]
            made = [
                self._evaluated(part, split.divisors(given, share))
                for part, share in zip(parts, shares, strict=True)
            ]
            own = [list(map(float, m.means.counts)) for m in made]
            adds_up = tuple(
                labelled or _adds_up(float(whole), [counts[k] for counts in own])
                for k, (labelled, whole) in enumerate(
                    zip(means.labelled, means.counts, strict=True)
                )
            )
            if adds_up == counted:
                break
            counted = adds_up
        return counted, made

    def _difference(self, parts: Sequence[_Evaluated], shares: Sequence[float]) -> str:
        """By how much the parts differ from the whole; empty where only by rounding."""
        whole, most = self.whole, self._tolerance()
        losses = [float(p.loss) * share for p, share in zip(parts, shares, strict=True)]
        expected = float(whole.loss)
        if not abs(sum(losses) - expected) <= most * max(abs(expected), *map(abs, losses)):
            return f"parts of the batch add up to {sum(losses):.6g}, the whole is {expected:.6g}"
        largest = max((float(g.abs().max()) for g in whole.gradients if g.numel()), default=0.0)
        for k, gradient in enumerate(whole.gradients):
            added = sum(p.gradients[k] * share for p, share in zip(parts, shares, strict=True))
            off = float((added - gradient).abs().max()) if gradient.numel() else 0.0
            if not off <= most * largest:
                return f"gradients of parts differ by {off / largest:.2g} of the largest one"
        return ""

    def _tolerance(self) -> float:
        """Far above rounding in the least precise numbers, and below what chance makes of parts."""
        recipe = self.source.recipe or TrainingRecipe()
        floating = [x.dtype for x in (*self.whole.gradients, self.whole.loss, *self.whole.outputs)]
        used = [d for d in (*floating, recipe.autocast_dtype) if d is not None]
        least = max(torch.finfo(d).eps for d in used if d.is_floating_point)
        return float(least ** (2 / 3))

    def _outputs_differ(self, parts: Sequence[_Evaluated]) -> bool:
        """Whether the model's outputs for parts are other rows than those for the whole."""
        for whole, *own in zip(self.whole.outputs, *(p.outputs for p in parts), strict=True):
            if any(x.dim() == 0 for x in own) or torch.cat(own).shape != whole.shape:
                return True
            off = (torch.cat(own).double() - whole.double()).abs().max()
            if not off <= self._tolerance() * whole.double().abs().max():
                return True
        return False

    def _is_random(self, taken: Tensor) -> bool:
        """Whether other random numbers make another whole."""
        again = self._evaluated(taken, seed=1, differentiated=False)
        # Not of the loss alone: the squares of what is normalised add up to the same.
        these, those = ((x.loss, *x.outputs) for x in (again, self.whole))
        pairs = zip(these, those, strict=False)
        return len(these) != len(those) or not all(
            a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
            for a, b in pairs
        )

    def _evaluated(
        self,
        taken: Tensor,
        divisors: Sequence[Tensor | None] = (),
        *,
        seed: int = 0,
        differentiated: bool = True,
    ) -> _Evaluated:
        source, noted = self.source, list[Any]()
        model, loss_fn = source.model, source.loss_fn or default_loss
        recipe = source.recipe or TrainingRecipe()

        def then(outputs: Any, targets: Any) -> Tensor:
            own = [x.detach() for x in tensors_of(outputs)]
            noted.extend([refilled(outputs, iter(own)), own, len(means.counts)])
            loss: Tensor = loss_fn(outputs, targets)
            return loss

        parameters, buffers = source.members()
        trained = [m.value for m in parameters if m.value.requires_grad]
        copies = {m.path: m.value.detach().clone() for m in buffers}
        batch = source.arguments, source.targets
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        with recipe.casting(), CountedMeans(divisors) as means:
            whole = ModelAndLoss(model, loss_fn, then)
            loss = torch.func.functional_call(whole, copies, tuple(self._rows(batch, taken)))
        drew = not torch.equal(before, torch.get_rng_state())
        found = torch.autograd.grad(loss, trained, allow_unused=True) if differentiated else ()
        gradients = [
            torch.zeros(()) if g is None else g.detach()
            for g in found
            if g is None or not g.is_sparse
        ]
        returned, outputs, inside = noted
        return _Evaluated(loss.detach(), gradients, returned, outputs, means, inside, copies, drew)

    def _rows(self, tree: Any, taken: Tensor) -> Any:
        own = [
            x.detach()[taken.to(x.device)] if x.dim() and x.shape[0] == self.rows else x
            for x in tensors_of(tree)
        ]
        return refilled(tree, iter(own))


def _sizes(rows: int) -> list[int]:
    """Two unequal parts where there are enough rows."""
    first = -(-rows // 3) if rows > 2 else 1
    return [first, rows - first]


LABELS = (-100, -1, 255, 0)
"""Classes that losses ignore, and one that an example may lack."""


class _OddDivisorError(ValueError):
    """A divisor that neither adds up over parts nor is the same for all."""


def _can_vary(value: Tensor) -> bool:
    """Whether `_varied` makes another one of it."""
    return value.is_floating_point() or value.dtype is torch.bool


def _varied(targets: Any) -> Any:
    """Targets with other numbers between 0 and 1, and other masks; labels stay as they are."""
    drawn = torch.Generator().manual_seed(0)

    def other(value: Tensor) -> Tensor:
        if not _can_vary(value):
            return value
        random = torch.rand(value.shape, generator=drawn).to(value.device)
        return random > 0.5 if value.dtype is torch.bool else random.to(value.dtype)

    return refilled(targets, map(other, tensors_of(targets)))


def _filled(tree: Any, rows: int, first: Sequence[int], label: int | None) -> Any:
    """The same with zeros in masks of ones, and with some labels replaced; itself if it has none.

    More of them in the rows `first` than in the others; every row keeps its first number, and
    where it has only one, one row in two.
    """
    drawn, often = torch.Generator().manual_seed(0), torch.zeros(rows, dtype=torch.bool)
    often[list(first)] = True

    def other(value: Tensor) -> Tensor:
        whole = not (value.is_floating_point() or value.is_complex()) and value.dtype != torch.bool
        mask = _is_mask(value)
        if value.dim() == 0 or len(value) != rows or not (mask or (whole and label is not None)):
            return value
        share = torch.where(often, 0.75, 0.25).reshape(rows, *[1] * (value.dim() - 1))
        changed = torch.rand(value.shape, generator=drawn) < share
        kept = changed[::2] if value.dim() == 1 else changed[:, 0]
        kept[...] = False
        filling = 0 if mask or label is None else label
        return value.masked_fill(changed.to(value.device), filling)

    return _with_leaves(tree, other)


SIZES = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""By which outputs are moved, for what a loss does beyond a limit that the example keeps to."""

FACTORS = (0.01, 100.0)
"""By which inputs of a part are multiplied, for limits inside the model."""

MOST_NUMBERS = 1 << 23
"""Of outputs for which every size is tried."""


def _of_rows(value: Tensor, rows: int) -> bool:
    return value.is_floating_point() and value.numel() > 0 and value.shape[:1] == (rows,)


def _by_row(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1)).to(like)


def _unit(gradient: Tensor | None) -> Tensor | None:
    """Each row divided by its largest number."""
    if gradient is None:
        return None
    largest = gradient.abs().flatten(1).amax(1) if gradient.dim() > 1 else gradient.abs()
    return torch.nan_to_num(gradient / _by_row(largest.clamp(min=1e-30), gradient))


def _within(before: Tensor, value: Tensor) -> Tensor:
    """Probabilities remain some."""
    if bool(((before >= 0) & (before <= 1)).all()):
        return value.clamp(1e-6, 1 - 1e-6)
    return value


def _base(output: Tensor, targets: Sequence[Tensor]) -> Tensor:
    """Targets of the same shape, where the loss is small, or zeros."""
    same = (y.to(output) for y in targets if y.shape == output.shape)
    return next(same, torch.zeros_like(output))


def _normal(like: Tensor, drawn: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=drawn).to(like)


def _scaled(tree: Any, rows: int, first: Sequence[int], factor: float) -> Any:
    """The same with real numbers of the rows `first` multiplied; itself if it has none."""
    scale = torch.ones(rows)
    scale[list(first)] = factor

    def other(value: Tensor) -> Tensor:
        real = _of_rows(value, rows) and not _is_mask(value)
        return value.detach() * _by_row(scale, value) if real else value

    return _with_leaves(tree, other)


def _with_nan(tree: Any, rows: int, first: Sequence[int]) -> Any:
    """The same with missing numbers, more of them in the rows `first`; itself without real ones."""
    drawn = torch.Generator().manual_seed(0)
    share = torch.full((rows,), 0.25)
    share[list(first)] = 0.75

    def other(value: Tensor) -> Tensor:
        if not _of_rows(value, rows):
            return value
        lost = torch.rand(value.shape, generator=drawn) < _by_row(share, value).cpu()
        return value.detach().masked_fill(lost.to(value.device), math.nan)

    return _with_leaves(tree, other)


def _with_leaves(tree: Any, other: Callable[[Tensor], Tensor]) -> Any:
    """The containers with other tensors; themselves where all are the same."""
    leaves = tensors_of(tree)
    made = [other(leaf) for leaf in leaves]
    if all(a is b for a, b in zip(made, leaves, strict=True)):
        return tree
    return refilled(tree, iter(made))


def _is_mask(value: Tensor) -> bool:
    """Whether it is all ones: a mask of an example without padding."""
    return not value.is_complex() and value.numel() > 0 and bool((value == 1).all())


def _adds_up(whole: float, parts: Sequence[float]) -> bool:
    """Whether a divisor counts something of the batch; not one that is the same for every part.

    Raises `_OddDivisorError` where it is neither: no weights make up for it.
    """
    if all(math.isclose(part, whole, rel_tol=1e-6) for part in parts):
        return False
    if math.isclose(sum(parts), whole, rel_tol=1e-6):
        return True
    raise _OddDivisorError(
        f"the loss is divided by {whole:.6g}, of its parts by {' and '.join(map(repr, parts))}"
    )


def _without_statistics(model: nn.Module) -> bool:
    """Whether a batch norm has no statistics but those of its batch."""
    norms = (m for m in model.modules() if isinstance(m, _BatchNorm))
    return any(norm.running_mean is None for norm in norms)


def loss_name(source: ModelSource) -> str:
    """What a user calls the loss."""
    loss_fn = source.loss_fn or default_loss
    return getattr(loss_fn, "__name__", type(loss_fn).__name__)
