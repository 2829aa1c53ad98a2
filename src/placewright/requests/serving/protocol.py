"""Inference requests and answers of the Open Inference Protocol v2 over HTTP.

    body of a request                       header Inference-Header-Content-Length: N
    +-----------------+-----------------+-----------------+
    | JSON, N bytes   | input 0, binary | input 1, binary |     parameters.binary_data_size of each
    +-----------------+-----------------+-----------------+
    without the header the whole body is JSON and tensors stand in "data"; answers likewise

A request says what it needs in ``parameters``, or a client that cannot set them, in headers (the
parameter wins):

    parameter               header                        meaning
    deadline_ms             x-slo-deadline-ms             answer within so long after arrival
    timeout (microseconds)  x-request-timeout-seconds     the same, as for Triton and Ray Serve
                            x-slo-ttft-ms                 the same: one answer has one "token"
    min_accuracy            x-slo-min-accuracy            of the variant that answers, in [0, 1]
    time_sensitivity        x-slo-time-sensitivity        in [0, 1], weighed by some policies
    accuracy_sensitivity    x-slo-accuracy-sensitivity    in [0, 1], weighed by some policies
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from placewright.requests.serving.tensors import (
    PIECE_BYTES,
    Array,
    TensorSpec,
    check_shape,
    from_bytes,
    from_json,
    from_strings,
    no_constant,
    to_bytes,
)
from placewright.web.refusals import Refusal

LENGTH = "inference-header-content-length"
MOST_DEADLINE_S = 3600.0

MOST_REST_BYTES = 1 << 16
"""Of a request's JSON without its tensors' data."""

MOST_STRINGS_BYTES = 1 << 20
"""The same with strings, which are read at once: in some 10 ms at most."""

_DATA = re.compile(rb'"data"\s*:\s*(?=\[)')
"""Before the data of a tensor. In JSON it matches at a key only: a quote within a string follows a
backslash."""

_CUT = f"{secrets.token_hex(8)} "
"""Begins what stands for data in the rest of the JSON; no client knows it."""

_SHARES = (("min_accuracy", 0.0), ("time_sensitivity", 0.5), ("accuracy_sensitivity", 0.5))
"""What a request gives as a number in [0, 1], and what it is where it does not."""

_DEADLINES = (("deadline_ms", 1e-3), ("timeout", 1e-6))
_DEADLINE_HEADERS = (
    ("x-slo-deadline-ms", 1e-3),
    ("x-request-timeout-seconds", 1.0),
    ("x-slo-ttft-ms", 1e-3),
)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a request asks for.

    `deadline_s`: seconds after its arrival.
    `min_accuracy`, `time_sensitivity`, `accuracy_sensitivity`: in [0, 1].
    """

    deadline_s: float
    min_accuracy: float = 0.0
    time_sensitivity: float = 0.5
    accuracy_sensitivity: float = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class InferRequest:
    """A request that was read.

    `inputs`: one array per input of the family, all with the same number of rows, unless they are
    one row as a whole.
    `outputs`: name of each output that is wanted, and whether as binary data.
    """

    id: str
    inputs: tuple[Array, ...]
    needs: Needs
    outputs: tuple[tuple[str, bool], ...]


