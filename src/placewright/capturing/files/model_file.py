"""ModelFile: a model of another runtime, its graph, its inputs, and weights in other files."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from placewright.capturing.nested_functions import refuse_expansion_of_onnx
from placewright.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from placewright.graph.graph import Graph


Runtime = Literal["onnxruntime", "openvino"]

Array = np.ndarray[Any, Any]

SHARED_BYTES = 1 << 20
"""From this size on, a constant that several operators read keeps them on one device."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Name, static shape and numpy dtype of one input of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True, eq=False)
class ModelFile:
    """A model that another runtime executes.

    Attributes
    ----------
    runtime
        That executes it.
    source
        The file, or what the model was converted from.
    graph
        Operators that can be placed; constants, inputs and results are none.
    model
        The runtime's own model (``onnx.ModelProto``, ``openvino.Model``).
    outputs
        Names of the outputs, in order.
    constants
        Names of nodes that only depend on constants: every part of the model has a copy of those
        that it reads.
    """

    runtime: Runtime
    source: str
    graph: Graph
    model: Any
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str] = field(default_factory=frozenset)

    def random_inputs(self, seed: int = 0) -> Mapping[str, Array]:
        """Inputs drawn from `seed`: normal numbers; zeros and ones for integers and as texts."""
        return {spec.name: _drawn(spec, np.random.default_rng([seed, k])) for k, spec in self._each}

    @property
    def _each(self) -> list[tuple[int, InputSpec]]:
        return list(enumerate(self.inputs))


def _drawn(spec: InputSpec, rng: np.random.Generator) -> Array:
    if spec.dtype.kind in "iubO":
        drawn = rng.integers(0, 2, spec.shape)
        return (drawn.astype(str) if spec.dtype.kind == "O" else drawn).astype(spec.dtype)
    return rng.normal(size=spec.shape).astype(spec.dtype)


def module_of(name: str) -> str:
    """The module path in a node's name: ``layer1.0.conv1`` in ``/layer1/layer1.0/conv1/Conv``."""
    path = ""
    for part in name.split("/")[:-1]:
        part = part.removeprefix("__module.")
        if part and "::" not in part:
            path = part if not path or part.startswith(f"{path}.") else f"{path}.{part}"
    return path


def distinct_names(names: Iterable[str]) -> list[str]:
    """Names that are there already get a number: names are the identity of operators."""
    taken: set[str] = set()
    counts: dict[str, int] = {}
    found = []
    for name in names:
        distinct = name
        while distinct in taken:
            counts[name] = counts.get(name, 1) + 1
            distinct = f"{name}#{counts[name]}"
        taken.add(distinct)
        found.append(distinct)
    return found


def reader_groups(readers: Iterable[tuple[str, Sequence[str]]]) -> dict[str, str]:
    """Operator -> group, for those that read a constant together.

    `readers`: by constant, the operators that read it; groups that share an operator are one.
    """
    group: dict[str, str] = {}
    for name, together in readers:
        if len(together) > 1:
            known = {group[reader] for reader in together if reader in group}
            group = {reader: name if own in known else own for reader, own in group.items()}
            group |= dict.fromkeys(together, name)
    return group


def resident_bytes(constants: Iterable[tuple[int, bool, Sequence[str]]]) -> dict[str, int]:
    """Operator -> bytes of the constants that live with it.

    `constants`: the bytes of each, whether it is there once, and the operators that read it in
    order. One that is there once is the first reader's; of another every reader has a copy.
    """
    found: dict[str, int] = {}
    for nbytes, once, readers in constants:
        for reader in readers[: 1 if once else None]:
            found[reader] = found.get(reader, 0) + nbytes
    return found


_IN_MEMORY = "_ORT_MEM_ADDR_"
"""In a location it makes ONNX Runtime and OpenVINO read memory of the process at the offset."""


def external_tensors(model: Any) -> Iterator[Any]:
    """Every tensor of an ``onnx.ModelProto`` whose bytes are in another file.

    Initializers, and tensors in attributes, sparse tensors, branches, functions and training
    graphs: a runtime reads them all.
    """
    from onnx import TensorProto

    waiting = [model]
    while waiting:
        message = waiting.pop()
        if isinstance(message, TensorProto):
            if message.data_location == TensorProto.EXTERNAL:
                yield message
            continue
        for entry, value in message.ListFields():
            if entry.message_type is not None:
                repeated = not hasattr(value, "ListFields")
                waiting += list(value) if repeated else [value]


def check_text(model: Any, where: str) -> None:
    """Raise `InputError` if an ``onnx.ModelProto`` has a name that is no text in UTF-8.

    Protocol buffers take it, and hand out bytes in place of a ``str``.
    """
    waiting = [model]
    while waiting:
        for entry, value in waiting.pop().ListFields():
            single = isinstance(value, str | bytes) or hasattr(value, "ListFields")
            if entry.message_type is not None:
                waiting += [value] if single else list(value)
            elif entry.type == entry.TYPE_STRING and any(
                isinstance(text, bytes) for text in ([value] if single else value)
            ):
                raise InputError(
                    f"the field {entry.name!r} of a {entry.containing_type.name} is no text",
                    where=where,
                    by=repr(value)[:200],
                    hint="export or download the model again",
                )


