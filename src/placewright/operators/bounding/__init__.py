"""Engines of the bounds: dual of the load problem, head-load-tail, relaxed schedule."""
