"""The parts of every wing, for mypy: the wings import them by name, when they are needed."""

from __future__ import annotations

from placewright.layers import commands as layer_commands
from placewright.layers import conformance as layer_conformance
from placewright.layers import files as layer_files
from placewright.layers import planners as layer_planners
from placewright.layers import views as layer_views
from placewright.layers.devicemap import files as map_files
from placewright.layers.devicemap import planners as map_planners
from placewright.layers.flow import files as flow_files
from placewright.layers.flow import planners as flow_planners
from placewright.layers.halda import files as ring_files
from placewright.layers.halda import planners as ring_planners
from placewright.operators import conformance, files, planners, views
from placewright.planning.wing import CommandLine, Conformance, Files, Planning, Views
from placewright.requests import commands as request_commands
from placewright.requests import conformance as request_conformance
from placewright.requests import files as request_files
from placewright.requests import planners as request_planners
from placewright.requests import views as request_views
from placewright.samples import commands as sample_commands
from placewright.samples import conformance as sample_conformance
from placewright.samples import files as sample_files
from placewright.samples import planners as sample_planners
from placewright.samples import views as sample_views

PLANNING: tuple[Planning, ...] = (
    planners,
    layer_planners,
    flow_planners.PLANNING,
    ring_planners.PLANNING,
    map_planners.PLANNING,
    sample_planners,
    request_planners,
)
FILES: tuple[Files, ...] = (
    files,
    layer_files,
    flow_files,
    ring_files,
    map_files,
    sample_files,
    request_files,
)
VIEWS: tuple[Views, ...] = (
    views,
    layer_views,
    flow_files.VIEWS,
    ring_files.VIEWS,
    map_files.VIEWS,
    sample_views,
    request_views,
)
CONFORMANCE: tuple[Conformance, ...] = (
    conformance,
    layer_conformance.LAYERS,
    layer_conformance.FLOW,
    layer_conformance.HALDA,
    layer_conformance.DEVICE_MAP,
    sample_conformance,
    request_conformance,
)
COMMAND_LINES: tuple[CommandLine, ...] = (layer_commands, sample_commands, request_commands)
