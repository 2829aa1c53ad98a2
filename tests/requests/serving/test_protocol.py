"""Requests and answers of the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.requests.serving import tensors
from placewright.requests.serving.protocol import LENGTH, Needs, read_request, write_answer
from placewright.requests.serving.tensors import (
    NUMPY,
    TensorSpec,
    from_bytes,
    from_json,
    from_strings,
    to_bytes,
)
from placewright.web.refusals import Refusal

SPECS = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("k", "INT8", (-1,)))
OUT = (TensorSpec("y", "FP32", (-1, 2)),)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


def read(body: bytes, **headers: str) -> Any:
    """Read a body; names of headers with underscores."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    limits: dict[str, Any] = {"deadline_s": 1.0, "most_rows": 8, "most_bytes": 1 << 16}
    return asyncio.run(read_request(body, names, SPECS, OUT, **limits))


def array_of(spec: TensorSpec, rows: int, data: object) -> Any:
    """The tensor of JSON data."""
    shape = (rows, *spec.shape[1:])
    if spec.datatype == "BYTES":
        return from_strings(spec, shape, data)
    return asyncio.run(from_json(spec, shape, json.dumps(data).encode()))


def status_of(request: dict[str, object]) -> int:
    """Status of a request that is read or refused."""
    try:
        read(json.dumps(request).encode())
    except Refusal as refusal:
        return refusal.status
    return 200


def document(**changes: object) -> dict[str, object]:
    """A right request of two rows, with some fields changed."""
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2.5], [3, 4]]},
        {"name": "k", "datatype": "INT8", "shape": [2], "data": [5, -6]},
    ]
    return {"id": "7", "inputs": inputs} | changes


def test_json_request() -> None:
    """Nested data become arrays; what is not given has its default."""
    request = read(json.dumps(document()).encode())
    assert request.id == "7"
    assert len(request.inputs[0]) == 2
    assert request.inputs[0].tolist() == [[1, 2.5], [3, 4]]
    assert request.inputs[1].tolist() == [5, -6]
    assert request.inputs[1].dtype == np.int8
    assert request.needs == Needs(1.0)
    assert request.outputs == (("y", False),)


