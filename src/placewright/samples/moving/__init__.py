"""Samples move for real: files over sockets, none lost."""
