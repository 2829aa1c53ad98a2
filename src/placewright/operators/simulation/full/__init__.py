"""Full simulator, compiled: schedule, transfers and memory."""
