"""Images, who holds which of them, and their files."""
