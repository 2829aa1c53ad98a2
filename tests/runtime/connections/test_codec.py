"""Encoding and decoding of messages."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.errors import RunError
from placewright.runtime.connections.codec import PLAIN, Codec


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    tags: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Other:
    x: float


CODEC = Codec(Point)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
keys = (
    st.text() | st.integers(-(2**63), 2**64 - 1) | st.tuples(st.integers(0, 9), st.integers(0, 9))
)
messages = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.builds(Point, st.floats(allow_nan=False), st.lists(inner).map(tuple))
    ),
)


@settings(max_examples=50)
@given(messages)
def test_messages_come_back_equal(message: Any) -> None:
    """Of the same types, too: the text of what comes back is that of what was sent."""
    back = CODEC.unpack(CODEC.pack(message))
    assert back == message
    assert repr(back) == repr(message)


def test_lists_come_back_as_tuples() -> None:
    """Wherever they stand."""
    assert CODEC.unpack(CODEC.pack([1, {"a": [2]}, Point(0.0, ([3],))])) == (
        1,
        {"a": (2,)},
        Point(0.0, ((3,),)),
    )


@pytest.mark.parametrize(
    "value", [Other(1.0), object(), {1}, np.array([len]), np.zeros(2, "m8[s]"), len, Point]
)
def test_values_that_are_no_data_are_not_sent(value: Any) -> None:
    """Dataclasses that are not listed, arrays of other than numbers, functions and classes."""
    with pytest.raises(TypeError, match=r"cannot be sent"):
        CODEC.pack(["in", value])


@pytest.mark.parametrize("dtype", ["f8", ">f4", "i8", "u1", "?"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (2, 1, 3)])
def test_arrays_come_back_equal(dtype: str, shape: tuple[int, ...]) -> None:
    """With their types and shapes, and they can be changed."""
    sent = np.random.default_rng(0).uniform(-9, 9, shape).astype(dtype)
    (back,) = CODEC.unpack(CODEC.pack([sent]))
    assert (back.dtype, back.shape) == (sent.dtype, sent.shape)
    assert back.tobytes() == sent.tobytes()
    back[...] = 0


@pytest.mark.parametrize(
    "entry",
    [["|O8", [1], bytes(8)], ["<f8", [2], bytes(8)], ["<f8", [1], bytes(9)], ["<f8", [1]]],
)
def test_an_array_of_objects_or_of_another_size_is_no_message(entry: list[Any]) -> None:
    """Nor one with a part missing."""
    with pytest.raises(RunError, match="cannot be read"):
        PLAIN.unpack(msgpack.packb(msgpack.ExtType(2, msgpack.packb(entry))))


def test_a_dataclass_that_the_reader_does_not_list_is_not_made() -> None:
    """Nor one with another number of fields."""
    sent = Codec(Point, Other).pack(Other(1.0))
    with pytest.raises(RunError, match=r"KeyError.*\n.*same version"):
        CODEC.unpack(sent)
    with pytest.raises(RunError, match="cannot be read"):
        PLAIN.unpack(CODEC.pack(Point(1.0)))
    fewer = sent.replace(b"Other", b"Point").replace(b"\x92", b"\x91")[:-9]
    with pytest.raises(RunError, match="cannot be read"):
        CODEC.unpack(fewer)


@given(st.binary())
def test_anything_else_is_an_error_of_ours(data: bytes) -> None:
    """Whatever the bytes, they are a message or a `RunError`."""
    with suppress(RunError):
        CODEC.unpack(data)


def test_a_pickle_is_no_message() -> None:
    """Of anything, in any protocol."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(RunError, match="cannot be read"):
            CODEC.unpack(pickle.dumps({"verb": "steps"}, protocol))
