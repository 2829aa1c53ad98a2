"""Pages of clusters: drawn, and their YAML checked while it is written."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from placewright.cluster.cluster import Cluster
from placewright.cluster.devices import Device, Link
from placewright.cluster.drawing import drawn
from placewright.cluster.schema import preset_names, preset_text
from placewright.errors import PlacewrightError, UnknownNameError
from placewright.io.boundary import read_text
from placewright.io.units import BANDWIDTH, FLOPS, show
from placewright.report.text import seconds, size
from placewright.service.app import ErrorParts, Service, clusters
from placewright.service.jobs import parts
from placewright.service.pages import Pages

LONGEST_TEXT = 100_000
"""Characters of a cluster that is checked."""


class ClusterText(BaseModel):
    """A cluster as YAML."""

    text: str = Field(max_length=LONGEST_TEXT)


class ClusterCheck(BaseModel):
    """What was found in a cluster's YAML.

    `line`: where the error is. `drawing`: the cluster as SVG, where there is no error.
    """

    name: str
    devices: int
    links: int
    error: ErrorParts | None
    line: int | None
    drawing: str


def add_clusters(app: FastAPI, service: Service, pages: Pages) -> None:
    """Add pages of clusters, and the route that checks one."""
    router = APIRouter(prefix="/api/v1")

    @router.post("/clusters/check")
    def check_cluster(given: ClusterText) -> ClusterCheck:
        """Check a cluster's YAML and draw it; nothing is stored."""
        try:
            cluster = Cluster.from_text(given.text, where="cluster")
        except PlacewrightError as error:
            found = ErrorParts(**parts(error))
            line = line_of(error, given.text)
            return ClusterCheck(name="", devices=0, links=0, error=found, line=line, drawing="")
        svg = pages.filled("drawing.html", drawing=drawn(cluster))
        count, links = len(cluster.devices), len(cluster.links)
        return ClusterCheck(
            name=cluster.name, devices=count, links=links, error=None, line=None, drawing=svg
        )

    app.include_router(router)
    shown = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

    @shown.get("/clusters")
    def every() -> HTMLResponse:
        return HTMLResponse(pages.filled("clusters.html", clusters=clusters(service)))

    @shown.get("/clusters/{name}")
    def one(name: str) -> HTMLResponse:
        return HTMLResponse(pages.filled("cluster.html", **_page(service, name)))

    app.include_router(shown)


def _page(service: Service, name: str) -> dict[str, Any]:
    """What the page of a cluster shows; a stored file that is none any more has its text alone."""
    text, cluster = cluster_text(service, name), None
    try:
        cluster = Cluster.from_text(text, where=name, name=name)
    except PlacewrightError as error:
        found: Any = parts(error)
    else:
        found = None
    return {
        "name": name,
        "text": text,
        "preset": name in preset_names(),
        "cluster": cluster,
        "error": found,
        "drawing": None if cluster is None else drawn(cluster),
        "devices": [] if cluster is None else [_cells(each) for each in cluster.devices],
        "links": [] if cluster is None else [_link_cells(each) for each in cluster.links],
        "uses": _uses(service),
    }


def cluster_text(service: Service, name: str) -> str:
    """The YAML of a preset or of a stored file; `UnknownNameError` where there is none."""
    if name in preset_names():
        return preset_text(name)
    file = service.store.file(name)
    if file is None or file.kind != "cluster":
        raise UnknownNameError("cluster", name, [each.name for each in clusters(service)])
    return read_text(service.files.path(file))


def _uses(service: Service) -> list[tuple[str, str]]:
    """Address and text of every verb that plans or runs on a cluster."""
    found = []
    for operation in service.operations.values():
        option = next((each for each in operation.chosen if each.kind == "cluster"), None)
        if option is not None and operation.path[-1] in ("plan", "compare"):
            found.append((f"/new/{operation.name}?{option.name}=", " ".join(operation.path)))
    return found


def line_of(error: PlacewrightError, text: str) -> int | None:
    """The line that an error is about: what it names, or the last one with the name in it."""
    for part in (error.where, error.by):
        if numbers := re.findall(r"\bline (\d+)", part):
            return int(numbers[-1])  # YAML names first where what is wrong has begun
    names = "|".join(map(re.escape, re.findall(r"'([^']+)'", f"{error.what} {error.where}")))
    lines = text.splitlines()
    for before in (r"\bname: *", ""):  # a device is where it has its name, not where links use it
        if not names or (before and "name" not in error.what):
            continue
        word = re.compile(rf"{before}['\"]?(?<![\w-])(?:{names})(?![\w-])")
        if found := [k for k, line in enumerate(lines, 1) if word.search(line)]:
            return found[-1]
    return None


def _cells(device: Device) -> tuple[str, ...]:
    return (
        device.name,
        device.kind,
        device.node,
        str(device.cores),
        f"{device.speed:g}",
        size(device.memory_bytes),
        "-" if device.peak_flops is None else show(device.peak_flops, FLOPS),
        "-" if device.memory_bandwidth is None else show(device.memory_bandwidth, BANDWIDTH),
    )


def _link_cells(link: Link) -> tuple[str, ...]:
    own = link.channel == f"{link.source}->{link.target}"
    ends = (link.source, link.target)
    values = (show(link.bandwidth, BANDWIDTH), seconds(link.latency_s))
    return (*ends, *values, "own" if own else link.channel)
