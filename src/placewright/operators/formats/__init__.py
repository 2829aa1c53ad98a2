"""What a file of a problem or a plan may say, read and written."""
