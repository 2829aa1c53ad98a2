"""The page shell and what is drawn in it: style, headings, facts, sections, legends, charts; SVG.

Every tag escapes its text and attributes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def drawing(width: float, height: float, *inside: str, title: str, class_: str = "") -> str:
    """A drawing that is as wide as the page allows; of a class, no wider than it is."""
    own = {"class_": class_, "height": height} if class_ else {}
    return tag(
        "svg",
        *inside,
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width if class_ else "100%",
        **own,
        role="img",
        aria_label=title,
    )


def device_class(device: int) -> str:
    """The colour of a device."""
    return f"d{device % DEVICE_COLOURS}"


def number(value: float) -> str:
    """At most two decimals, no trailing zeros: a page holds thousands of these."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


_TINY = 1e-300


def ticks(top: float, count: int = 6, low: float = 0.0) -> list[float]:
    """About `count` round values from `low` to `top`."""
    rough = (top - low) / count
    if not _TINY < rough < math.inf:  # of parts of the smallest numbers nothing is round
        return [low]
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-6)
    return [k * step for k in range(first, math.floor(top / step + 1e-6) + 1)]


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else text(value)


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1100.0, 300.0, 64.0, 40.0, 34.0, 40.0
LETTER, MARK = 7.5, 12.0
"""Widths of the legend: of a letter on average, of the colour before a name."""


@dataclass(frozen=True, slots=True)
class Line:
    """A named line.

    Attributes
    ----------
    points
        In the order in which they are joined.
    tips
        What a point shows under the pointer; its coordinates where there are none.
    """

    name: str
    points: Sequence[tuple[float, float]]
    tips: Sequence[str] = ()


def line_chart(
    lines: Sequence[Line],
    across: str,
    up: str,
    *,
    from_zero: bool = False,
    across_text: Callable[[float], str] = "{:g}".format,
    aim: tuple[float, str] | None = None,
) -> str:
    """The chart as SVG.

    `across`, `up`: what the axes show.
    `from_zero`: both axes begin at zero, not at the smallest value.
    `across_text`: how a value of the horizontal axis is written.
    `aim`: a height with its text, drawn as a dashed line.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return tag("p", "Nothing to draw yet.")
    heights = [y for _, y in points] + ([aim[0]] if aim is not None else [])
    frame = _Frame(_range([x for x, _ in points], from_zero), _range(heights, from_zero))
    parts = [*frame.axes(across_text), *_names(across, up), *_legend([line.name for line in lines])]
    if aim is not None:
        y = frame.y(aim[0])
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="capacity"))
        parts.append(label(LEFT + 6, y - 4, aim[1], "tick"))
    parts += [_line(line, k, frame) for k, line in enumerate(lines)]
    return drawing(WIDTH, HEIGHT, *parts, title=f"{up} over {across}")


def _range(values: Sequence[float], from_zero: bool) -> tuple[float, float]:
    """A little more than the values; never empty."""
    low, high = 0.0 if from_zero else min(values), max(values)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (low if from_zero else low - room), high + room


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values are in the drawing."""

    across: tuple[float, float]
    up: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.across
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.up
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    def axes(self, across_text: Callable[[float], str]) -> list[str]:
        found = []
        for value in ticks(self.up[1], low=self.up[0]):
            y = self.y(value)
            found.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            found.append(label(LEFT - 6, y + 4, f"{value:g}", "tick", "end"))
        for value in ticks(self.across[1], 8, low=self.across[0]):
            at = across_text(value)
            found.append(label(self.x(value), HEIGHT - BOTTOM + 16, at, "tick", "middle"))
        return found


def _names(across: str, up: str) -> list[str]:
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    return [label(0.0, 14.0, up, "tick"), label(middle, HEIGHT - 6, across, "tick", "middle")]


def _legend(names: Sequence[str]) -> list[str]:
    found, x = [], WIDTH - RIGHT - sum(MARK + 18 + LETTER * len(name) for name in names)
    for k, name in enumerate(names):
        box = tag("rect", x=x, y=5.0, width=MARK, height=MARK, rx=3, class_="span")
        found.append(tag("g", box, class_=device_class(k)))
        found.append(label(x + MARK + 6, 15.0, name, "name"))
        x += MARK + 18 + LETTER * len(name)
    return found


def _line(line: Line, colour: int, frame: _Frame) -> str:
    if not line.points:
        return ""
    places = [(frame.x(x), frame.y(y)) for x, y in line.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    drawn = tag("path", d=path, style="fill:none;stroke:var(--c);stroke-width:2")
    tips = line.tips or [f"{line.name}\n{x:g}: {y:.5g}" for x, y in line.points]
    dots = [
        tag("circle", cx=x, cy=y, r=3.5, class_="span", data_tip=tip)
        for (x, y), tip in zip(places, tips, strict=True)
    ]
    return tag("g", drawn, *dots, class_=device_class(colour), data_device=colour)
