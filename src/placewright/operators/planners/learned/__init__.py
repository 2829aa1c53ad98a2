"""Planners that learn to place, and the parts that they share.

Torch is imported inside the functions that need it: naming these planners loads none of it.
"""
