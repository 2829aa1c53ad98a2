"""What waits, the first one soonest: for compiled event loops."""
