"""The samples of a data set, or of a folder of files, as batches and as arrays of single samples.

A `collate` function of the user's may pad samples of unlike shapes, a text to the longest of its
batch. Nodes train parts of a batch with calls of fixed shapes, so that every sample is padded to
the largest shape of all: it is collated beside the samples that have it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_structure
from torch.utils.data import default_collate

from placewright.capturing.containers import in_order_of, leaves_of
from placewright.errors import InputError, PlacewrightError, UnknownNameError, described

Collate = Callable[[list[Any]], Any]
Shape = tuple[tuple[int, ...], Any]
"""Of a tensor of one sample: sizes and dtype."""

TAKEN_TWICE = 32
"""Samples, spread over all, that are taken twice, to see whether they are the same."""

TOGETHER = 4
"""Samples that are made a batch of, to see whether that is what each is alone."""

MOST_CHARACTERS = 300
"""Of another library's error within ours."""


class SampleSet:
    """The samples of a data set: a pair of inputs and target each.

    Parameters
    ----------
    data
        A sequence or map-style data set of pairs ``(inputs, target)``, or one pair of tensors whose
        rows are the samples. Inputs may be nested, as ``torch.utils.data.default_collate`` takes
        them.
    where
        What errors name.
    collate
        Makes a batch of a list of samples, as of a ``DataLoader``; ``default_collate`` without it.
        It must return a pair of inputs and targets whose tensors have a row for each sample.
    """

    def __init__(self, data: Any, where: str, collate: Collate | None = None) -> None:
        rows = isinstance(data, tuple) and len(data) == 2 and all(map(_is_batch, data))
        if rows:
            sizes = {len(leaf) for leaf in tree_leaves(data)}
            if len(sizes) > 1:
                raise InputError(
                    "inputs and targets differ in their number of rows",
                    where=where,
                    by=", ".join(map(str, sorted(sizes))),
                )
        elif isinstance(data, str | bytes) or not _is_numbered(data):
            raise InputError(
                "samples have no length, or cannot be taken by number",
                where=where,
                by=f"got {type(data).__name__}",
                hint="give a map-style data set of pairs (inputs, target), or two tensors",
            )
        self._data, self._rows, self.where, self.collate = data, rows, where, collate
        self._beside: list[Any] = []
        self._shapes: tuple[Shape, ...] = ()
        self._narrowest = 0
        self._like: tuple[Any, Any] | None = None

    def __len__(self) -> int:
        return len(tree_leaves(self._data)[0]) if self._rows else len(self._data)

    def __getitem__(self, k: int) -> tuple[Any, Any]:
        if self._rows:
            inputs, target = tree_map(lambda x: x[k], self._data)
            return inputs, target
        try:
            found = self._data[k]
        except PlacewrightError:
            raise
        except Exception as error:  # whatever the user's code raises
            raise InputError(
                f"a sample cannot be taken: {described(error)}"[:MOST_CHARACTERS],
                where=self.name(k),
                hint="samples are numbered from 0",
            ) from error
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(
                "a sample is no pair of inputs and target",
                where=self.name(k),
                by=f"got {type(found).__name__}",
                hint="let the data set return (inputs, target)",
            )
        return found[0], found[1]

    def name(self, k: int) -> str:
        """What errors call sample `k`: its file, where it has one."""
        named = getattr(self._data, "sample_name", None)
        return f"{self.where}, sample {k}" if named is None else str(named(k))

    def pad_alike(self, other: SampleSet | None = None) -> None:
        """Pad samples to the largest shape of all, of the `other` set too, where they are padded.

        Every sample is collated once, those without a row named.
        """
        sets = [self] if other is None else [self, other]
        if self.collate is not None and len(self):
            beside = [sample for each in sets for sample in each._largest()]
            for each in sets:
                each._beside = beside
                each._shapes = self._shapes_of(0)

    @property
    def padded(self) -> tuple[tuple[Any, Any], tuple[Any, Any]] | None:
        """The smallest sample as a batch of its own, and padded; ``None`` if none is padded."""
        if not self._beside:
            return None
        return self.rows([self._narrowest]), self._collated([self._narrowest])

    def follow(self, other: SampleSet) -> None:
        """Order the tensors of a batch as those of the `other` set, by the keys of dicts.

        Raises `InputError`: the first samples of this set, or of the other one, make no batch.
        """
        self._like = other.batch(1)
        self.batch(1)

    def demand_repeatable(self) -> None:
        """Raise `InputError` where a sample is another one when it is taken again.

        Nodes keep what the data set gives once, and every epoch sees that.
        """
        spread = np.linspace(0, len(self) - 1, min(len(self), TAKEN_TWICE)).astype(int)
        for k in [] if self._rows else spread.tolist():
            first, again = (tensors(*self._collated([k], [])) for _ in range(2))
            if not all(map(_equal, first, again)):
                raise InputError(
                    "a sample is another one each time that it is taken",
                    where=self.name(k),
                    hint="nodes keep samples as they are taken once: transform at random in the "
                    "model's forward, with numbers of torch, or not at all",
                )

    def demand_alone(self) -> None:
        """Raise `InputError` where `collate` makes another sample of one beside others.

        Nodes keep what it makes of each alone.
        """
        if self.collate is None or len(self) < 2:
            return
        last = {*range(min(len(self), TOGETHER)), len(self) - 1, self._narrowest}
        together = tensors(*self._collated(numbers := sorted(last)))
        for row, k in enumerate(numbers):
            alone = tensors(*self._collated([k]))
            if not all(_close(x[0], y[row]) for x, y in zip(alone, together, strict=True)):
                raise InputError(
                    "`collate` makes another sample of one that is in a batch with others",
                    where=self.name(k),
                    by="or it changes their order",
                    hint="keep samples in order and by themselves: normalise, mix or sort them in "
                    "the model's forward",
                )

    def rows(self, numbers: Sequence[int]) -> tuple[Any, Any]:
        """These samples as one batch, padded as `collate` does it for them alone."""
        return self._collated(numbers, [])

    def batch(self, count: int) -> tuple[Any, Any]:
        """The first samples as one batch, from the beginning again where there are fewer."""
        return self._collated([k % len(self) for k in range(count)])

    def arrays(self, k: int) -> tuple[np.ndarray[Any, Any], ...]:
        """Tensors of sample `k`, inputs first, as a batch holds them.

        Raises `InputError`: their shapes or dtypes are not those of the first sample.
        """
        at = k % len(self)
        leaves = tensors(*self._collated([at]))
        found = tuple((tuple(leaf.shape[1:]), leaf.dtype) for leaf in leaves)
        self._shapes = self._shapes or self._shapes_of(0)
        if found != self._shapes:
            raise InputError(
                "a sample has other shapes than the first one",
                where=self.name(at),
                by=f"{_written(found)}; {self.name(0)} has {_written(self._shapes)}",
                hint="give `collate`, which pads samples to one shape, or let the data set do it",
            )
        return tuple(leaf[0].detach().numpy() for leaf in leaves)

    def label(self, k: int) -> int:
        """The class of sample `k`: its target, a whole number.

        Raises `InputError`: the target is something else.
        """
        target = self[k % len(self)][1]
        number = np.asarray(target)
        if number.ndim or number.dtype.kind not in "iu":
            raise InputError(
                "the target of a sample is no class",
                where=self.name(k % len(self)),
                by=f"got {type(target).__name__} of shape {number.shape}",
                hint="classes of a nodes file are whole targets, counted from 0",
            )
        return int(number)

    def _shapes_of(self, k: int) -> tuple[Shape, ...]:
        leaves = tensors(*self._collated([k]))
        return tuple((tuple(leaf.shape[1:]), leaf.dtype) for leaf in leaves)

    def _largest(self) -> list[Any]:
        """Samples that have, each alone, the largest size of a dimension that is not the same."""
        sizes = [self._sizes(k) for k in range(len(self))]
        if not sizes:
            return []
        for k, own in enumerate(sizes):
            if len(own) != len(sizes[0]):
                raise InputError(
                    "a sample has other dimensions than the first one",
                    where=self.name(k),
                    by=f"{len(own)} in all its tensors, not {len(sizes[0])}",
                    hint="let `collate` return tensors of as many dimensions for each sample",
                )
        table = np.array(sizes, dtype=np.int64).reshape(len(sizes), -1)
        self._narrowest = int(table.sum(axis=1).argmin())
        unlike = np.flatnonzero(table.min(axis=0) < table.max(axis=0))
        return [self[k] for k in sorted({int(table[:, d].argmax()) for d in unlike})]

    def _sizes(self, k: int) -> list[int]:
        """Sizes of all dimensions of a sample's tensors, in a batch of its own."""
        return [n for leaf in tensors(*self._collated([k], [])) for n in leaf.shape[1:]]

    def _collated(self, rows: Sequence[int], beside: list[Any] | None = None) -> tuple[Any, Any]:
        """A batch of these samples, padded as if the samples `beside` were in it."""
        beside = self._beside if beside is None else beside
        samples = [self[k] for k in rows]
        try:
            made = (self.collate or default_collate)([*samples, *beside])
            inputs, targets = made
        except Exception as error:  # whatever the user's code raises
            raise self._no_batch(rows, error) from error
        _demand_rows((inputs, targets), len(rows) + len(beside), self.name(rows[0]))
        # Tensors are told apart by their order, and dicts have that in which they were filled.
        self._like = self._like or (inputs, targets)
        inputs, targets = map(in_order_of, self._like, (inputs, targets))
        if beside:
            kept = len(rows)
            inputs, targets = tree_map(lambda x: x[:kept], (inputs, targets))
        return inputs, targets

    def _no_batch(self, rows: Sequence[int], error: Exception) -> InputError:
        """The error of a batch, with the sample that it is about."""
        odd = rows[0] if len(rows) == 1 else self._odd(rows)
        hint = "samples have tensors, arrays or numbers of equal shapes; `collate` may pad others"
        if self.collate is not None:
            hint = "let `collate` return (inputs, targets) for any samples, one as well as many"
        return InputError(
            f"samples do not make a batch: {described(error)}"[:MOST_CHARACTERS],
            where=self.where if odd is None else self.name(odd),
            hint=hint,
        )

    def _odd(self, rows: Sequence[int]) -> int | None:
        """The first sample that is not like the first of these."""
        first = _outline(self[rows[0]])
        return next((k for k in rows if _outline(self[k]) != first), None)


