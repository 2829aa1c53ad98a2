"""Pipelines around host memory that need not be contiguous."""
