"""Pipelines over links: every pair of devices has its own price."""
