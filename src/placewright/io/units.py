"""Quantities with units as text: ``10GiB``, ``25Gbps``, ``12us``, ``1.5TFLOPS``, ``20GB/s``.

Decimal arithmetic, so that ``0.2ms`` is exactly the float 0.0002 and what is written is read
back equal. A bare number is in the base unit. Bits and bytes differ by the case of one letter,
so units are matched letter by letter, and an error offers the nearest unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches

from placewright.errors import InputError


@dataclass(frozen=True, slots=True)
class Quantity:
    """A physical quantity and its units.

    Attributes
    ----------
    name
        Its name in messages.
    units
        Unit -> its size in base units; the base unit comes first.
    example
        A correct value, for messages.
    shown
        The units of `show`, rising.
    """

    name: str
    units: Mapping[str, Decimal]
    example: str
    shown: tuple[str, ...]

    @property
    def base(self) -> str:
        """The unit of a bare number."""
        return next(iter(self.units))


def _scaled(unit: str, prefixes: str, step: str = "1000") -> dict[str, Decimal]:
    """``{"kB": 1000, "MB": 1000000, ...}``."""
    return {f"{p}{unit}": Decimal(step) ** k for k, p in enumerate(prefixes.split(), start=1)}


_BYTES = {
    "B": Decimal(1),
    **_scaled("B", "k M G T P"),
    **_scaled("iB", "K M G T P", "1024"),
    "KB": Decimal(1000),
}
_BITS = {"bps": Decimal(1), **_scaled("bps", "k M G T")}
_FLOPS = {"FLOPS": Decimal(1), **_scaled("FLOPS", "k M G T P")}
_TIME = {"s": "1", "ms": "1e-3", "us": "1e-6", "µs": "1e-6", "μs": "1e-6", "ns": "1e-9"}

BYTES = Quantity("size", _BYTES, "2GiB", ("B", "KiB", "MiB", "GiB", "TiB"))
BANDWIDTH = Quantity(
    "bandwidth",
    {
        **{f"{unit}/s": size for unit, size in _BYTES.items()},
        **{unit: size / 8 for unit, size in _BITS.items()},
        **{unit.replace("bps", "bit/s"): size / 8 for unit, size in _BITS.items()},
    },
    "25Gbps",
    ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"),
)
SECONDS = Quantity(
    "time",
    {**{unit: Decimal(size) for unit, size in _TIME.items()}, "min": Decimal(60)},
    "12us",
    ("ns", "us", "ms", "s"),
)
FLOPS = Quantity(
    "speed",
    {**_FLOPS, **{unit.replace("FLOPS", "FLOP/s"): size for unit, size in _FLOPS.items()}},
    "1.5TFLOPS",
    ("FLOPS", "kFLOPS", "MFLOPS", "GFLOPS", "TFLOPS", "PFLOPS"),
)

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")


def parse(value: object, quantity: Quantity, *, where: str = "") -> float:
    """`value` in the base unit.

    Raises `InputError`: not a number, NaN, negative, or an unknown unit.

    `value`: a text such as ``"10GiB"``, or a number in the base unit.
    `where`: file and field, for the message.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _checked(float(Decimal(value)), value, quantity, where)  # of any size
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InputError(
            f"{value!r} is not a {quantity.name}", where=where, hint=_hint("", quantity)
        )
    number, unit = match.groups()
    if unit and unit not in quantity.units:
        raise InputError(
            f"{unit!r} is not a unit of {quantity.name}",
            where=where,
            by=f"got {value!r}",
            hint=_hint(unit, quantity),
        )
    try:
        exact = float(Decimal(number) * quantity.units[unit or quantity.base])
    except ArithmeticError:  # an exponent beyond what decimals hold
        raise InputError(f"{value!r} is out of range for a {quantity.name}", where=where) from None
    return _checked(exact, value, quantity, where)


def write(value: float, quantity: Quantity) -> str:
    """The shortest text that `parse` reads back as exactly `value`."""
    if math.isinf(value):
        raise InputError(f"an infinite {quantity.name} is written by leaving it out")
    exact = Decimal(repr(value))
    texts = [f"{_plain(exact / size)}{unit}" for unit, size in quantity.units.items()]
    faithful = [text for text in texts if parse(text, quantity) == value]
    return min(faithful, key=lambda text: (len(text), "." in text))


def show(value: float, quantity: Quantity, digits: int = 3) -> str:
    """`value` rounded, with a suitable unit, ``-`` where unlimited."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return f"0 {quantity.base}"
    fitting = [u for u in quantity.shown if float(quantity.units[u]) <= abs(value) * 1.0005]
    unit = fitting[-1] if fitting else quantity.shown[0]
    number = value / float(quantity.units[unit])
    whole = len(f"{abs(number):.0f}") >= digits
    return f"{number:.0f} {unit}" if whole else f"{number:.{digits}g} {unit}"


def _checked(number: float, value: object, quantity: Quantity, where: str) -> float:
    if math.isnan(number) or number < 0:
        raise InputError(
            f"a {quantity.name} must be a number >= 0",
            where=where,
            by=f"got {value!r}",
            hint=f"write it like {quantity.example}",
        )
    return number


def _plain(number: Decimal) -> str:
    """Digits without a trailing ``.0``; exponents only where digits would be many."""
    text = format(number.normalize(), "f")
    return text if len(text) <= 20 else str(number.normalize())


def _hint(unit: str, quantity: Quantity) -> str:
    folded = {each.casefold(): each for each in list(quantity.units)[::-1]}
    near = get_close_matches(unit.casefold(), folded, n=1, cutoff=0.4) if unit else []
    offer = f"did you mean {folded[near[0]]!r}? " if near else ""
    return f"{offer}write it like {quantity.example}; units: {', '.join(quantity.units)}"
