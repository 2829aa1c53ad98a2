"""What nodes and links are really worth: a few steps, a few files."""
