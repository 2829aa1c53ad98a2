"""Search where queues are first come, first served, so that a plan is a placement alone."""
