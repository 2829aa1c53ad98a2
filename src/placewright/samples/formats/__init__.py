"""What a file of nodes and links may say, read and written."""