def check_external_data(model: Any, path: Path) -> None:
    """Check that all external data of the model in `path` is in its folder and complete.

    `model`: an ``onnx.ModelProto``.
    Raises `InputError`: data outside the folder (``../``, an absolute path, a link), no regular
    file, too short, or an unreadable description; names the tensor.
    """
    from onnx.external_data_helper import ExternalDataInfo

    for tensor in external_tensors(model):
        try:
            info = ExternalDataInfo(tensor)
        except ValueError as error:
            raise _refused(tensor, "has external data that is not described", path, error) from None
        file = beside(path, info.location)
        if file is None or _IN_MEMORY in info.location:
            what = "is in a file outside the model's folder"
            raise _refused(tensor, what, path, info.location)
        needed = int(info.offset or 0) + int(info.length or 0)
        size = file.stat().st_size if os.path.isfile(file) else -1  # a name may be too long
        if size < needed or size < 0:
            raise InputError(
                f"the file with the weight {tensor.name!r} is missing or too short",
                where=f"{path}: {info.location}",
                by="missing" if size < 0 else f"{size} bytes of {needed}",
                hint="put the file with the external data beside it; to a service upload both",
            )


def refuse_external_data(model: bytes, where: str) -> None:
    """Raise `InputError` if an ONNX model that arrived as bytes names files of this machine.

    ONNX Runtime would read them, from the current folder on. `where`: the model, for the message.
    Bytes that cannot be read are refused too: a runtime might read more of them than this check.
    Raises `UnsupportedError`: its functions would make it too large.
    Raises `MissingDependencyError`: the package ``onnx`` is not installed.
    """
    if importlib.util.find_spec("onnx") is None:
        raise MissingDependencyError("onnx", extra="onnx", purpose=f"reading {where}")
    import onnx
    from google.protobuf.message import DecodeError

    try:
        parsed = onnx.ModelProto.FromString(model)
    except DecodeError as error:
        raise InputError("this is no ONNX model", where=where, by=str(error)[:200]) from None
    check_text(parsed, where)
    refuse_expansion_of_onnx(parsed, where)
    for tensor in external_tensors(parsed):
        places = [entry.value for entry in tensor.external_data if entry.key == "location"]
        raise InputError(
            f"the weight {tensor.name!r:.100} is in another file, and the model came without any",
            where=where,
            by=f"{', '.join(places)!r:.100}",
            hint="save the model with its weights inside: onnx.save(model, path)",
        )


def with_external_data(model: bytes, path: Path) -> bytes:
    """An ONNX model whose weights in files beside `path`, where it was read, are put inside.

    Raises `InputError`: it is no ONNX model, as of `check_external_data`, or too large for one
    file (2 GiB).
    """
    from google.protobuf.message import DecodeError, EncodeError
    from onnx import ModelProto, TensorProto
    from onnx.external_data_helper import ExternalDataInfo

    try:
        parsed = ModelProto.FromString(model)
    except DecodeError as error:
        raise InputError("this is no ONNX model", where=str(path), by=str(error)[:200]) from None
    check_external_data(parsed, path)
    found = False
    for tensor in external_tensors(parsed):
        info, found = ExternalDataInfo(tensor), True
        file = beside(path, info.location)
        assert file is not None  # it was checked
        with file.open("rb") as data:
            data.seek(int(info.offset or 0))
            tensor.raw_data = data.read(int(info.length) if info.length else -1)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    try:
        whole: bytes = parsed.SerializeToString() if found else model
    except (ValueError, EncodeError) as error:
        raise InputError(
            "the model with its weights is too large to be sent to servers",
            where=str(path),
            by=f"{str(error)[:100]}; at most 2 GiB",
            hint="store its weights in half precision, or quantise it",
        ) from None
    return whole


def beside(path: Path, name: str) -> Path | None:
    """The file `name` in the folder of the model `path`, every link followed.

    ``None`` where it is elsewhere. A model that is itself a link, as in a cache of downloads, may
    have its weights in the folder that it leads to.
    """
    try:
        file = (path.parent / name).resolve()
        folders = path.parent.resolve(), path.resolve().parent
    except (OSError, ValueError, RuntimeError):  # a NUL; a loop of links, until Python 3.12
        return None
    return file if any(file.is_relative_to(folder) for folder in folders) else None


def _refused(tensor: Any, what: str, path: Path, by: object) -> InputError:
    return InputError(
        f"the weight {tensor.name!r:.100} {what}",
        where=str(path),
        by=str(by)[:200],
        hint="move the weights beside the model and save it again",
    )
