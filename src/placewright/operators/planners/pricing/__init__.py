"""Placement as a PBQP under prices, and where its search begins."""
