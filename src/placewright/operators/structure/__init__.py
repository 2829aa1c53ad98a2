"""What follows from a problem alone: groups, links, costs, contiguity, CEFT's tables."""
