"""Pages of device maps: machines with the layers on them, their bytes, and links between them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from placewright.io.boundary import validate
from placewright.layers.devicemap.files import MapPlanFile, plan_json
from placewright.measurement import Measurement
from placewright.planning.result import Result
from placewright.planning.views import Data, GenericViews, saved_plan_page
from placewright.report.page import device_class, drawing, label, scroll, section, tag, text
from placewright.report.text import plain_table, seconds, size

WIDTH, BAR = 860.0, 420.0
KEY, ROW, HOP, TITLE = 30.0, 74.0, 34.0, 26.0
"""Heights of the key, a device, a link and a machine's name."""

KINDS = (("weights", 0.9), ("KV caches", 0.55), ("workspace", 0.3))
"""What is held, and how strongly it is drawn."""


def times(plan: Data) -> str:
    """Predicted times in a sentence."""
    rate = plan["tokens_per_s"]
    return (
        f"{_number(plan['token_s'])} per token of one stream, "
        f"{'-' if rate is None else f'{rate:.4g}'} tokens/s of all users, "
        f"first token after {_number(plan['first_token_s'])}"
    )


def ranges_table(plan: Data) -> str:
    """A line per device."""
    header = ("device", "layers", "weights", "KV caches", "workspace", "usable", "per token")
    rows = [
        (
            each["device"],
            _layers(each),
            size(each["weight_bytes"] + each["disk_bytes"]),
            size(each["cache_bytes"]),
            size(each["workspace_bytes"]),
            "-" if each["usable_bytes"] is None else size(each["usable_bytes"]),
            seconds(each["token_s"]),
        )
        for each in plan["ranges"]
    ]
    return plain_table(header, rows, "  rrrrr")


def map_section(plan: Data, measured: Data | None = None) -> str:
    """The map as people draw it, and the same as a table.

    `measured`: medians ``token_s`` and ``first_token_s`` of texts that were generated.
    """
    words = f"Predicted: {times(plan)}."
    if measured and measured.get("token_s"):
        first = measured.get("first_token_s")
        words += f" Measured: {seconds(measured['token_s'])} per token of one stream" + (
            f", first token after {seconds(first)}." if first else "."
        )
    table = tag("details", tag("summary", "As a table"), tag("pre", text(ranges_table(plan))))
    return section("Who holds which layers", words, scroll(map_drawing(plan)), table)


def map_drawing(plan: Data) -> str:
    """Machines from top to bottom, as tokens pass them: devices, their memory, links."""
    ranges, hops = plan["ranges"], plan["hops"]
    y, inside = KEY, list[str]()
    drawn = iter(zip_longest(ranges, hops[:-1]))
    for node, own in groupby(ranges, key=lambda each: each["node"]):
        count, top = len(list(own)), y
        y += TITLE
        for k in range(count):
            each, hop = next(drawn)
            inside.append(_device(each, ranges.index(each), y))
            y += ROW
            if hop is not None and k < count - 1:
                inside.append(_hop(hop, y))
                y += HOP
        frame = {"x": 0.5, "y": top, "width": WIDTH - 1, "height": y - top, "rx": 6}
        inside.insert(0, tag("rect", **frame, fill="none", stroke="currentColor", opacity=0.35))
        inside.append(label(12, top + 18, f"machine {node}", "busy"))
        if hop is not None:
            inside.append(_hop(hop, y))
            y += HOP
    if hops:
        back = f"the token goes back to {hops[-1]['target']}: {_number(hops[-1]['token_s'])}"
        inside.append(label(12, y + 20, back, "tick"))
        y += 26
    named = ", then ".join(f"{_layers(each)} on {each['device']}" for each in ranges)
    return drawing(WIDTH, y + 2, *_keys(), *inside, title=f"device map: {named}")


def _keys() -> list[str]:
    """What the parts of a bar are."""
    found, x = list[str](), 12.0
    for name, strength in KINDS:
        found.append(
            tag("rect", x=x, y=6, width=14, height=12, fill_opacity=strength, class_="span")
        )
        found.append(label(x + 20, 16, name, "tick"))
        x += 110
    return [tag("g", *found, class_=device_class(0))]


def _device(each: Data, position: int, y: float) -> str:
    """A device: its name and layers, what it holds of what it may use, and its time."""
    held = (each["weight_bytes"], each["cache_bytes"], each["workspace_bytes"])
    room = max(each["usable_bytes"] or 0.0, sum(held)) or 1.0
    x = WIDTH - BAR - 14
    inside = [
        label(24, y + 22, each["device"], "name"),
        label(24, y + 42, _layers(each), "tick"),
        label(24, y + 60, f"{seconds(each['token_s'])} per token", "tick"),
        tag("rect", x=x, y=y + 8, width=BAR, height=22, fill="none", stroke="currentColor", rx=3),
    ]
    at = x
    for (_, strength), value in zip(KINDS, held, strict=True):
        width = BAR * value / room
        inside.append(
            tag("rect", x=at, y=y + 8, width=width, height=22, fill_opacity=strength, class_="span")
        )
        at += width
    names = (f"{size(value)} {name}" for (name, _), value in zip(KINDS, held, strict=True))
    words = ", ".join(names)
    if each["disk_bytes"]:
        words += f", {size(each['disk_bytes'])} on disk"
    limit = each["usable_bytes"]
    usable = "no limit" if limit is None else f"{size(sum(held))} of {size(limit)} usable"
    inside += [label(x, y + 46, words, "tick"), label(x, y + 63, usable, "tick")]
    return tag("g", *inside, class_=device_class(position))


def _hop(hop: Data, y: float) -> str:
    """An arrow to the next device, with what passes."""
    x = 40.0
    words = f"{size(hop['token_bytes'])} a token, {_number(hop['token_s'])}"
    return tag(
        "g",
        tag("line", x1=x, x2=x, y1=y + 4, y2=y + HOP - 9, stroke="currentColor", stroke_width=1.5),
        tag("path", d=f"M{x - 5:g} {y + HOP - 11:g}h10l-5 8z", fill="currentColor"),
        label(x + 16, y + 21, words, "tick"),
    )


def _whole(data: Data, where: str) -> Data:
    """The plan of a file with what one written by hand may leave out."""
    return validate(MapPlanFile, data, where=where).plan.model_dump()


def _layers(each: Data) -> str:
    counted = str(each["start"]), str(each["end"] - 1)
    first, last = each["layers"] if any(each["layers"]) else counted
    spilled = f", the last {each['from_disk']} from disk" if each["from_disk"] else ""
    return (first if first == last else f"{first} to {last}") + spilled


def _number(value: Any) -> str:
    return "-" if value is None else seconds(value)


class MapViews(GenericViews):
    """How device maps are shown."""

    def summary(self, result: Result, measurement: Measurement | None = None) -> str:
        """Devices with their layers and bytes, and times."""
        plan = plan_json(result.judgement)
        return f"\n{ranges_table(plan)}\n{times(plan)}"

    def sections(self, result: Result) -> Iterator[str]:
        """The usual ones, and the map."""
        yield from super().sections(result)
        yield map_section(plan_json(result.judgement))

    def saved_page(self, kind: str, data: Data, path: Path) -> str:
        """The page of a problem or a plan file."""
        if "plan" not in data:
            return super().saved_page(kind, data, path)
        return saved_plan_page(data, path, kind, [map_section(_whole(data, str(path)))])

    def parts(self, data: Data) -> dict[str, str]:
        """Layers of every device in a saved plan."""
        return {each["device"]: _layers(each) for each in _whole(data, "plan")["ranges"]}


VIEWS = MapViews("s")