def test_binary_request_and_answer() -> None:
    """Raw data follow the JSON, in the order of the inputs, and come back the same way."""
    x, k = np.array([[1, 2]], "<f4"), np.array([3], "i1")
    entries = [
        {"name": "k", "datatype": "INT8", "shape": [1], "parameters": {"binary_data_size": 1}},
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
    ]
    head = json.dumps(
        {"inputs": entries, "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    ).encode()
    body = gzip.compress(head + k.tobytes() + x.tobytes())
    request = read(body, inference_header_content_length=str(len(head)), content_encoding="gzip")
    assert request.inputs[0].tolist() == [[1, 2]]
    assert request.inputs[1].tolist() == [3]
    writing = write_answer(lambda: {"model_name": "m"}, request, OUT, [2 * request.inputs[0]])
    answer, length = asyncio.run(writing)
    assert length is not None
    assert json.loads(answer[:length])["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert np.frombuffer(answer[length:], "<f4").tolist() == [2, 4]


@pytest.mark.parametrize(
    ("parameters", "headers", "deadline_s"),
    [
        ({"deadline_ms": 20}, {}, 0.02),
        ({"timeout": 5000}, {}, 0.005),
        ({}, {"x_request_timeout_seconds": "0.5"}, 0.5),
        ({}, {"x_slo_ttft_ms": "30"}, 0.03),
        ({}, {"x_slo_deadline_ms": "10", "x_slo_ttft_ms": "30"}, 0.01),
        ({"deadline_ms": 20}, {"x_request_timeout_seconds": "0.5"}, 0.02),
    ],
)
def test_deadlines(
    parameters: dict[str, object], headers: dict[str, str], deadline_s: float
) -> None:
    """Parameters come before headers, and the header of this server before those of others."""
    request = read(json.dumps(document(parameters=parameters)).encode(), **headers)
    assert request.needs.deadline_s == pytest.approx(deadline_s)


def test_needs_of_headers_and_parameters() -> None:
    """Accuracy and sensitivities are read from both."""
    body = json.dumps(document(parameters={"min_accuracy": 0.8})).encode()
    request = read(body, x_slo_min_accuracy="0.1", x_slo_time_sensitivity="1")
    assert request.needs == Needs(1.0, 0.8, 1.0, 0.5)


@pytest.mark.parametrize(
    ("parameters", "headers", "says"),
    [
        ({"deadline": 20}, {}, "did you mean 'deadline_ms'"),
        ({"min_acuracy": 0.9}, {}, "did you mean 'min_accuracy'"),
        ({"sequence_id": 3}, {}, "unknown parameter 'sequence_id'"),
        ({}, {"x_slo_deadline": "20"}, "did you mean 'x-slo-deadline-ms'"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    parameters: dict[str, object], headers: dict[str, str], says: str
) -> None:
    """A request with a misspelt deadline waited as long as one without."""
    with pytest.raises(Refusal, match=says):
        read(json.dumps(document(parameters=parameters)).encode(), **headers)
    read(json.dumps(document(parameters={"binary_data_output": True})).encode(), x_slo_tpot_ms="9")


BAD = [
    b"",
    b"{",
    b"[1]",
    b'{"inputs": 3}',
    b'{"inputs": []}',
    b"\xff\xfe",
    b'{"inputs": NaN}',
    b"[" * 100_000,
    json.dumps(document(id=3)).encode(),
    json.dumps(document(parameters=[1])).encode(),
    json.dumps(document(parameters={"deadline_ms": 0})).encode(),
    json.dumps(document(parameters={"deadline_ms": "soon"})).encode(),
    json.dumps(document(parameters={"deadline_ms": True})).encode(),
    json.dumps(document(parameters={"deadline_ms": 10**400})).encode(),
    json.dumps(document(parameters={"min_accuracy": 1.5})).encode(),
    json.dumps(document(outputs=[{"name": "z"}])).encode(),
    json.dumps(document(outputs=[{"name": ["y"]}])).encode(),
    json.dumps(document(outputs=7)).encode(),
    *(
        json.dumps(document(outputs=[{"name": "y", "parameters": options}])).encode()
        for options in ({"binary_data": 1}, {"shared_memory_region": "r"}, {"classification": 2})
    ),
    json.dumps(document(parameters={"binary_data_output": "true"})).encode(),
]


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_malformed(body: bytes) -> None:
    """Each is refused with 400 and a reason."""
    with pytest.raises(Refusal) as caught:
        read(body)
    assert caught.value.status == 400
    assert caught.value.reason


@given(JSON_VALUES, st.sampled_from(["inputs", "outputs", "parameters", "id"]))
def test_any_json_is_read_or_refused(value: object, key: str) -> None:
    """No JSON raises anything but a refusal."""
    assert status_of(document(**{key: value})) in (200, 400)


@given(JSON_VALUES, st.sampled_from(["name", "datatype", "shape", "data", "parameters"]))
def test_any_input_is_read_or_refused(value: object, key: str) -> None:
    """Neither does an input with one wrong field."""
    wrong = document()
    wrong["inputs"][0][key] = value  # type: ignore[index]
    assert status_of(wrong) in (200, 400)


@given(st.binary(max_size=60), st.text(max_size=8), st.sampled_from(["", "gzip", "deflate", "br"]))
def test_any_bytes_are_refused(body: bytes, length: str, encoding: str) -> None:
    """No body of noise raises anything but a refusal of the client's fault."""
    with pytest.raises(Refusal) as caught:
        read(body, **{LENGTH.replace("-", "_"): length, "content_encoding": encoding})
    assert 400 <= caught.value.status < 500


def test_decompression_stops_at_the_limit() -> None:
    """A small body that becomes large is refused before it is unpacked."""
    with pytest.raises(Refusal) as caught:
        read(gzip.compress(b" " * (1 << 20)), content_encoding="gzip")
    assert caught.value.status == 413
    for whole in (gzip.compress(body) for body in (b"{}", json.dumps(document()).encode())):
        with pytest.raises(Refusal, match="more behind its end"):
            read(whole + gzip.compress(b"{}"), content_encoding="gzip")


@pytest.mark.parametrize("datatype", NUMPY)
def test_every_datatype_both_ways(datatype: str) -> None:
    """JSON and raw data of the same values give the same array."""
    spec = TensorSpec("t", datatype, (-1, 2))
    values = np.array([[0, 1], [1, 0]], NUMPY[datatype])
    if datatype == "BYTES":
        values = np.array([["", "\u00e4b"], ["c" * 300, "d"]], object)
    raw = from_bytes(spec, (2, 2), to_bytes(values))
    assert np.array_equal(array_of(spec, 2, values.tolist()), raw)
    assert raw.dtype == values.dtype


@pytest.mark.parametrize(
    "data",
    [["a"], ["a", 1], [["a"], ["b"]], "ab", None, [["a", "b"], []], ["a", "\ud800"]],
)
def test_strings_of_another_kind_or_number_are_refused(data: object) -> None:
    """Also where raw data are cut, too long, or no UTF-8."""
    spec, one = TensorSpec("t", "BYTES", (-1, 2)), b"\1\0\0\0a"
    with pytest.raises(Refusal, match="2 strings"):
        array_of(spec, 1, data)
    for raw in (one, 3 * one, one + one[:-1], one + b"\1\0\0\0\xff", one + b"\xff" * 4):
        with pytest.raises(Refusal, match="2 strings"):
            from_bytes(spec, (1, 2), raw)


def read_texts(texts: list[str]) -> Any:
    """Read a request of these strings, in JSON."""
    entry = {"name": "t", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    body, spec = json.dumps({"inputs": [entry]}).encode(), TensorSpec("t", "BYTES", (-1,))
    limits: dict[str, Any] = {"deadline_s": 1.0, "most_rows": 8, "most_bytes": 1 << 24}
    return asyncio.run(read_request(body, {}, [spec], OUT, **limits)).inputs[0].tolist()


def test_half_a_pair_of_surrogates_is_no_text() -> None:
    """JSON can say one, and no server could be sent it: it never did another batch."""
    assert read_texts(["\U0001f389", "a"]) == ["\U0001f389", "a"]
    with pytest.raises(Refusal, match="1 strings of UTF-8"):
        read_texts(["\ud83c"])


def test_longer_texts_in_json_than_other_parts_of_a_request() -> None:
    """Up to a limit that is said as what it is."""
    texts = ["word " * 20_000] * 8
    assert read_texts(texts) == texts
    with pytest.raises(Refusal, match="1048576 bytes: send strings as binary data"):
        read_texts(["word " * 40_000] * 8)


@pytest.mark.parametrize(
    "data",
    [[300, 0], [0.5, 1], ["1", "2"], [1], [[1, 2], [3]], None, [-129, 0], [True, 1], [[1], [2]]],
)
def test_values_that_do_not_fit_are_refused(data: object) -> None:
    """Out of range, another kind, another number: never wrapped or rounded."""
    with pytest.raises(Refusal):
        array_of(TensorSpec("t", "INT8", (-1, 2)), 1, data)


@given(st.sampled_from([(1,), (2, 3), (2, 1, 4)]), st.integers(1, 9), st.booleans(), st.data())
def test_data_read_in_pieces_are_what_json_says(
    shape: tuple[int, ...], piece: int, flat: bool, data: st.DataObject
) -> None:
    """However short the pieces are; and a text that is no JSON is refused wherever it is cut."""
    count = int(np.prod(shape))
    spec = TensorSpec("t", "FP64", (-1, *shape[1:]))
    values = data.draw(
        st.lists(st.integers(-99, 99) | st.floats(-9, 9), min_size=count, max_size=count)
    )
    right = np.array(values, np.float64).reshape(shape)
    text = json.dumps(values if flat else right.tolist(), indent=data.draw(st.none() | st.just(1)))
    place = data.draw(st.integers(0, len(text)))
    wrong = text[:place] + data.draw(st.sampled_from("[],1 -.e")) + text[place:]
    try:
        other: Any = np.array(json.loads(wrong))
        if other.shape not in (shape, (count,)) or not np.isfinite(other).all():
            other = None
    except ValueError:
        other = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "PIECE_BYTES", piece + 40)
        assert asyncio.run(from_json(spec, shape, text.encode())).tolist() == right.tolist()
        if other is not None:
            found = asyncio.run(from_json(spec, shape, wrong.encode()))
            assert found.reshape(-1).tolist() == other.reshape(-1).tolist()
            return
        with pytest.raises(Refusal):
            asyncio.run(from_json(spec, shape, wrong.encode()))


def test_one_long_string_among_short_ones_becomes_no_array() -> None:
    """As an array of strings it would have a gigabyte for every megabyte of the request."""
    wrong = document()
    wrong["inputs"][0]["data"] = ["x" * 1_000_000, *["y"] * 3000]  # type: ignore[index]
    body = json.dumps(wrong).encode()
    tracemalloc.start()
    with pytest.raises(Refusal):
        asyncio.run(read_request(body, {}, SPECS, OUT, deadline_s=1, most_rows=8, most_bytes=1))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b",".join([b"[]"] * 2_000_000) + b"]",
        b'{"inputs": [' + b",".join([b"[]"] * 2_000_000) + b"]}",
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": ['
        + b",".join([b"[]"] * 2_000_000)
        + b"]}]}",
    ],
    ids=["list", "inputs", "data"],
)
def test_python_parses_no_long_text_at_once(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes of lists would block all other clients for seconds."""
    longest, loads, decode = [0], json.loads, json.JSONDecoder.decode

    def watched_loads(value: bytes, **options: Any) -> Any:
        longest[0] = max(longest[0], len(value))
        return loads(value, **options)

    def watched_decode(self: json.JSONDecoder, value: str, *rest: Any) -> Any:
        longest[0] = max(longest[0], len(value))
        return decode(self, value, *rest)

    monkeypatch.setattr(json, "loads", watched_loads)
    monkeypatch.setattr(json.JSONDecoder, "decode", watched_decode)
    with pytest.raises(Refusal):
        read(text)
    assert longest[0] <= 1 << 17


@pytest.mark.parametrize(
    ("datatype", "number"),
    [("FP16", "70000"), ("FP16", "-65520"), ("FP32", "1e39"), ("FP64", "1e999"), ("FP32", "1e999")],
)
def test_numbers_too_large_for_their_type_are_refused(datatype: str, number: str) -> None:
    """They would be infinite, which JSON cannot say."""
    spec = TensorSpec("t", datatype, (-1, 2))
    with pytest.raises(Refusal, match=f"2 values of {datatype}"):
        asyncio.run(from_json(spec, (1, 2), f"[1, {number}]".encode()))
    assert np.isfinite(asyncio.run(from_json(spec, (1, 2), b"[1, 65504]"))).all()
