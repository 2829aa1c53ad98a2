"""Families: ONNX models that answer the same requests with unequal accuracy and latency."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from placewright.capturing.files.model_file import refuse_external_data, with_external_data
from placewright.errors import InputError, MissingDependencyError, UnknownNameError
from placewright.io.boundary import FileModel, errors_in, read_bytes, validate
from placewright.io.stored import read_data
from placewright.requests.serving.models import (
    SERVE,
    demand_allowed,
    factory_model,
    file_model,
    open_session,
)
from placewright.requests.serving.tensors import NUMPY, Array, TensorSpec
from placewright.web.refusals import Refusal

_ONNX = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}

MOST_BUCKETS = 32
"""Combinations of sizes of open dimensions, each with latencies of its own."""

_WHOLE = (
    "write whole: true into the family's file: a request is then one row, computed alone, and its "
    "outputs are returned as they are"
)


class VariantModel(FileModel):
    """A variant: a file, relative to this one, or a factory; its accuracy, and its version."""

    file: str = ""
    factory: str = ""
    accuracy: float = Field(ge=0, le=1)
    version: Annotated[int, Field(ge=1)] = 1


class TensorModel(FileModel):
    """A tensor of models that do not say what they take: open dimensions are -1 or a name."""

    datatype: str
    shape: list[Annotated[int, Field(ge=-1)] | str]


class FamilyModel(FileModel):
    """A file of a family; see `FamilyLayout`."""

    name: str = Field(min_length=1)
    variants: dict[str, VariantModel] = Field(min_length=1)
    dimensions: dict[str, list[Annotated[int, Field(gt=0)]]] = Field(default_factory=dict)
    padding: bool | dict[str, int | float | str] = False
    whole: bool = False
    random: bool = False
    inputs: dict[str, TensorModel] = Field(default_factory=dict)
    outputs: dict[str, TensorModel] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FamilyLayout:
    """How rows of a family are shaped and batched.

    Attributes
    ----------
    dimensions
        Sizes that are served of each open dimension besides the batch, by the name that the models
        give it; without a name ``TENSOR.AXIS``. Rows are batched with others of the same sizes.
    padding
        Whether smaller inputs are padded at their ends to the next of these sizes, and outputs cut
        back; or the value by which each input is padded, 0 or the empty string for others.
    whole
        A request is one row and computed alone. Its outputs, of whatever shape, are returned as
        they are.
    random
        Whether the answer to a row may be another at each call, of models that draw random numbers.
    inputs, outputs
        Of models that are no ONNX files, which do not say what they take: in order.
    batch
        Rows of the only batch that these take; ``None``: any number.
    """

    dimensions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    padding: bool | Mapping[str, int | float | str] = False
    whole: bool = False
    random: bool = False
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    batch: int | None = None

    @property
    def pads(self) -> bool:
        """Whether inputs may be padded."""
        return self.padding is not False

    def fill(self, name: str) -> int | float | str:
        """What an input is padded by, unless it holds strings and none is given."""
        return 0 if isinstance(self.padding, bool) else self.padding.get(name, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One model of a family.

    Attributes
    ----------
    accuracy
        Share of right answers on data that it was not trained on.
    model, kind
        See `placewright.requests.serving.models.ServedModel`.
    version
        Clients may ask for one; else the latest version answers.
    generation
        Tells it from one of its name that was loaded before, on workers that have both.
    """

    name: str
    accuracy: float
    model: bytes
    kind: str = "onnx"
    version: int = 1
    generation: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Variants with the same inputs and outputs.

    What is served of it are its `buckets`: policies see each as a family of its own, so that only
    rows of one shape share a batch, and each has its own latencies.

    Attributes
    ----------
    name
        What clients call the model.
    batch
        Rows of the only batch that its models take, to which smaller ones are filled up; ``None``:
        any number.
    bucket
        Size of each open dimension, by name; empty before one is chosen.
    version
        Of the variants, where one is chosen.
    origin
        Makes it again, of its files as they are then; ``None``: it was made in Python.
    retired
        It was unloaded: it is there for nobody, and keeps its place among others.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    variants: tuple[Variant, ...]
    batch: int | None = None
    layout: FamilyLayout = FamilyLayout()
    bucket: Mapping[str, int] = field(default_factory=dict)
    version: int = 1
    origin: Callable[[], Family] | None = None
    retired: bool = False

    def takes_like(self, other: Family) -> bool:
        """Whether it takes the inputs of another, and returns its outputs."""
        mine, its = (
            (f.inputs, f.outputs, f.batch, f.layout, f.bucket, f.version) for f in (self, other)
        )
        return mine == its

    @property
    def label(self) -> str:
        """The name with the sizes of the bucket, and the version where it is not the first."""
        sizes = [f"{name}={size}" for name, size in self.bucket.items()]
        parts = ([f"version={self.version}"] if self.version > 1 else []) + sizes
        return f"{self.name}@{','.join(parts)}" if parts else self.name

    @property
    def versions(self) -> list[int]:
        """Those of its variants."""
        return sorted({variant.version for variant in self.variants})

    def buckets(self) -> list[Family]:
        """One for each version and each combination of sizes of its open dimensions."""
        names = self.layout.dimensions
        return [
            replace(
                self,
                bucket=dict(zip(names, sizes, strict=True)),
                version=version,
                variants=tuple(v for v in self.variants if v.version == version),
            )
            for version in self.versions
            for sizes in product(*names.values())
        ]

    def most(self, limit: int) -> int:
        """Rows of its largest batch, where those of others have up to `limit`."""
        return 1 if self.layout.whole else min(limit, self.batch or limit)

    def count(self, inputs: Sequence[Array]) -> int:
        """Rows of a request."""
        return 1 if self.layout.whole else len(inputs[0])

    def rows_of(self, inputs: Sequence[Array]) -> list[tuple[Array, ...]]:
        """The rows of a request, one after another."""
        if self.layout.whole:
            return [tuple(inputs)]
        return [tuple(a[k : k + 1] for a in inputs) for k in range(self.count(inputs))]

    def stacked(self, rows: Sequence[Sequence[Array]]) -> dict[str, Array]:
        """What a model computes for these rows."""
        # The last row stands in for those that a fixed batch lacks.
        filled = [*rows, *[rows[-1]] * ((self.batch or 0) - len(rows))]
        if len(filled) == 1:
            return {spec.name: a for spec, a in zip(self.inputs, filled[0], strict=True)}
        columns = zip(self.inputs, zip(*filled, strict=True), strict=True)
        return {spec.name: np.concatenate(column) for spec, column in columns}

    def outputs_of(self, outputs: Sequence[Array], row: int) -> tuple[Array, ...]:
        """One row's share of the outputs of a batch."""
        return tuple(o if self.layout.whole else o[row : row + 1] for o in outputs)

    def example(self, make: Callable[[TensorSpec, tuple[int, ...]], Array]) -> tuple[Array, ...]:
        """One row, whose tensors `make` makes."""
        return tuple(make(spec, self.row_shape(spec)) for spec in self.inputs)

    def row_shape(
        self, spec: TensorSpec, sizes: Mapping[str, int] | None = None
    ) -> tuple[int, ...]:
        """Of an input of one row, with the sizes of the bucket or others."""
        shape = spec.sized(self.bucket if sizes is None else sizes)
        return shape if self.layout.whole else (1, *shape[1:])

    def sizes_of(self, inputs: Sequence[Array]) -> dict[str, int]:
        """Sizes of the open dimensions of a request.

        Raises `Refusal`: 400: inputs differ in one.
        """
        found: dict[str, int] = {}
        for spec, value in zip(self.inputs, inputs, strict=True):
            for name, size in zip(spec.names, value.shape, strict=bool(spec.names)):
                if name in self.layout.dimensions and found.setdefault(name, size) != size:
                    raise Refusal(400, f"inputs differ in {name!r}: {found[name]} and {size}")
        return found

    def bucket_of(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The least sizes that are served and not less than these.

        Raises `Refusal`: 400: there are none, with those that there are.
        """
        found = {}
        for name, known in self.layout.dimensions.items():
            fits = [n for n in known if n == sizes[name] or (self.layout.pads and n > sizes[name])]
            if not fits:
                served = ", ".join(map(str, sorted(known)))
                up_to = "up to the largest of " if self.layout.pads else "one of "
                raise Refusal(400, f"{name} is {sizes[name]}, served is {up_to}{served}")
            found[name] = min(fits)
        return found

    def shorter(self) -> Iterator[dict[str, int]]:
        """Sizes that are padded to those of the bucket: the least, half way, and the next ones.

        A model may not take the least, of which convolutions leave nothing.
        """
        known = self.layout.dimensions
        least = {
            name: 1 + max((n for n in known[name] if n < size), default=0)
            for name, size in self.bucket.items()
        }
        for share in (0.0, 0.5, 1.0):
            sizes = {
                name: least[name] + int(share * max(0, size - 1 - least[name]))
                for name, size in self.bucket.items()
            }
            if sizes != self.bucket:
                yield sizes

    def padded(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Inputs of the sizes of the bucket."""
        found = []
        for spec, value in zip(self.inputs, inputs, strict=True):
            wanted = spec.sized(self.bucket)
            lacks = [
                (0, m - n if name in self.bucket else 0)
                for n, m, name in zip(value.shape, wanted, spec.names, strict=True)
            ]
            if any(behind for _, behind in lacks):
                fill: Any = self.layout.fill(spec.name)
                fill = "" if value.dtype.kind == "O" and fill == 0 else fill
                value = np.pad(value, lacks, constant_values=fill)
            found.append(value)
        return tuple(found)

    def cut(self, outputs: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Outputs without what belongs to padding, for inputs of these sizes."""
        return [
            value[tuple(slice(sizes.get(name)) for name in spec.names)] if sizes else value
            for spec, value in zip(self.outputs, outputs, strict=True)
        ]

    def wrong_outputs(self, outputs: Sequence[Array], rows: int) -> str:
        """Why a variant's outputs are not one row for each of its input; or empty."""
        if len(outputs) != len(self.outputs):
            names = ", ".join(spec.name for spec in self.outputs)
            return f"it returns {len(outputs)} outputs in place of {len(self.outputs)} ({names})"
        for spec, output in zip(self.outputs, outputs, strict=True):
            wanted = spec.sized(self.bucket)
            if not self.layout.whole:
                wanted = (self.batch or rows, *wanted[1:])
            fits = len(wanted) == output.ndim and all(
                n in (m, -1) for n, m in zip(wanted, output.shape, strict=True)
            )
            if not fits or output.dtype != spec.dtype:
                return (
                    f"output {spec.name!r} of a batch of {self.batch or rows} is {output.dtype} of "
                    f"shape {list(output.shape)}, not {spec.datatype} of shape {list(wanted)}"
                )
        return ""


def make_family(
    name: str, variants: Sequence[Variant], layout: FamilyLayout = FamilyLayout()
) -> Family:
    """The family of these variants.

    Raises `InputError`: no variants, two of one name, no ONNX file, a tensor that cannot be served,
    open dimensions without sizes, or variants whose inputs or outputs differ.
    Raises `MissingDependencyError`: ONNX Runtime is not installed.
    """
    if not variants:
        raise InputError("a family needs a variant", where=f"family {name!r}")
    found = [tensors_of(variant, f"family {name!r}", layout) for variant in variants]
    shapes = [[[t.metadata() for t in specs] for specs in each[:2]] for each in found]
    for variant, shape in zip(variants, shapes, strict=True):
        where = f"family {name!r}: variant {variant.name!r}"
        if not 0 <= variant.accuracy <= 1:
            raise InputError("accuracy must be in [0, 1]", where=where, by=f"{variant.accuracy}")
        if shape != shapes[0]:
            raise InputError(
                "inputs and outputs differ from those of the first variant",
                where=where,
                by=f"{shape} and {shapes[0]}",
                hint="serve it as a family of its own",
            )
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise InputError("two variants have the same name", where=f"family {name!r}")
    batches = {batch for *_, batch in found if batch is not None}
    if len(batches) > 1:
        raise InputError(
            "variants take batches of different sizes only",
            where=f"family {name!r}",
            by=f"{sorted(batches)} rows",
            hint="export them with an open first dimension",
        )
    inputs, outputs, _ = found[0]
    if not inputs and not layout.whole:
        raise InputError(
            "the model takes no input, so that a request has no rows",
            where=f"family {name!r}",
            hint=_WHOLE,
        )
    family = Family(name, inputs, outputs, tuple(variants), min(batches, default=None), layout)
    _check_layout(family)
    return family


def _check_layout(family: Family) -> None:
    """Raise `InputError` where open dimensions have no sizes, or padded outputs cannot be cut."""
    known, where = family.layout.dimensions, f"family {family.name!r}"
    names = {n for spec in family.inputs for n in spec.names if n}
    if missing := sorted(names - set(known)):
        raise InputError(
            "inputs have open dimensions besides the batch, and no sizes of them are given",
            where=where,
            by=", ".join(missing),
            hint="write them into the family's file: dimensions: {"
            + ", ".join(f"{n}: [16, 64]" for n in missing)
            + "}, and padding: true if smaller ones may be padded",
        )
    if strange := [n for n in known if n not in names]:
        raise UnknownNameError("dimension", strange[0], sorted(names), where=where)
    if (count := math.prod(map(len, known.values()))) > MOST_BUCKETS:
        raise InputError(
            "too many combinations of sizes: each is measured on every server",
            where=where,
            by=f"{count}, at most {MOST_BUCKETS}",
            hint="give fewer sizes, and padding: true",
        )
    if not family.layout.pads:
        return
    _check_fills(family)
    for spec in family.outputs:
        if unknown := [n for n in spec.names[not family.layout.whole :] if n and n not in known]:
            raise InputError(
                "an output of padded inputs cannot be cut back",
                where=f"{where}: output {spec.name!r}",
                by=f"its dimension {unknown[0]!r} is none of {', '.join(known)}",
                hint="leave padding out, or export the model so that outputs name the dimensions "
                "of inputs",
            )


def _check_fills(family: Family) -> None:
    """Raise `InputError` where a value by which inputs are padded is none of their datatype."""
    padding, specs = family.layout.padding, {spec.name: spec for spec in family.inputs}
    for name, value in {} if isinstance(padding, bool) else padding.items():
        where = f"family {family.name!r}: padding"
        if name not in specs:
            raise UnknownNameError("input", name, specs, where=where)
        text = specs[name].datatype == "BYTES"
        fits = isinstance(value, str) if text else not isinstance(value, str)
        if not fits or (not text and np.asarray(value).astype(specs[name].dtype) != value):
            raise InputError(
                "inputs cannot be padded by a value of another datatype",
                where=f"{where}.{name}",
                by=f"{value!r} for {specs[name].datatype}",
                hint="give a value that the datatype can hold",
            )


def find_family(families: Sequence[Family], name: str, version: str = "") -> int:
    """Position of the first bucket of the family of this name, of its latest version by default.

    Raises `Refusal`: 404: there is none.
    """
    there = [(k, family) for k, family in enumerate(families) if not family.retired]
    known = {str(family.version): k for k, family in reversed(there) if family.name == name}
    if not known:
        names = ", ".join(dict.fromkeys(family.name for _, family in there))
        raise Refusal(404, f"there is no model {name!r:.100}; known: {names}", code="not-found")
    if version and version not in known:
        why = f"{name!r} has no version {version!r:.50}; known: {', '.join(sorted(known, key=int))}"
        raise Refusal(404, why, code="not-found")
    return known[version or max(known, key=int)]


def tensors_of(
    variant: Variant, where: str, layout: FamilyLayout
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], int | None]:
    """Inputs and outputs of an ONNX file, and the only batch that it takes, where it is one.

    See `make_family` for errors.
    """
    there = f"{where}: variant {variant.name!r}"
    if variant.kind != "onnx":
        if not layout.inputs or not layout.outputs:
            raise InputError(
                "it is no ONNX file, and does not say what it takes and returns",
                where=there,
                hint="write inputs and outputs into the family's file: inputs: {x: {datatype: "
                "FP32, shape: [-1, 8]}}",
            )
        return layout.inputs, layout.outputs, layout.batch
    # ONNX Runtime would read files with our rights, and give their contents to clients.
    refuse_external_data(variant.model, there)
    session = open_session(variant.model, there)
    inputs, outputs = session.get_inputs(), session.get_outputs()
    make = _whole_spec if layout.whole else _spec
    specs = [tuple(make(t, there, layout) for t in each) for each in (inputs, outputs)]
    _check_declared(specs, layout, there)
    if layout.whole:  # an open first dimension is a batch of one, unless its sizes are given
        specs[0] = tuple(
            replace(s, shape=(1, *s.shape[1:])) if s.shape[:1] == (-1,) and not s.names[0] else s
            for s in specs[0]
        )
    return specs[0], specs[1], None if layout.whole else _only_batch(inputs, there)


def _check_declared(
    specs: Sequence[Sequence[TensorSpec]], layout: FamilyLayout, where: str
) -> None:
    """Raise `InputError` where a family's file declares other tensors than its ONNX file has."""
    for found, declared in zip(specs, (layout.inputs, layout.outputs), strict=True):
        known = {spec.name: spec.metadata() for spec in found}
        for spec in declared:
            if spec.metadata() != known.get(spec.name):
                has = ", ".join(f"{n} {m['datatype']} {m['shape']}" for n, m in known.items())
                raise InputError(
                    f"the family's file declares a tensor {spec.name!r} that the model has not",
                    where=where,
                    by=f"{spec.datatype} {list(spec.shape)}; the model has {has}",
                    hint="leave inputs and outputs out, as ONNX files say what they take",
                )


def _only_batch(inputs: Sequence[Any], where: str) -> int | None:
    """Rows of the only batch that these inputs take; ``None``: any number."""
    batches = {t.shape[0] if isinstance(t.shape[0], int) else None for t in inputs if t.shape}
    if len(batches) > 1:
        raise InputError(
            "inputs differ in their first dimension, which is not the batch of all",
            where=where,
            by=", ".join(f"{t.name} {t.shape}" for t in inputs),
            hint=f"export them with one open first dimension, or {_WHOLE}",
        )
    return batches.pop() if batches else None


def read_family(path: str | Path, models: Collection[str] = ()) -> Family:
    """A family from a YAML or JSON file, with ONNX files beside it.

    `models`: files and factories that may run code of their own, as the file names them.

        name: digits
        variants:
          small: {file: small.onnx, accuracy: 0.95}
          large: {file: large.onnx, accuracy: 0.99}
        dimensions: {length: [16, 64]}        # see `FamilyLayout`
        padding: true

    Raises `InputError`: the file, a field or an ONNX file is wrong.
    """
    data, text = read_data(path)
    model = validate(FamilyModel, data, where=str(path), text=text)
    with errors_in(path):
        folder = Path(path).parent
        variants = [_variant(name, each, folder, models) for name, each in model.variants.items()]
        sizes = {name: tuple(sorted(set(known))) for name, known in model.dimensions.items()}
        layout = FamilyLayout(sizes, model.padding, model.whole, model.random)
        tensors = [_declared(each) for each in (model.inputs, model.outputs)]
        make = _whole_spec if model.whole else _spec
        inputs, outputs = (tuple(make(t, "family", layout) for t in each) for each in tensors)
        batch = None if model.whole else _only_batch(tensors[0], "inputs")
    layout = replace(layout, inputs=inputs, outputs=outputs, batch=batch)
    made = make_family(model.name, variants, layout)
    return replace(made, origin=partial(read_family, path, models))


def _variant(name: str, entry: VariantModel, folder: Path, models: Collection[str]) -> Variant:
    if bool(entry.file) == bool(entry.factory):
        raise InputError(
            "a variant is either a file or a factory",
            where=f"variants.{name}",
            hint="write file: model.onnx, or factory: package.module:function",
        )
    if entry.factory:
        demand_allowed(name, entry.factory, models)
        made = factory_model(entry.factory)
    else:
        _refuse_elsewhere(name, entry.file)
        path = folder / entry.file
        made = file_model(path, _model_bytes(path))
        if made.kind != "onnx":
            demand_allowed(name, entry.file, models)
    return Variant(name, entry.accuracy, made.data, made.kind, entry.version)


def _declared(tensors: Mapping[str, TensorModel]) -> list[Any]:
    """Tensors of models that do not say what they take, as ONNX Runtime has them."""
    kinds = {kind: onnx for onnx, kind in _ONNX.items()}
    found = []
    for name, each in tensors.items():
        if each.datatype not in kinds:
            raise UnknownNameError("datatype", each.datatype, kinds, where=f"tensor {name!r}")
        shape = [None if size == -1 else size for size in each.shape]
        found.append(SimpleNamespace(name=name, type=kinds[each.datatype], shape=shape))
    return found


def _model_bytes(path: Path) -> bytes:
    """An ONNX file with the weights that it keeps in files beside itself."""
    if importlib.util.find_spec("onnx") is None:
        raise MissingDependencyError("onnx", extra=SERVE, purpose=f"reading {path}")
    data = read_bytes(path)
    # Most files name no other; parsing takes as long as reading them.
    return with_external_data(data, path) if b"location" in data else data


def _refuse_elsewhere(variant: str, file: str) -> None:
    """A file that somebody sent must not make this one read what is elsewhere."""
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise InputError(
            "must be in the folder of the family's file, or below it",
            where=f"variants.{variant}.file",
            by=f"got {file!r:.200}",
            hint="copy the model there",
        )


def _spec(tensor: Any, where: str, layout: FamilyLayout) -> TensorSpec:
    """A tensor whose first dimension is the batch."""
    if not tensor.shape and tensor.type in _ONNX:
        raise InputError(
            f"tensor {tensor.name!r} has no dimension, and the first should be the batch",
            where=where,
            by=f"{tensor.type}, shape {tensor.shape}",
            hint=f"{_WHOLE}; where the model only does not say its shape, write that into its file",
        )
    found = _whole_spec(tensor, where, layout)
    return replace(found, shape=(-1, *found.shape[1:]), names=("", *found.names[1:]))


def _whole_spec(tensor: Any, where: str, layout: FamilyLayout) -> TensorSpec:
    """A tensor of a request that is one row as a whole."""
    datatype = _ONNX.get(tensor.type, "")
    if datatype not in NUMPY:
        raise InputError(
            f"tensor {tensor.name!r} cannot be served",
            where=where,
            by=f"{tensor.type}, shape {tensor.shape}",
            hint="convert the pipeline with options={'zipmap': False}: a tensor then has what is a "
            "list of dictionaries here"
            if "map(" in tensor.type
            else f"tensors of {', '.join(sorted(NUMPY))} are; add a Cast to the model",
        )
    shape, names = list[int](), list[str]()
    for axis, size in enumerate(tensor.shape):
        if size == 0:
            raise InputError(
                f"tensor {tensor.name!r} has a dimension of no size",
                where=where,
                by=f"{tensor.type}, shape {tensor.shape}",
                hint="give its size, or leave it open",
            )
        named = "" if isinstance(size, int) else str(size or f"{tensor.name}.{axis}")
        # What is usually the batch is one row, unless its sizes are given.
        alone = axis == 0 and named not in layout.dimensions
        shape.append(size if isinstance(size, int) else -1)
        names.append("" if alone else named)
    return TensorSpec(tensor.name, datatype, tuple(shape), tuple(names))
