"""Wing 3: training samples -> edge nodes."""

from placewright.planning.contract import Wing
from placewright.samples.bounds import bounds, refined_bounds
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
    refined_bounds=refined_bounds,
    files="placewright.samples.files",
)
