"""Calls of accelerators through host memory: shortest chains over ideals."""
