"""What follows from a problem alone: groups, costs, contiguity, CEFT's tables."""
