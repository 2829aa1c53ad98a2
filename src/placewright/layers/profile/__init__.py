"""Costs of the layers of a model: traced, by formulas, measured."""
