"""Throughput made small for exact planners: contraction, annealing, programs."""
