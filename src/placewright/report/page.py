"""The page shell and what is drawn in it: style, heading, facts, sections, legend; SVG.

Every tag escapes its text and attributes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from placewright.version import __version__

_MARK = (
    '<svg viewBox="0 0 20 20" aria-hidden="true"><rect x="1" y="2" width="11" height="4" rx="1.4" '
    'style="fill:var(--c0)"/><rect x="5" y="8" width="14" height="4" rx="1.4" '
    'style="fill:var(--c1)"/><rect x="3" y="14" width="9" height="4" rx="1.4" '
    'style="fill:var(--c2)"/></svg>'
)


DRAWN = ("timeline", "explorer")
"""Scripts of drawings: an element names the one that it needs in ``data-script``."""


def html_page(title: str, *body: str) -> str:
    """A whole self-contained page; nothing in it asks the network for anything."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)}</title><style>{_part('style.css')}</style></head>"
        f'<body class="pw"><main>{"".join(body)}{_footer()}</main><div id="tip"></div>'
        f"{''.join(f'<script>{_part(name)}</script>' for name in scripts(*body))}</body></html>\n"
    )


def svg_file(drawn: str) -> str:
    """A drawing as a file of its own, with its style and on the page's background."""
    head, rest = drawn.split(">", 1)
    width, height = head.split('viewBox="0 0 ')[1].split('"')[0].split()
    xmlns = 'xmlns="http://www.w3.org/2000/svg" class="pw"'
    head = head.replace("<svg ", f"<svg {xmlns} ", 1).replace('width="100%"', f'width="{width}"')
    ground = tag("rect", width=width, height=height, style="fill:var(--bg)")
    return f"{head}><style>{_part('style.css')}</style>{ground}{rest}\n"


def scripts(*body: str) -> tuple[str, ...]:
    """Files of this folder that a page with these parts runs, in order."""
    drawn = [name for name in DRAWN if any(f'data-script="{name}"' in part for part in body)]
    return ("page.js", *(f"{name}.js" for name in drawn))


def html_fragment(*body: str) -> str:
    """A part of a page for a notebook, which runs no scripts; its style stays inside."""
    shown = _DATA.sub("", "".join(body))
    return f'<div class="pw"><style>{_part("style.css")}</style>{shown}</div>'


def heading(name: str, subtitle: str, verdict: str = "") -> str:
    """Brand, subtitle, title and the verdict (markup)."""
    brand = tag("div", _MARK, f"Placewright · {text(subtitle)}", class_="brand")
    line = tag("p", verdict, class_="verdict") if verdict else ""
    return brand + tag("h1", text(name)) + line


def facts(entries: Iterable[tuple[str, str, str]]) -> str:
    """Numbers in a row: name, value, and ``lead`` or ``good`` or nothing."""
    cells = [
        tag("div", tag("span", text(k)), tag("b", text(v)), class_=f"fact {style}".strip())
        for k, v, style in entries
    ]
    return tag("div", *cells, class_="facts")


def section(title: str, subtitle: str, *body: str) -> str:
    """A card."""
    lead = tag("p", text(subtitle)) if subtitle else ""
    return tag("section", tag("h2", text(title)), lead, *body)


def legend(names: Iterable[str], remarks: Iterable[str]) -> str:
    """A chip per device in its colour; pressed, it shows that device alone."""
    chips = [
        tag(
            "button",
            tag("i", ""),
            text(name),
            tag("em", text(remark)) if remark else "",
            class_=f"chip {device_class(k)}",
            type="button",
            aria_pressed="false",
            data_chip=k,
        )
        for k, (name, remark) in enumerate(zip(names, remarks, strict=True))
    ]
    return tag("div", *chips, class_="legend")


def scroll(picture: str) -> str:
    """A picture that scrolls sideways where the window is narrow."""
    return tag("div", picture, class_="scroll", tabindex=0)


def definitions(entries: Mapping[str, str]) -> str:
    """Names and values, one below the other."""
    parts = [tag("dt", text(k)) + tag("dd", text(v) or "-") for k, v in entries.items()]
    return tag("dl", *parts)


def _footer() -> str:
    return tag("footer", f"Placewright {__version__}. Self-contained: no network access.")


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, eq=False)
class Note:
    """A text for each thing that is drawn, shown where it is not empty."""

    name: str
    of: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Each text once, and its index for each thing."""
        index: dict[str, int] = {}
        of = [index.setdefault(entry, len(index)) for entry in self.of]
        return {"name": self.name, "of": of, "values": list(index)}


def data_element(data: Any) -> str:
    """JSON in a script element: ASCII, and nothing in it ends the element or begins another."""
    written = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return tag("script", written, type="application/json")


_DATA = re.compile('<script type="application/json">[^<]*</script>')


def few_digits(value: float, digits: int = 5) -> float | int | None:
    """`value` with so many digits; ``None`` where there is no value."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


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
