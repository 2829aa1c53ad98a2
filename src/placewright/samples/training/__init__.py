"""Nodes train for real: synchronous SGD on gloo."""
