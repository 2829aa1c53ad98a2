"""Local moves on placements, played by the judge."""