class Files(Sequence[Any]):
    """The samples of files, which `read` returns as ``(inputs, target)`` each."""

    def __init__(self, paths: Sequence[Path], read: Callable[[Path], Any]) -> None:
        self.paths, self.read = paths, read

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, k: Any) -> Any:
        path = self.paths[k]
        if not path.stat().st_size:
            raise InputError(
                "the file is empty", where=str(path), hint="delete it, or write it again"
            )
        return self.read(path)

    def sample_name(self, k: int) -> str:
        """Its path."""
        return str(self.paths[k])


def files_in(
    folder: Path, read: Callable[[Path], Any] | None, nodes: Sequence[str] = ()
) -> Files | dict[str, Files]:
    """The files of a folder by path, or those of each node where it has folders named like them.

    Raises `InputError`: there is no folder, no file, or no `read`.
    Raises `UnknownNameError`: a folder beside those of nodes has the name of none.
    """
    # By os.path, which says no to a name that is too long for any file.
    if not os.path.isdir(folder):
        raise InputError("no such folder", where=str(folder))
    if read is None:
        raise InputError(
            "files need a function that makes samples of them",
            where=str(folder),
            hint="give read=..., which takes a path and returns (inputs, target)",
        )
    found = sorted(_files_under(folder))
    if not found:
        raise InputError("the folder has no file", where=str(folder))
    if not any((folder / name).is_dir() for name in nodes):
        return Files(found, read)
    own: dict[str, list[Path]] = {}
    for path in found:
        name = path.relative_to(folder).parts[0]
        if name not in nodes:
            raise UnknownNameError("node", name, tuple(nodes), where=str(folder))
        own.setdefault(name, []).append(path)
    return {name: Files(paths, read) for name, paths in own.items()}


