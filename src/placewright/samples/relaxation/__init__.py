"""Moving samples as a linear program: rows, columns, prices, rounding, whole numbers."""
