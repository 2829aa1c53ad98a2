"""Deployment: a profiled model is calibrated on its workers, planned, executed and adapted.

`placewright.place` and ``placewright operators run`` are both made of these parts.
"""