def _files_under(folder: Path) -> Iterator[Path]:
    """Every file that is not hidden, also behind links to files and folders.

    Raises `InputError`: a link leads nowhere, or back to a folder that it is in.
    """
    for name, folders, files in os.walk(folder, followlinks=True):
        here = Path(name)
        folders[:] = [each for each in folders if not each.startswith(".")]
        for each in folders:
            link, real = here / each, os.path.realpath(here / each)
            if link.is_symlink() and Path(os.path.realpath(here)).is_relative_to(real):
                raise InputError("a link leads to a folder that it is in", where=str(link))
        for path in (here / each for each in files if not each.startswith(".")):
            if path.is_symlink() and not path.exists():
                hint = "delete it, or put back what it names"
                raise InputError("a link leads to no file", where=str(path), hint=hint)
            if path.is_file():
                yield path


def tensors(inputs: Any, targets: Any) -> list[Tensor]:
    """Tensors of a batch, inputs first."""
    return [leaf for _, leaf in (*leaves_of(inputs), *leaves_of(targets))]


def _demand_rows(batch: tuple[Any, Any], count: int, where: str) -> None:
    for leaf in tensors(*batch):
        if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf) != count:
            got = f"shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
            raise InputError(
                "a batch has a part without a row for each sample",
                where=where,
                by=f"got {got} for {count} sample{'s' if count > 1 else ''}",
                hint="return tensors whose first dimension is the samples, padded where needed",
            )
        if not _is_stored(leaf):
            kind = str(leaf.dtype if leaf.layout is torch.strided else leaf.layout)
            raise InputError(
                "samples of this kind cannot be stored and moved",
                where=where,
                by=kind.removeprefix("torch."),
                hint="give dense tensors of a type that NumPy has, and convert them in the model",
            )


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether two are the same but for rounding."""
    if not one.is_floating_point():
        return _equal(one, other)
    return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)


def _is_stored(leaf: Tensor) -> bool:
    """Whether nodes can keep it: as an array of NumPy."""
    try:
        leaf[:0].detach().numpy()
    except (TypeError, RuntimeError):
        return False
    return True


def _written(shapes: Sequence[Shape]) -> str:
    return ", ".join(
        f"{list(shape)} {str(dtype).removeprefix('torch.')}" for shape, dtype in shapes
    )


def _outline(sample: Any) -> Any:
    """Containers, and shapes of what is in them."""
    return tree_structure(sample), [np.shape(leaf) for leaf in tree_leaves(sample)]


def _is_numbered(data: Any) -> bool:
    """Whether it has a length and parts by number."""
    try:
        return len(data) >= 0 and hasattr(data, "__getitem__")
    except TypeError:
        return False


def _is_batch(data: Any) -> bool:
    """Whether these are tensors (nested, perhaps) whose rows are samples."""
    leaves = tree_leaves(data)
    return bool(leaves) and all(isinstance(x, Tensor) and x.dim() > 0 for x in leaves)
