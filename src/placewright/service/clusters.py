"""Pages of clusters: drawings of hosts, devices and links; YAML, checked while it is written."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from placewright.cluster.cluster import Cluster, device_cells, link_cells
from placewright.cluster.drawing import cluster_drawing
from placewright.cluster.files import error_line
from placewright.cluster.schema import preset_names, preset_text
from placewright.errors import PlacewrightError, UnknownNameError
from placewright.io.boundary import read_text
from placewright.service.app import ErrorParts, Service, clusters
from placewright.service.pages import Pages

LONGEST_TEXT = 100_000
"""Characters of a cluster that is checked."""


class ClusterCheck(BaseModel):
    """What was found in a cluster's YAML.

    `line`: where the error is. `drawing`: the cluster as SVG, where there is no error.
    """

    name: str = ""
    devices: int = 0
    links: int = 0
    error: ErrorParts | None = None
    line: int | None = None
    drawing: str = ""


def add_clusters(app: FastAPI, service: Service, pages: Pages) -> None:
    """Add pages of clusters, and the route that checks one."""

    @app.post("/api/v1/clusters/check")
    def check_cluster(
        text: Annotated[str, Body(embed=True, max_length=LONGEST_TEXT)],
    ) -> ClusterCheck:
        """Check a cluster's YAML and draw it; nothing is stored."""
        try:
            cluster = Cluster.from_text(text, where="cluster")
        except PlacewrightError as error:
            found = ErrorParts(**error.parts)
            return ClusterCheck(error=found, line=error_line(error, text))
        devices, links = len(cluster.devices), len(cluster.links)
        drawing = _drawn(cluster)
        return ClusterCheck(name=cluster.name, devices=devices, links=links, drawing=drawing)

    @app.get("/clusters", include_in_schema=False)
    def every() -> HTMLResponse:
        return pages.page("clusters.html", clusters=clusters(service))

    @app.get("/clusters/{name}", include_in_schema=False)
    def one(name: str) -> HTMLResponse:
        return pages.page("cluster.html", **_page(service, name))


def _page(service: Service, name: str) -> dict[str, Any]:
    """What the page of a cluster shows; a stored file that is none any more has its text alone."""
    text = cluster_text(service, name)
    page = {"name": name, "text": text, "preset": name in preset_names(), "uses": _uses(service)}
    try:
        cluster = Cluster.from_text(text, where=name, name=name)
    except PlacewrightError as error:
        return page | {"cluster": None, "error": error.parts, "drawing": ""}
    rows = {
        "devices": list(map(device_cells, cluster.devices)),
        "links": list(map(link_cells, cluster.links)),
    }
    return page | rows | {"cluster": cluster, "error": None, "drawing": _drawn(cluster)}


def _drawn(cluster: Cluster) -> str:
    too_many = "<p>It has too many hosts or devices to be drawn; the tables have all of them.</p>"
    return cluster_drawing(cluster) or too_many


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
