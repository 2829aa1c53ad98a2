"""A problem as a chain of units, cut into one stretch per device."""
