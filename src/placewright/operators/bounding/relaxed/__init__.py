"""A schedule relaxed to a linear program with cuts; see `placewright.operators.bounds`."""
