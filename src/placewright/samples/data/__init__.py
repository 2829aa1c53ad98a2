"""Who holds which samples, and their files."""
