"""Balancing: the node that ends last gives samples away; for greedy, nic and repairs."""
