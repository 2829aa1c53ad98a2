"""Local moves on placements, judged one by one."""