async def read_request(
    body: bytes,
    headers: Mapping[str, str],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    deadline_s: float,
    most_rows: int,
    most_bytes: int,
    turn: asyncio.Lock | None = None,
) -> InferRequest:
    """Read the body of a POST to ``infer``.

    Raises `Refusal`: 400, 413 or 415, with what is wrong.

    A large body is read in pieces, between which the loop goes on.

    Parameters
    ----------
    headers
        Names in lower case.
    deadline_s
        Of requests that give none.
    most_bytes
        That a compressed body may become.
    turn
        Held while a large body is read: many of them together take no longer between two turns of
        the loop than one.
    """
    encoding = headers.get("content-encoding", "")
    if encoding not in ("", "identity"):
        # In a thread: zlib works without Python's lock.
        body = await asyncio.to_thread(_decompressed, body, encoding, most_bytes)
    async with turn if turn is not None and len(body) > PIECE_BYTES else nullcontext():
        text, binary = _split(body, headers.get(LENGTH))
        strings = any(spec.datatype == "BYTES" for spec in inputs)
        document, data = _parsed(text, len(inputs), strings=strings)
        parameters = _object(document.get("parameters", {}), "parameters")
        name = document.get("id", "")
        if not isinstance(name, str):
            raise Refusal(400, "id must be a string")
        return InferRequest(
            name,
            await _inputs(document.get("inputs"), data, binary, inputs, most_rows),
            _needs(parameters, headers, deadline_s),
            _wanted(document.get("outputs"), parameters, outputs),
        )


