"""Properties of a problem alone: groups, links, costs, contiguity, CEFT's tables."""
