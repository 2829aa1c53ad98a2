"""Wing 3: training samples -> edge nodes."""

from placewright.planning import Wing
from placewright.samples.bounds import bounds, late_bounds
from placewright.samples.judge import judge
from placewright.samples.planners import planners, portfolio
from placewright.samples.problem import SampleProblem

WING = Wing(
    "samples",
    SampleProblem,
    planners,
    portfolio,
    judge,
    bounds,
    late_bounds=late_bounds,
    files="placewright.samples.files",
)
