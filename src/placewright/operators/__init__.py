"""Wing 1: operators -> devices."""

from placewright.operators.bounds import bounds
from placewright.operators.judge import judge
from placewright.operators.planners import planners, portfolio
from placewright.operators.problem import OperatorProblem
from placewright.planning import Wing

WING = Wing("operators", OperatorProblem, planners, portfolio, judge, bounds)
