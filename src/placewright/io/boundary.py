"""Parse and validate files: text to data, data to a pydantic model, errors to `InputError`.

Every file format is a pydantic model that forbids unknown keys. An `InputError` names the file,
the line (YAML) and the field.
"""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import pickle  # noqa: TID251  (to refuse what is no data)
import re
import stat
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from io import BufferedReader, BytesIO, StringIO
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from placewright.errors import InputError, PlacewrightError, UnknownNameError

Model = TypeVar("Model", bound=BaseModel)
Error = TypeVar("Error", bound=PlacewrightError)
Location = Sequence[int | str]

LARGEST_BYTES = 2 << 30
"""Of a file that is read whole; data of a million operators are far below it."""

LONGEST_YAML = 32 << 20
"""Characters; to read so many takes minutes, as JSON a second."""

_LOOK = "fix the file there, or write it again; it may be truncated"


class FileModel(BaseModel):
    """Base of all file formats."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class RefusedError(ValueError):
    """Carries an `InputError` through pydantic, which passes only ValueErrors on."""

    def __init__(self, error: InputError) -> None:
        self.error = error
        super().__init__(str(error))


def open_file(path: str | Path) -> BufferedReader:
    """Open a file that a user hands in, for its bytes; every reader of such files comes here.

    Raises `OSError`: it is missing, or no regular file. A pipe would block for ever, a device may
    never end. A descriptor that the caller has open (``/dev/stdin``, ``<(...)``) may be a pipe.
    """
    try:
        check_regular(os.stat(path), path)  # to open a device may change it
        # Without blocking, and looked at again: it may have been replaced by a pipe since.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError:  # a NUL byte in its name
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    try:
        check_regular(os.fstat(handle), path)
        os.set_blocking(handle, True)
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


_DESCRIPTORS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def check_regular(found: os.stat_result, path: str | Path) -> None:
    """Raise unless a file is a regular one.

    Raises `OSError`: it is a folder, a named pipe, a socket or a device.
    """
    mode = found.st_mode
    if stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and str(path).startswith(_DESCRIPTORS)):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else ""
    raise OSError(errno.EINVAL, f"it is {kind or 'a device'}, not a regular file", str(path))


def read_bytes(path: str | Path, largest: int = LARGEST_BYTES) -> bytes:
    """All bytes of a regular file.

    Raises `InputError`: it is missing, no regular file, or larger than `largest`.
    """
    if not str(path):
        hint = "write its path, after the colon where a format comes first"
        raise InputError("the name of a file is empty", where="file", hint=hint)
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(largest + 1) if size <= largest else b""
    except OSError as error:
        raise unreadable(path, error) from None
    if max(size, len(data)) > largest:
        raise InputError(
            "the file is too large to be read",
            where=str(path),
            by=f"{max(size, len(data))} bytes, at most {largest}",
            hint="check that it is the file you meant",
        )
    return data


def named_path(path: str | Path) -> Path:
    """`path`, if a file can be called so; for those that look at a file before they open it.

    Raises `InputError`: the name is too long, or has a NUL or half of a surrogate pair.
    """
    shown, hint = repr(str(path))[:200], "give the path of a file"
    try:
        os.lstat(path)
    except ValueError as error:  # of encoding, too
        by = str(error)
        raise InputError("no file can have this name", where=shown, by=by, hint=hint) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            by = f"{len(str(path))} characters"
            raise InputError("this name is too long", where=shown, by=by, hint=hint) from None
    return Path(path)


def read_text(path: str | Path) -> str:
    """The file's text; a missing or binary file is an `InputError`."""
    try:
        return read_bytes(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(
            "is not a text file",
            where=str(path),
            by=str(error),
            hint="give text in UTF-8, packed by gzip only if the name ends in .gz",
        ) from None


def csv_rows(path: str | Path) -> Iterator[list[str]]:
    """The rows of a CSV file, in order.

    Raises `InputError`: it is missing, not text, or not CSV.
    """
    rows = csv.reader(StringIO(read_text(path)))
    try:
        yield from rows
    except csv.Error as error:
        where = f"{path}, line {rows.line_num}"
        raise InputError("is not valid CSV", where=where, by=str(error), hint=_LOOK) from None


def unreadable(path: str | Path, error: OSError) -> InputError:
    """The error of a file that is missing, or cannot be read; offers the nearest name."""
    what, hint = f"cannot be read: {error.strerror}", ""
    if error.errno == errno.EINVAL:  # `check_regular`
        hint = "name a regular file; what a pipe gives can be written into one"
    else:
        with suppress(OSError, ValueError):  # a folder that may not be listed; a NUL byte
            hint = _nearest(Path(path))
    return InputError(what, where=str(path), hint=hint)


def parse_json(text: str | bytes, *, where: str) -> Any:
    """JSON text as data; no number becomes infinity, no text is half of a character.

    Raises `InputError`: it is none, holds such a number or text, or a key twice.
    """
    try:
        text = text if isinstance(text, str) else text.decode()
        # Functions for numbers make parsing slow, so only text that may need them gets them.
        if not _RARE.search(text):
            return json.loads(text, object_pairs_hook=_once)
        made = json.loads(text, object_pairs_hook=_once, parse_float=_float, parse_int=_whole)
        json.dumps(made, ensure_ascii=False).encode()  # halves of surrogate pairs have no bytes
    except _TooLargeError as error:
        line = str(text)[: str(text).find(error.written)].count("\n") + 1
        place = f"{where}, line {line}"
        raise InputError("is not valid JSON", where=place, by=str(error), hint=_LOOK) from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError too
        raise InputError("is not valid JSON", where=where, by=str(error), hint=_LOOK) from None
    return made


_RARE = re.compile(r"[eE]\+?\d{3}|\d{19}|\\u[dD]")
"""Numbers that may be too large, and escaped surrogates."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The mapping of these pairs; of a key that is there twice one value would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:40]!r} is given twice")
    return found


class _TooLargeError(ValueError):
    """A number that would become infinity."""

    def __init__(self, written: str) -> None:
        self.written = written
        super().__init__(f"the number {written[:40]} is too large")


def _float(written: str) -> float:
    value = float(written)
    if math.isinf(value):
        raise _TooLargeError(written)
    return value


def _whole(written: str) -> int | float:
    """A whole number; of more than 64 bits, which numpy does not have, the nearest float."""
    value = int(written)
    return value if -(2**63) <= value < 2**63 else _float(written)


def parse_yaml(text: str, *, where: str) -> Any:
    """YAML text as data: what JSON can hold, and infinity where ``.inf`` says so.

    Raises `InputError`: it is none, too long, has a key twice, or another type than those.
    """
    if len(text) > LONGEST_YAML:
        raise InputError(
            "is too long for YAML, which is read slowly",
            where=where,
            by=f"{len(text)} characters, at most {LONGEST_YAML}",
            hint="write it as JSON, in a file whose name ends in .json",
        )
    try:
        return yaml.load(text, Loader=_OnceLoader)
    # What PyYAML makes of a tag whose value does not fit: `!!bool foo` is a KeyError.
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, ArithmeticError) as error:
        by = _one_line(error)
        raise InputError("is not valid YAML", where=where, by=by, hint=_LOOK) from None


def validate(
    model: type[Model],
    data: Any,
    *,
    where: str,
    text: str = "",
    key: str = "key",
    hint: str = "",
) -> Model:
    """`data` as `model`.

    `where`: the file.
    `text`: its YAML source, to name the line of what is wrong.
    `key`: what its keys are called.
    `hint`: what to do where a value is wrong.
    """
    if not isinstance(data, dict):
        raise InputError(
            f"must be a mapping with the keys {', '.join(_keys(model))}",
            where=where,
            by=f"got {type(data).__name__}",
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        loc = _within(data, first["loc"], first["type"])
        place = f"{where}{_line(text, loc)}: {field_path(loc)}"
        if first["type"] == "extra_forbidden":
            known = _keys(_inner(model, loc))
            raise UnknownNameError(key, str(loc[-1]), known, where=place) from None
        raise _refusal(first, place, hint) from None


def placed(error: Error, where: str) -> Error:
    """The same error with the file name prepended to its location, if it does not stand there."""
    if error.where.startswith(where):
        return error
    made = type(error).__new__(type(error))
    place = f"{where}: {error.where}" if error.where else where
    PlacewrightError.__init__(made, error.what, where=place, by=error.by, hint=error.hint)
    return made


@contextmanager
def errors_in(path: str | Path) -> Iterator[None]:
    """Name this file in the errors of the block: see `placed`."""
    try:
        yield
    except PlacewrightError as error:
        raise placed(error, str(path)) from None


def _nearest(path: Path) -> str:
    """Hint for a file that is missing, or is a folder."""
    folder, names = path.parent, list[str]()
    with suppress(OSError):  # a loop of links, or a folder that may not be listed
        if path.is_dir():
            return "give a file inside it"
        names = sorted(p.name for p in folder.iterdir() if p.name != path.name)
    near = get_close_matches(path.name, names, n=1)
    here = f"looked for in {os.path.abspath(folder)}"
    return f"did you mean {str(folder / near[0])!r}?" if near else here


def field_path(loc: Location) -> str:
    """``devices[1].memory``."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc]
    return "".join(parts).lstrip(".") or "file"


MOST_REPEATED = 100_000
"""Nodes of a YAML file that aliases repeat; aliases of aliases grow without limit."""


class _OnceLoader(yaml.SafeLoader):
    """`SafeLoader` that rejects duplicate keys, and aliases that repeat too much.

    It makes nothing that JSON does not have.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = self._repeated = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        before, alias = self._nodes, self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if alias and id(node) not in self._sizes:
            raise yaml.composer.ComposerError(None, None, "an anchor holds itself")
        size = self._sizes[id(node)] if alias else 1
        self._nodes += size
        self._repeated += size if alias else 0
        self._sizes.setdefault(id(node), self._nodes - before)
        mark = None if node is None else node.start_mark
        if self._repeated > MOST_REPEATED:
            raise yaml.composer.ComposerError(
                None, None, f"its aliases repeat more than {MOST_REPEATED} nodes", mark
            )
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a scalar, not a list or a mapping", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value[:40]!r} is given twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        value.encode()  # raises for half of a surrogate pair
        return value

    def other(self, node: yaml.Node) -> NoReturn:
        """Raise for a date, a set and what else YAML has and JSON has not."""
        words = "a file holds text, numbers, lists and mappings"
        raise yaml.constructor.ConstructorError(None, None, words, node.start_mark)

    def whole(self, node: Any) -> int | float:
        """A whole number, in any of the notations of YAML."""
        _refuse_long(node)
        return _whole(str(self.construct_yaml_int(node)))

    def number(self, node: Any) -> float:
        """A number that is finite, or written as ``.inf`` or ``.nan``."""
        _refuse_long(node)
        value = float(self.construct_yaml_float(node))
        if math.isinf(value) and "inf" not in node.value.lower():
            raise yaml.constructor.ConstructorError(
                None, None, f"the number {node.value[:40]} is too large", node.start_mark
            )
        return value


MOST_DIGITS = 4300
"""Of a number, as in Python: ``1:59:59:...`` to the base 60 takes time by their square."""


def _refuse_long(node: Any) -> None:
    if len(node.value) > MOST_DIGITS:
        words = f"a number has more than {MOST_DIGITS} characters"
        raise yaml.constructor.ConstructorError(None, None, words, node.start_mark)


_TAG = "tag:yaml.org,2002:"
for _name in ("timestamp", "binary", "set", "omap", "pairs"):
    _OnceLoader.add_constructor(_TAG + _name, _OnceLoader.other)
_OnceLoader.add_constructor(f"{_TAG}int", _OnceLoader.whole)
_OnceLoader.add_constructor(f"{_TAG}float", _OnceLoader.number)
_OnceLoader.yaml_implicit_resolvers = {  # dates are text
    first: [(tag, pattern) for tag, pattern in some if tag != f"{_TAG}timestamp"]
    for first, some in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _within(data: Any, loc: Location, kind: str) -> Location:
    """`loc` without the names that pydantic gives to the types of a union."""
    kept, here = list[int | str](), data
    for part in loc:
        inside = isinstance(here, Mapping) and part in here
        inside = inside or (isinstance(here, list) and isinstance(part, int) and part < len(here))
        if inside:
            here = here[part]
        if inside or (kind == "missing" and part == loc[-1]):
            kept.append(part)
    return tuple(kept)


def _inner(model: type[BaseModel], loc: Location) -> type[BaseModel]:
    """The model that holds the field at `loc`."""
    here = model
    for part in loc[:-1]:
        named = {f.alias or n: f for n, f in here.model_fields.items()}
        if part not in named:  # a place in a list, or a key of a mapping
            continue
        found = [a for a in _leaves(named[part].annotation) if issubclass(a, BaseModel)]
        here = found[0] if found else here
    return here


def _leaves(annotation: Any) -> list[type]:
    inner = [leaf for arg in get_args(annotation) for leaf in _leaves(arg)]
    return inner or ([annotation] if isinstance(annotation, type) else [])


def _refusal(error: Any, place: str, hint: str) -> InputError:
    """A pydantic error as an `InputError`."""
    cause = (error.get("ctx") or {}).get("error")
    if isinstance(cause, RefusedError):
        own = cause.error
        return InputError(own.what, where=place, by=own.by, hint=own.hint)
    if error["type"] == "missing":
        return InputError("is missing", where=place, hint=hint)
    what = str(error["msg"]).replace("Input should be", "must be").replace("valid tuple", "list")
    whole = isinstance(error["input"], dict | list | tuple)
    if error["loc"] == ("schema_version",):
        hint = "read it with the release that wrote it, or write it again"
    return InputError(
        what, where=place, by="" if whole else f"got {error['input']!r}"[:120], hint=hint
    )


def _line(text: str, loc: Location) -> str:
    """``, line 3``: where in the YAML source the field stands."""
    node = yaml.compose(text, Loader=yaml.SafeLoader) if text else None
    if node is None:
        return ""
    line = node.start_mark.line
    for part in loc:
        inner = _child(node, part)
        if inner is None:
            break
        node, line = inner, inner.start_mark.line
    return f", line {line + 1}"


def _child(node: Any, part: int | str) -> Any:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return node.value[part] if part < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def data_of_pickle(pickled: bytes) -> Any:
    """The texts, numbers, lists and mappings of a pickle.

    Raises `pickle.UnpicklingError`: it names something else, which could do anything.
    """
    return _DataUnpickler(BytesIO(pickled)).load()


class _DataUnpickler(pickle.Unpickler):
    """Makes texts, numbers, lists and mappings."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Raise."""
        raise pickle.UnpicklingError(f"a pickle has {module[:40]}.{name[:40]}, which is no data")
