"""Simulators of wing 1; their rules are in docs/reference/simulation.md."""