async def write_answer(
    head: Callable[[], dict[str, Any]],
    request: InferRequest,
    specs: Sequence[TensorSpec],
    values: Sequence[Array],
) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON where binary data follow.

    `head`: gives everything but ``outputs``, once these are written, which may take long.
    `values`: one array per output of the family.
    Raises `Refusal`: 422: values that are asked for in JSON and that JSON has no word for.
    """
    found = {spec.name: (spec, value) for spec, value in zip(specs, values, strict=True)}
    entries, binary = list[str](), []
    for name, raw in request.outputs:
        spec, value = found[name]
        entry: dict[str, Any] = {
            "name": name,
            "datatype": spec.datatype,
            "shape": list(value.shape),
        }
        if raw:
            data = to_bytes(value)
            entry["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
        else:
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise Refusal(
                    422,
                    f"output {name!r} has NaN or infinite values, which JSON cannot say: ask for "
                    "binary_data",
                    code="not-finite",
                )
        written = _compact(entry)
        entries.append(written if raw else f'{written[:-1]},"data":[{await _numbers(value)}]}}')
    text = f'{_compact(head())[:-1]},"outputs":[{",".join(entries)}]}}'.encode()
    return (b"".join([text, *binary]), len(text)) if binary else (text, None)


def _compact(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


async def _numbers(values: Array) -> str:
    """Numbers in JSON, written in pieces, between which the loop goes on."""
    flat, pieces = values.reshape(-1), list[str]()
    for k in range(0, flat.size, PIECE_BYTES):
        if k:
            await asyncio.sleep(0)
        pieces.append(json.dumps(flat[k : k + PIECE_BYTES].tolist(), separators=(",", ":"))[1:-1])
    return ",".join(pieces)


def _decompressed(body: bytes, encoding: str, most_bytes: int) -> bytes:
    # 16 + MAX_WBITS reads gzip, MAX_WBITS zlib, which HTTP calls deflate.
    kinds = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
    if encoding not in kinds:
        raise Refusal(415, f"Content-Encoding {encoding!r:.50} is not gzip or deflate")
    try:
        reader = zlib.decompressobj(kinds[encoding])
        # Bounded: a small body may hold gigabytes.
        found = reader.decompress(body, most_bytes)
    except zlib.error as error:
        raise Refusal(400, f"the body is no {encoding}: {error}") from None
    if reader.unconsumed_tail:
        raise Refusal(413, f"the body is more than {most_bytes} bytes", code="too-large")
    if not reader.eof or reader.unused_data:
        why = "has more behind its end" if reader.eof else "is cut off"
        raise Refusal(400, f"the {encoding} body {why}")
    return found


def _split(body: bytes, length: str | None) -> tuple[bytes, memoryview]:
    """The JSON, and the binary data behind it."""
    size = len(body)
    if length is not None:
        if not (length.isascii() and length.isdigit() and len(length) < 12):
            raise Refusal(400, f"Inference-Header-Content-Length {length!r:.50} is no length")
        size = int(length)
        if size > len(body):
            raise Refusal(400, f"the JSON has {size} bytes and the body {len(body)}")
    return body[:size], memoryview(body)[size:]


def _parsed(
    text: bytes, most_data: int, *, strings: bool
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The JSON object without its tensors' numbers, and these, each still as text.

    Python parses a text as a whole and lets nobody else go on meanwhile: 16 MB of lists take
    seconds. What is parsed here is short; `from_json` reads the data.
    """
    rest, data, place = list[bytes](), dict[str, bytes](), 0
    for start, end in _data_places(text, most_data):
        name = f"{_CUT}{len(data)}"
        data[name] = text[start:end]
        rest += [text[place:start], json.dumps(name).encode()]
        place = end
    rest.append(text[place:])
    most = MOST_STRINGS_BYTES if strings else MOST_REST_BYTES
    if sum(map(len, rest)) > most:
        hint = ": send strings as binary data" if strings else ""
        raise Refusal(400, f"the JSON without the tensors' numbers is more than {most} bytes{hint}")
    try:
        document = json.loads(b"".join(rest), parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON: {error!s:.200}") from None
    return _object(document, "the body"), data


def _data_places(text: bytes, most: int) -> Iterator[tuple[int, int]]:
    """Where the lists of numbers are; data that hold anything else stay in the rest."""
    place = 0
    for _ in range(most + 1):
        key = _DATA.search(text, place)
        if key is None:
            return
        # Strings and objects are no numbers: a list of numbers ends before the next of them.
        ends = [end for mark in b'"{}' if (end := text.find(mark, key.end())) >= 0]
        place = min(ends, default=len(text))
        end = text.rfind(b"]", key.end(), place) + 1
        if end:
            yield key.end(), end


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refusal(400, f"{what} must be an object")
    return value


async def _inputs(
    entries: object,
    texts: Mapping[str, bytes],
    binary: memoryview,
    specs: Sequence[TensorSpec],
    most_rows: int,
) -> tuple[Array, ...]:
    known = {spec.name: spec for spec in specs}
    if not isinstance(entries, list):
        raise Refusal(400, "inputs must be a list")
    found: dict[str, Array] = {}
    taken = 0
    for entry in entries:
        name = _object(entry, "an input").get("name")
        if not isinstance(name, str) or name not in known or name in found:
            raise Refusal(400, f"inputs must be {sorted(known)}, once each; got {name!r:.100}")
        spec = known[name]
        shape = check_shape(spec, entry.get("datatype"), entry.get("shape"), most_rows)
        options = _object(entry.get("parameters", {}), f"parameters of {name!r}")
        _refuse_shared(options)
        size = options.get("binary_data_size")
        if size is None:
            data = entry.get("data")
            if spec.datatype == "BYTES":
                found[name] = from_strings(spec, shape, data)
                continue
            text = texts.get(data, b"") if isinstance(data, str) else b""
            found[name] = await from_json(spec, shape, text)
            continue
        if type(size) is not int or size < 0 or "data" in entry:
            raise Refusal(400, f"input {name!r} has data, or a binary_data_size of {size!r:.50}")
        found[name] = from_bytes(spec, shape, binary[taken : taken + size])
        taken += size
    if len(found) != len(known):
        raise Refusal(400, f"inputs must be {sorted(known)}; got {sorted(found)}")
    if taken != len(binary):
        raise Refusal(400, f"{len(binary)} bytes of binary data follow, inputs have {taken}")
    arrays = tuple(found[spec.name] for spec in specs)
    rows = {a.shape[0] for a, s in zip(arrays, specs, strict=True) if s.shape and s.shape[0] < 0}
    apart = any(spec.names and spec.names[0] for spec in specs)  # no rows, but a size of its own
    if len(rows) > 1 and not apart:
        raise Refusal(400, "inputs differ in their first dimension")
    return arrays


def _wanted(
    entries: object, parameters: Mapping[str, Any], specs: Sequence[TensorSpec]
) -> tuple[tuple[str, bool], ...]:
    every = _flag("binary_data_output", parameters)
    names = [spec.name for spec in specs]
    if entries is None or entries == []:
        return tuple((name, every) for name in names)
    if not isinstance(entries, list):
        raise Refusal(400, "outputs must be a list")
    wanted: dict[str, bool] = {}
    for entry in entries:
        name = _object(entry, "an output").get("name")
        if name not in names or name in wanted:
            raise Refusal(400, f"outputs are {names}, once each; got {name!r:.100}")
        options = _object(entry.get("parameters", {}), f"parameters of {name!r}")
        if options.get("classification", 0):
            raise Refusal(400, "the classification extension is not served: ask for the tensor")
        _refuse_shared(options)
        wanted[name] = _flag("binary_data", options, usual=every)
    return tuple(wanted.items())


def _refuse_shared(options: Mapping[str, Any]) -> None:
    if "shared_memory_region" in options:
        raise Refusal(400, "shared memory is not served: tensors are in requests and answers")


def _flag(name: str, parameters: Mapping[str, Any], *, usual: bool = False) -> bool:
    """A parameter that is true or false; raises `Refusal`: 400: it is neither."""
    value = parameters.get(name, usual)
    if not isinstance(value, bool):
        raise Refusal(400, f"{name} is {value!r:.50}, not true or false")
    return value


_PARAMETERS = (
    *(name for name, _ in _DEADLINES),
    *(name for name, _ in _SHARES),
    "binary_data_output",
)

_SLO_HEADERS = (
    *(name for name, _ in _DEADLINE_HEADERS if name.startswith("x-slo-")),
    *(f"x-slo-{name.replace('_', '-')}" for name, _ in _SHARES),
    "x-slo-tpot-ms",  # of language models' routers; one answer has one "token"
)


def _refuse_unknown(kind: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Refuse what would have no effect: a deadline that is misspelt would not be kept.

    Raises `Refusal`: 400, with the nearest name.
    """
    for name in names:
        if name not in known:
            near = get_close_matches(name[:100], known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise Refusal(400, f"unknown {kind} {name!r:.100}: {hint}")


def _needs(parameters: Mapping[str, Any], headers: Mapping[str, str], deadline_s: float) -> Needs:
    _refuse_unknown("parameter", parameters, _PARAMETERS)
    _refuse_unknown("header", (n for n in headers if n.startswith("x-slo-")), _SLO_HEADERS)
    shares = {name: _share(name, parameters, headers, usual) for name, usual in _SHARES}
    return Needs(_deadline(parameters, headers, deadline_s), **shares)


def _deadline(parameters: Mapping[str, Any], headers: Mapping[str, str], usual: float) -> float:
    deadlines = [
        *((name, unit, parameters[name]) for name, unit in _DEADLINES if name in parameters),
        *((name, unit, headers[name]) for name, unit in _DEADLINE_HEADERS if name in headers),
    ]
    if not deadlines:
        return usual
    name, unit, value = deadlines[0]
    seconds = _number(name, value) * unit
    if not 0 < seconds <= MOST_DEADLINE_S:
        raise Refusal(
            400, f"{name} is {value!r:.50}, not above 0 and at most {MOST_DEADLINE_S:g} s"
        )
    return seconds


def _share(
    name: str, parameters: Mapping[str, Any], headers: Mapping[str, str], usual: float
) -> float:
    header = "x-slo-" + name.replace("_", "-")
    if name not in parameters and header not in headers:
        return usual
    value = parameters[name] if name in parameters else headers[header]
    number = _number(name, value)
    if not 0 <= number <= 1:
        raise Refusal(400, f"{name} is {value!r:.50}, not in [0, 1]")
    return number


def _number(name: str, value: object) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Refusal(400, f"{name} is {value!r:.50}, not a number")
    return number
