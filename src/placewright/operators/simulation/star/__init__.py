"""Plans whose transfers go through host memory: loads, calls, transfers."""
