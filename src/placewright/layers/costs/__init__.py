"""Costs of a plan's parts, which the simulation, the bounds and the planners share; all pure."""
