"""Pipelines in a chain of nested ideals: dynamic programs, stage numbers."""
