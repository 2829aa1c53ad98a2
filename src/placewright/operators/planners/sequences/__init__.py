"""Annealing and exact windows on sequences of operators with their devices."""
