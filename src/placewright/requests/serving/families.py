"""Families: ONNX models that answer the same requests with unequal accuracy and latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from placewright.capturing.files.external_data import refuse_external_data
from placewright.errors import InputError, MissingDependencyError
from placewright.io.boundary import FileModel, errors_in, read_bytes, validate
from placewright.io.stored import read_data
from placewright.requests.serving.tensors import NUMPY, Array, TensorSpec
from placewright.runtime.model_files.onnx_sessions import load_onnxruntime
from placewright.web.refusals import Refusal

SERVE = "serve"
"""The extra that has what this package needs."""

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
}


class VariantModel(FileModel):
    """A variant: an ONNX file, relative to this one, and its accuracy."""

    file: str
    accuracy: float = Field(ge=0, le=1)


class FamilyModel(FileModel):
    """A file of a family."""

    name: str = Field(min_length=1)
    variants: dict[str, VariantModel] = Field(min_length=1)


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One model of a family.

    `accuracy`: share of right answers on data that it was not trained on.
    `model`: the ONNX file.
    """

    name: str
    accuracy: float
    model: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Variants with the same inputs and outputs.

    `name`: what clients call the model.
    `batch`: rows of the only batch that its models take; ``None``: any number.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    variants: tuple[Variant, ...]
    batch: int | None = None

    def check_batches(self, most: int) -> None:
        """Raise `InputError` where its models cannot take all batches of 1 to `most` rows."""
        if self.batch is not None and not self.batch == most == 1:
            raise InputError(
                f"its models take batches of {self.batch} rows only, which is written in them",
                where=f"family {self.name!r}",
                by=f"batches have 1 to {most} rows",
                hint="export them with an open first dimension"
                + (", or serve with --max-batch 1" if self.batch == 1 else ""),
            )


def make_family(name: str, variants: Sequence[Variant]) -> Family:
    """The family of these variants.

    Raises `InputError`: no variants, two of one name, no ONNX file, a tensor that cannot be served,
    or variants whose inputs or outputs differ.
    Raises `MissingDependencyError`: ONNX Runtime is not installed.
    """
    if not variants:
        raise InputError("a family needs a variant", where=f"family {name!r}")
    found = [tensors_of(variant, f"family {name!r}") for variant in variants]
    shapes = [each[:2] for each in found]
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
    return Family(name, *shapes[0], tuple(variants), min(batches, default=None))


def find_family(families: Sequence[Family], name: str) -> int:
    """Position of the family of this name.

    Raises `Refusal`: 404: there is none.
    """
    names = [family.name for family in families]
    if name not in names:
        known = ", ".join(names)
        raise Refusal(404, f"there is no model {name!r:.100}; known: {known}", code="not-found")
    return names.index(name)


def tensors_of(
    variant: Variant, where: str
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], int | None]:
    """Inputs and outputs of an ONNX file, and the only batch that it takes, where it is one.

    See `make_family` for errors.
    """
    there = f"{where}: variant {variant.name!r}"
    # ONNX Runtime would read files with our rights, and give their contents to clients.
    refuse_external_data(variant.model, there)
    session = open_session(variant.model, there)
    inputs = session.get_inputs()
    batches = [each.shape[0] for each in inputs if each.shape and isinstance(each.shape[0], int)]
    return (
        tuple(_spec(each, where) for each in inputs),
        tuple(_spec(each, where) for each in session.get_outputs()),
        batches[0] if batches else None,
    )


def wrong_outputs(specs: Sequence[TensorSpec], outputs: Sequence[Array], rows: int) -> str:
    """Why a variant's outputs are not one row for each of its input; or empty."""
    for spec, output in zip(specs, outputs, strict=True):
        wanted = (rows, *spec.shape[1:])
        if output.shape != wanted or output.dtype != np.dtype(NUMPY[spec.datatype]):
            return (
                f"output {spec.name!r} of a batch of {rows} is {output.dtype} of shape "
                f"{list(output.shape)}, not {spec.datatype} of shape {list(wanted)}"
            )
    return ""


def open_session(model: bytes, where: str, threads: int = 1) -> Any:
    """An ONNX Runtime session on the CPU.

    Threads do not spin while they wait: several workers share the cores.
    """
    try:
        ort = load_onnxruntime()
    except ImportError:
        raise MissingDependencyError(
            "onnxruntime", extra=SERVE, purpose="serving requests"
        ) from None
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Its other format, which bytes may have too, is not looked into for other files.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no common base
        raise InputError(
            "this is no ONNX model that runs here", where=where, by=f"{error!s:.300}"
        ) from None


def read_family(path: str | Path) -> Family:
    """A family from a YAML or JSON file, with ONNX files beside it.

        name: digits
        variants:
          small: {file: small.onnx, accuracy: 0.95}
          large: {file: large.onnx, accuracy: 0.99}

    Raises `InputError`: the file, a field or an ONNX file is wrong.
    """
    data, text = read_data(path)
    model = validate(FamilyModel, data, where=str(path), text=text)
    with errors_in(path):
        folder = Path(path).parent
        for name, each in model.variants.items():
            _refuse_elsewhere(name, each.file)
        files = {name: read_bytes(folder / each.file) for name, each in model.variants.items()}
    variants = [Variant(name, each.accuracy, files[name]) for name, each in model.variants.items()]
    return make_family(model.name, variants)


def _refuse_elsewhere(variant: str, file: str) -> None:
    """A file that somebody sent must not make this one read what is elsewhere."""
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise InputError(
            "must be in the folder of the family's file, or below it",
            where=f"variants.{variant}.file",
            by=f"got {file!r:.200}",
            hint="copy the model there",
        )


def _spec(tensor: Any, where: str) -> TensorSpec:
    datatype = _ONNX.get(tensor.type, "")
    rest = tuple(tensor.shape[1:])
    if datatype not in NUMPY or not tensor.shape or not all(isinstance(n, int) for n in rest):
        raise InputError(
            f"tensor {tensor.name!r} cannot be served",
            where=where,
            by=f"{tensor.type}, shape {tensor.shape}",
            hint="tensors of numbers are, whose first dimension is the batch and no other is open",
        )
    return TensorSpec(tensor.name, datatype, (-1, *rest))
