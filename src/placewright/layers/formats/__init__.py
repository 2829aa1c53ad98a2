"""What files of wing 2 may say."""
