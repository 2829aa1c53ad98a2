"""Published inputs of wing 2."""
