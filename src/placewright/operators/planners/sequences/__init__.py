"""Annealing and exact windows on sequences: who runs where, in which order."""
