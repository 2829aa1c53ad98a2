"""Deployment: from a profiled model to workers that execute it."""
