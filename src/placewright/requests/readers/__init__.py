"""Published instances and traces of requests."""
