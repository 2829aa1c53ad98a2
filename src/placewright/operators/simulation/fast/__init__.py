"""Fast simulator, compiled: makespan only, no trace."""
