"""Priority queues for compiled event loops."""
