"""How often the variants of a family are right, measured on labelled rows instead of stated.

A file of rows is an ``.npz`` of NumPy: an array for each input of the family, rows along its first
dimension, and one of labels. Strings are arrays of text; none of it is unpickled. Rows of unlike
lengths are several files. Each row is computed by itself, as a request of one row would be.
"""

from __future__ import annotations

import io
import math
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from placewright.errors import InputError, UnknownNameError
from placewright.io.boundary import read_bytes
from placewright.io.stored import read_data, stored_text, write_file
from placewright.requests.serving.families import Family, Variant
from placewright.requests.serving.models import ServedModel, open_model, reason
from placewright.requests.serving.tensors import Array, TensorSpec, served_array
from placewright.web.refusals import Refusal

LABELS = "labels"
"""Name of the array of labels."""

MOST_BYTES = 4 << 30
"""Of a file of rows, unpacked."""

Row = tuple[Array, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LabelledRows:
    """Inputs by row, and what is right; no label where only the inputs are wanted."""

    rows: Sequence[Row]
    labels: Array | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """Which answers are right.

    Attributes
    ----------
    output
        That is compared with the labels; empty: the only one.
    top
        Of scores of classes: whether the label is among so many of the largest.
    tolerance
        Of numbers that are no classes: the largest difference; 0.5 tells whether a probability is
        on the right side.
    """

    output: str = ""
    top: int = 1
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class VariantAccuracy:
    """What was measured of a variant.

    Attributes
    ----------
    stated
        In the family's file.
    right, rows, failed
        Rows in all, those answered rightly, and those that the model did not compute, which count
        as wrong.
    """

    name: str
    version: int
    stated: float
    right: int
    rows: int
    failed: int = 0
    why: str = ""

    @property
    def measured(self) -> float:
        """Share of right answers."""
        return self.right / self.rows

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share on rows like these, after Wilson (doi 10.2307/2276774)."""
        z, n, p = 1.96, self.rows, self.measured
        middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)

    def as_json(self) -> dict[str, Any]:
        """For ``-f json``."""
        low, high = self.interval
        counts = {"right": self.right, "rows": self.rows, "failed": self.failed}
        shares = {"stated": self.stated, "measured": self.measured, "interval": [low, high]}
        return {"variant": self.name, "version": self.version, **shares, **counts, "why": self.why}


def read_rows(path: str | Path, family: Family, labels: str | None = LABELS) -> LabelledRows:
    """The rows of a file, as the family takes them.

    Raises `InputError`: it is no such file, lacks an input or the labels, or their sizes differ.
    """
    arrays = _arrays(path)
    wanted = [spec.name for spec in family.inputs] + ([labels] if labels is not None else [])
    for name in wanted:
        if name not in arrays:
            raise UnknownNameError("array", name, arrays, where=str(path))
    counts = {name: len(arrays[name]) if arrays[name].ndim else 0 for name in wanted}
    if len(set(counts.values())) > 1 or not min(counts.values()):
        raise InputError(
            "its arrays have unequal numbers of rows, or none",
            where=str(path),
            by=", ".join(f"{name}: {count}" for name, count in counts.items()),
            hint="give each input and the labels one entry per row along the first dimension",
        )
    columns = [_of_kind(arrays[spec.name], spec, str(path)) for spec in family.inputs]
    whole = family.layout.whole
    rows = [
        tuple(column[k] if whole else column[k : k + 1] for column in columns)
        for k in range(counts[wanted[0]])
    ]
    return LabelledRows(rows, None if labels is None else arrays[labels])


def _arrays(path: str | Path) -> dict[str, Array]:
    """Those of an ``.npz``, which may be anybody's."""
    hint = "write it with numpy.savez(file, NAME=array, labels=array); text as arrays of strings"
    file = io.BytesIO(read_bytes(path, MOST_BYTES))
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(each.file_size for each in archive.infolist())
            if size > MOST_BYTES:
                by = f"{size} bytes, at most {MOST_BYTES}"
                raise InputError("is too large", where=str(path), by=by, hint="give fewer rows")
        file.seek(0)
        with np.load(file, allow_pickle=False) as found:
            return {name: np.asarray(found[name]) for name in found.files}
    except InputError:
        raise
    except Exception as error:  # whatever NumPy, zlib and the reader of archives raise
        by = f"{type(error).__name__}: {error}"[:200]
        raise InputError("is no file of arrays", where=str(path), by=by, hint=hint) from None


def _of_kind(value: Array, spec: TensorSpec, where: str) -> Array:
    """An input's rows in its datatype, if nothing is lost."""
    if spec.datatype == "BYTES":
        return served_array(value)
    with np.errstate(all="ignore"):
        made = value.astype(spec.dtype) if value.dtype.kind in "biuf" else value
    fits = made.dtype == spec.dtype and (
        np.array_equal(np.isfinite(made), np.isfinite(value))
        if value.dtype.kind == "f"
        else np.array_equal(made.astype(value.dtype), value)
    )
    if not fits or (value.dtype.kind == "f" and spec.dtype.kind != "f"):
        raise InputError(
            f"input {spec.name!r} has another datatype",
            where=where,
            by=f"{value.dtype}, the models take {spec.datatype}",
            hint="convert it before it is saved",
        )
    return made


def evaluate(
    family: Family,
    data: LabelledRows,
    measure: Measure = Measure(),
    note: Callable[[str], None] = lambda text: None,
) -> list[VariantAccuracy]:
    """Compute every row by every variant, and compare the answers with the labels.

    Ctrl-C keeps the variants that are done.

    Raises
    ------
    InputError
        The labels do not go with the output, or no row is computed.
    """
    spec, labels = _scored(family, measure), data.labels
    assert labels is not None
    right = _comparison(spec, labels, measure)
    found: list[VariantAccuracy] = []
    try:
        with redirect_stdout(sys.stderr):  # whatever models print
            # One by one: those before an interrupt are kept.
            found.extend(
                _evaluated(family, each, data, spec, right, note) for each in family.variants
            )
    except KeyboardInterrupt:
        if not found:
            raise
    return found


def _evaluated(
    family: Family,
    variant: Variant,
    data: LabelledRows,
    spec: TensorSpec,
    right: Callable[[Array, Any], bool],
    note: Callable[[str], None],
) -> VariantAccuracy:
    """One variant on all rows."""
    assert data.labels is not None
    place, count = family.outputs.index(spec), len(data.rows)
    hits, failed, why = 0, 0, ""
    for k, answer in enumerate(_answers(family, variant, data.rows)):
        note(f"{variant.name}: {k + 1} of {count} rows")
        if isinstance(answer, str):
            failed, why = failed + 1, why or answer
        else:
            hits += right(answer[place], data.labels[k])
    if failed == count:
        where = f"variants.{variant.name}"
        raise InputError("computes none of the rows", where=where, by=why[:300])
    return VariantAccuracy(
        variant.name, variant.version, variant.accuracy, hits, count, failed, why
    )


def _answers(family: Family, variant: Variant, rows: Sequence[Row]) -> Iterator[list[Array] | str]:
    """The outputs of each row, or why there are none."""
    names = tuple(spec.name for spec in family.outputs)
    served = ServedModel(variant.kind, variant.model, names)
    model = open_model(served, f"variants.{variant.name}")
    for row in rows:
        try:
            sizes = family.sizes_of(row)
            own = replace(family, bucket=family.bucket_of(sizes))
            given = own.padded(row) if own.layout.pads else row
            # In memory of its own: a model may change it, and others get these rows, too.
            inputs = {name: value.copy() for name, value in own.stacked([given]).items()}
            outputs = [np.asarray(x) for x in model.run(None, inputs)]
        except Refusal as refusal:
            yield refusal.reason
            continue
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a model raises, `sys.exit` too
            yield reason(error)
            continue
        if wrong := own.wrong_outputs(outputs, 1):
            yield wrong
        else:
            yield own.cut(own.outputs_of(outputs, 0), sizes if own.layout.pads else {})


def _scored(family: Family, measure: Measure) -> TensorSpec:
    """The output that labels are compared with."""
    names = [spec.name for spec in family.outputs]
    if measure.output and measure.output not in names:
        raise UnknownNameError("output", measure.output, names, where=f"family {family.name}")
    if not measure.output and len(names) > 1:
        raise InputError(
            "the models have several outputs",
            where=f"family {family.name}",
            by=", ".join(names),
            hint="say which one the labels are of: --answer NAME",
        )
    return family.outputs[names.index(measure.output or names[0])]


def _comparison(spec: TensorSpec, labels: Array, measure: Measure) -> Callable[[Array, Any], bool]:
    """Whether an output of a row is right, by what labels and outputs are."""
    kinds = (
        f"labels are {labels.dtype} of shape {list(labels.shape)}, the output {spec.datatype} "
        f"of shape {list(spec.shape)}"
    )
    classes = spec.dtype.kind == "f" and labels.dtype.kind in "iub" and labels.ndim == 1
    classes = classes and spec.shape[1:] not in ((), (1,))
    if measure.top > 1 and (measure.tolerance is not None or not classes):
        by = kinds if measure.tolerance is None else f"beside --tolerance {measure.tolerance:g}"
        what, hint = "is for whole numbers of classes and their scores", "leave one of them out"
        raise InputError(what, where=f"--top {measure.top}", by=by, hint=hint)
    sizes = spec.shape[1:]
    several = labels.ndim == 1 and min(sizes, default=0) > 0 and math.prod(sizes) > 1
    numbers = spec.datatype != "BYTES" and labels.dtype.kind in "iufb"
    if measure.tolerance is not None and (several or not numbers):
        raise InputError(
            "is between numbers, of which a label has as many as the output",
            where="--tolerance",
            by=kinds,
            hint="leave it out for classes and texts, or give labels like the output",
        )
    if measure.tolerance is not None:
        most = measure.tolerance

        def near(output: Array, label: Any) -> bool:
            apart = np.abs(_flat(output, label) - np.asarray(label, float).reshape(-1))
            return bool((apart <= most).all())

        return near
    if classes:

        def among(output: Array, label: Any) -> bool:
            scores = output.reshape(-1)
            if not 0 <= int(label) < len(scores) or np.isnan(scores).any():
                return False
            # Of equal scores the first one is the answer, as argmax says.
            ahead = scores > scores[int(label)]
            ties = scores[: int(label)] == scores[int(label)]
            return int(ahead.sum() + ties.sum()) < measure.top

        return among
    if spec.dtype.kind != "f":

        def same(output: Array, label: Any) -> bool:
            mine = [_plain(each) for each in output.reshape(-1)]
            return mine == [_plain(each) for each in np.asarray(label).reshape(-1)]

        return same
    raise InputError(
        "labels and output cannot be compared",
        where=f"output {spec.name!r}",
        by=kinds,
        hint="give whole numbers of classes for scores of classes, labels like the output, or "
        "--tolerance: 0.5 for a probability",
    )


def _flat(output: Array, label: Any) -> Array:
    """An output of as many numbers as its label, NaN where they are not as many."""
    found = output.astype(float).reshape(-1)
    return found if found.size == np.size(label) else np.full(np.size(label), math.nan)


def _plain(value: Any) -> Any:
    """A label that can be compared: bytes as text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def state_accuracies(path: str | Path, found: Sequence[VariantAccuracy]) -> Path:
    """Write what was measured into a family's file, which otherwise stays as it is.

    Raises `InputError`: it is no file of this family.
    """
    read_data(path)  # what is no such file is refused with its line
    text, changes = stored_text(path), dict[tuple[int, int], str]()
    variants = _entry(yaml.compose(text, Loader=yaml.SafeLoader), "variants")
    for each in found:
        node = _entry(_entry(variants, each.name), "accuracy")
        if node is None or (place := (node.start_mark.index, node.end_mark.index)) in changes:
            raise InputError(
                "does not state the accuracy of each variant by itself",
                where=f"{path}: variants.{each.name}",
                by=f"measured {each.measured:.4f}",
                hint="write accuracy: there, without an anchor of YAML",
            )
        changes[place] = f"{each.measured:.4f}"
    for (start, end), value in sorted(changes.items(), reverse=True):
        text = text[:start] + value + text[end:]
    return write_file(path, text)


def _entry(node: Any, name: str) -> Any:
    """The value of a key of a mapping in YAML; ``None``: there is none."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)


def accuracy_table(found: Sequence[VariantAccuracy]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Head and rows, for the terminal."""
    head = ("variant", "stated", "measured", "95 % interval", "right", "rows", "not computed")
    rows = list[Sequence[str]]()
    for each in found:
        low, high = each.interval
        name = each.name if each.version == 1 else f"{each.name}, version {each.version}"
        shares = f"{each.stated:.4f}", f"{each.measured:.4f}", f"{low:.4f} to {high:.4f}"
        rows.append((name, *shares, f"{each.right}", f"{each.rows}", f"{each.failed}"))
    return head, rows
