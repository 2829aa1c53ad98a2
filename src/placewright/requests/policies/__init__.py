"""Online policies of wing 4."""
