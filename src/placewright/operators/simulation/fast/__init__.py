"""The fast path, compiled: makespans without their story, to the last bit the same."""
