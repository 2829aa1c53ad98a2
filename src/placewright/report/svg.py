"""Drawing by hand: tags with everything escaped, short numbers, round ticks."""

from __future__ import annotations

import math
from html import escape

DEVICE_COLOURS = 8
"""The page's style sheet has the classes ``d0`` to ``d7``; further devices start over."""


def tag(name: str, *inside: str, **attributes: object) -> str:
    """One element; attribute values are escaped, `inside` is markup already.

    ``class_`` stands for ``class`` and ``_`` for ``-`` in attribute names.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(inside)}</{name}>" if inside else f"<{name}{written}/>"


def text(value: object) -> str:
    """`value` as text in a page; a hostile name stays a name."""
    return escape(str(value), quote=True)


def label(x: float, y: float, value: object, class_: str = "", anchor: str = "") -> str:
    """A line of text in a drawing."""
    return tag("text", text(value), x=x, y=y, class_=class_ or None, text_anchor=anchor or None)


def drawing(width: float, height: float, *inside: str, title: str) -> str:
    """A drawing that is as wide as the page allows."""
    return tag(
        "svg",
        *inside,
        viewBox=f"0 0 {number(width)} {number(height)}",
        width="100%",
        role="img",
        aria_label=title,
    )


def device_class(device: int) -> str:
    """The colour of a device."""
    return f"d{device % DEVICE_COLOURS}"


def number(value: float) -> str:
    """At most two decimals, no trailing zeros: a page holds thousands of these."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


def ticks(top: float, count: int = 6, low: float = 0.0) -> list[float]:
    """About `count` round values from `low` to `top`."""
    if not low < top < math.inf:
        return [low]
    rough = (top - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-6)
    return [k * step for k in range(first, math.floor(top / step + 1e-6) + 1)]


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else text(value)
