"""What the judge knows: how plans are played, scored and refused."""
