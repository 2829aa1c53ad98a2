"""Parsing and formatting of quantities with units."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.errors import InputError
from placewright.io.units import BANDWIDTH, BYTES, FLOPS, SECONDS, parse, show, write

QUANTITIES = (BYTES, BANDWIDTH, SECONDS, FLOPS)


@pytest.mark.parametrize(
    ("text", "quantity", "value"),
    [
        ("10GiB", BYTES, 10 * 2**30),
        ("1.5 kB", BYTES, 1500.0),
        ("25Gbps", BANDWIDTH, 25e9 / 8),
        ("25 Gbit/s", BANDWIDTH, 25e9 / 8),
        ("20GB/s", BANDWIDTH, 20e9),
        ("12us", SECONDS, 12e-6),
        ("12µs", SECONDS, 12e-6),
        ("0.2ms", SECONDS, 0.0002),
        ("1.5TFLOPS", FLOPS, 1.5e12),
        ("3e9", BYTES, 3e9),
        (4096, BYTES, 4096.0),
        ("0.1ms", SECONDS, 0.0001),
        (10**400, SECONDS, math.inf),
    ],
)
def test_reads_what_people_write(text: object, quantity: object, value: float) -> None:
    """Every unit means exactly what it says, to the last bit."""
    assert parse(text, quantity) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "quantity", "message"),
    [
        ("10Gib", BYTES, "did you mean 'GiB'"),
        ("1Gbit", BANDWIDTH, "did you mean 'Gbit/s'"),
        ("10 gbit", BANDWIDTH, "did you mean 'Gbit/s'"),
        ("12 parsecs", SECONDS, "write it like 12us"),
        ("-1GiB", BYTES, "got '-1GiB'"),
        (float("nan"), BYTES, "got nan"),
        (True, BYTES, "True is not a size"),
        ("fast", BANDWIDTH, "'fast' is not a bandwidth"),
        (None, SECONDS, "None is not a time"),
        ("1e1000000GiB", BYTES, "out of range"),
    ],
)
def test_says_what_is_wrong_and_how_to_write_it(
    text: object, quantity: object, message: str
) -> None:
    """A wrong quantity is refused with the place and the nearest unit."""
    with pytest.raises(InputError) as caught:
        parse(text, quantity, where="c.yaml: memory")  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert str(caught.value).startswith("c.yaml: memory: ")


@given(st.floats(min_value=0, max_value=1e18), st.sampled_from(QUANTITIES))
def test_written_is_read_back_equal(value: float, quantity: object) -> None:
    """`write` loses nothing."""
    assert parse(write(value, quantity), quantity) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "quantity", "text"),
    [
        (2**31, BYTES, "2GiB"),
        (125e6, BANDWIDTH, "1Gbps"),
        (0.0002, SECONDS, "200us"),
        (19.5e12, FLOPS, "19.5TFLOPS"),
        (0.0, SECONDS, "0s"),
    ],
)
def test_writes_the_shortest_text(value: float, quantity: object, text: str) -> None:
    """A file says ``2GiB``, not ``2147483648B``."""
    assert write(value, quantity) == text  # type: ignore[arg-type]


def test_shows_three_digits_and_a_dash_for_infinity() -> None:
    """People see a short number; unlimited is a dash."""
    assert show(0.0123456, SECONDS) == "12.3 ms"
    assert show(1234.5, SECONDS) == "1234 s"
    assert show(math.inf, BYTES) == "-"
    assert show(0, BYTES) == "0 B"
